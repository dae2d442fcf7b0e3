"""Cost-aware policy gradient.

    python -m evoharness_jax.train_rl --config=configs/alfworld_rl.py --workdir=DIR \
        --config.model.init=SFT_RUN

One step: G tasks x R episodes -> reward -> advantage -> score (old, ref) -> update ->
the bank learns from the notes. Everything random is named by (seed, step), and a
checkpoint names its bank version, so a killed run that is started again ends with the
same bits.
"""

import json
import time
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from ml_collections import ConfigDict

from evoharness_jax import (
    build,
    checkpoint,
    cli,
    collect,
    evaluate,
    metrics,
    parameters,
)
from evoharness_jax.bpe.workspace import OK
from evoharness_jax.experience import bank as bank_
from evoharness_jax.experience.bank import Version
from evoharness_jax.experience.evolve import evolve
from evoharness_jax.rollout import loop
from evoharness_jax.rollout.engine import Engine, Rows
from evoharness_jax.rollout.loop import CONTEXT_FULL, Rollout, Setting
from evoharness_jax.rollout.sampling import Sampling
from evoharness_jax.rollout.summary import summarise
from evoharness_jax.train import packing, policy_gradient, reward
from evoharness_jax.train.advantages import group_advantages
from evoharness_jax.types import META_VERBS, VERB_NAMES, TrainState

SHOWN = (
    "env/success",
    "calls/total",
    "reward/total",
    "policy/kl",
    "eval/success",
    "time/step",
)


class Parts(NamedTuple):
    """What a run needs at every step."""

    domain: Any
    tasks: tuple  # of the split to train on
    games: list  # to evaluate on; a missing split shows at the start, not at step ten
    setting: Setting
    model: build.Model
    engine: Engine
    update: Any
    score: Any
    score_base: Any  # of the policy that the run began with
    facts: dict


def run(config: ConfigDict, workdir: str) -> dict[str, Any]:
    """Train; return the last step's metrics."""
    _check(config)
    build.shared_heads(config, build.model_config(config))
    model = build.model(config, workdir)
    parts, tx, where = _assemble(config, model)
    # The first update donates its parameters, so the state gets a copy of its own:
    # what the run began with is the reference. Beside an adapter there is one copy, and
    # the reference is that without it.
    start = jax.tree.map(jax.numpy.copy, model.trained.params)
    state = policy_gradient.make_state(start, tx, jax.random.key(config.seed))
    state = jax.device_put(state, where)

    saved = checkpoint.manager(workdir, config.checkpoint.keep)
    first = 0
    if found := checkpoint.restore(saved, state, parts.facts):
        state, host = found
        parameters.same_adapter(host, model.trained.facts, workdir)
        first, bank = host["step"], _go_back_to(host["bank"], workdir)
        metrics.log.info("going on from step %d with bank %s", first, bank.name)
    else:
        bank = _first_bank(config, parts.domain, workdir)
    writer = metrics.Writer(workdir, config.optim.steps, first)
    rows = Rows(parts.engine)
    last = metrics.last(workdir)
    for step in range(first, config.optim.steps):
        begun = time.monotonic()
        tasks = tasks_of(config, parts.tasks, step)
        played = _rollout(config, parts, rows, state, bank, tasks, step)
        state, last = _learn(config, parts, state, played, step)
        done = step + 1
        metrics.stop_unless_finite(last, done, saved)
        bank, last["bank/entries"] = _evolve(config, bank, played, workdir, done)
        last["time/step"] = time.monotonic() - begun
        _write_records(workdir, done, played.records)
        every = config.train.evaluate_every
        if every and (done % every == 0 or done == config.optim.steps):
            last |= _evaluate(config, parts, state, bank, done, workdir)
        writer.write(done, last, SHOWN)
        if done % config.checkpoint.every == 0 or done == config.optim.steps:
            host = {"step": done, "model": parts.facts, "bank": bank.name}
            if model.trained.facts:
                host["lora"] = model.trained.facts
            checkpoint.save(saved, done, state, host)
    return last


def tasks_of(config: ConfigDict, tasks: tuple, step: int) -> list:
    """Return the G tasks of a step, each R times in a row, from (seed, step) alone.

    Each pass over the split goes through it in an order of its own.
    """
    count, group = config.rollout.tasks, config.rollout.group
    chosen = []
    for place in range(step * count, (step + 1) * count):
        epoch, at = divmod(place, len(tasks))
        order = np.random.default_rng((config.seed, epoch)).permutation(len(tasks))
        chosen += [tasks[order[at]]] * group
    return chosen


def outcomes(played: Rollout) -> reward.Outcomes:
    """Return how the episodes of a rollout went, as arrays over [B] and [B, T]."""
    e = played.episodes
    return reward.Outcomes(
        won=np.asarray(e.won),
        # Who talks until the context is full has failed; only what the environment
        # broke is left out.
        error=np.array([r["error"] not in ("", CONTEXT_FULL) for r in played.records]),
        turns=np.asarray(e.turn),
        env_steps=np.asarray(e.env_steps),
        tokens=np.asarray(e.tokens),
        verbs=np.asarray(e.verbs),
        actions=np.asarray(e.actions),
        valid=np.asarray(e.valid),
        executed=np.asarray((e.tags == OK) & (e.verbs >= 0)),
        leading=played.leading,
    )


def judge(config: ConfigDict, episodes: reward.Outcomes, step: int):
    """Return (reward f32[B], its parts, advantage f32[B], metrics)."""
    settings = config.reward.to_dict()
    prices = settings.pop("prices")
    budget = settings.pop("token_budget")
    total, parts = reward.total(
        episodes,
        [prices[verb] for verb in VERB_NAMES],
        reward.Weights(**settings),
        step,
        step_budget=config.rules.max_turns,
        token_budget=budget,
    )
    group = np.arange(len(total)) // config.rollout.group
    advantage, numbers = group_advantages(
        total,
        parts,
        group,
        episodes.won,
        episodes.error,
        turns=episodes.turns,
        **config.advantage,
    )
    numbers |= {"reward/total": total.mean()}
    numbers |= {f"reward/{name}": part.mean() for name, part in parts.items()}
    return total, parts, advantage, numbers


def _assemble(config: ConfigDict, model: build.Model):
    tx, schedule = build.optimiser(config)
    temperature = config.rollout.temperature
    learner, chunk = model.trained, config.train.logprob_chunk
    logprobs = build.logprobs(model.config, chunk, temperature, learner.join)
    shapes = jax.eval_shape(
        lambda p: policy_gradient.make_state(p, tx, jax.random.key(0)), learner.params
    )
    where = policy_gradient.state_shardings(model.mesh, learner.axes, shapes)
    beside = {"frozen_shardings": learner.frozen_shardings}
    score = policy_gradient.make_score(
        logprobs, model.mesh, where.params, stacked=True, **beside
    )
    score_base = score
    if learner.frozen:
        (base_where,) = learner.frozen_shardings
        plain = build.logprobs(model.config, chunk, temperature)
        score_base = policy_gradient.make_score(
            plain, model.mesh, base_where, stacked=True
        )
    # With one update per rollout the old policy is the current one: nothing to score.
    old = "current" if config.data.updates == 1 else "batch"
    settings = policy_gradient.Settings(**config.loss, old=old)
    domain = build.domain(config)
    batch = min(config.rollout.batch, domain.capacity)
    sampling = Sampling(temperature, 0, config.rollout.top_p)
    parts = Parts(
        domain=domain,
        tasks=domain.tasks(config.rollout.split),
        games=evaluate.chosen(config, domain) if config.train.evaluate_every else [],
        setting=build.setting(config),
        model=model,
        engine=build.engine(config, model, batch, sampling),
        update=policy_gradient.make_update(
            logprobs, tx, settings, model.mesh, where, schedule=schedule, **beside
        ),
        score=score,
        score_base=score_base,
        facts=build.model_facts(model.config),
    )
    return parts, tx, where


def _rollout(config, parts, rows, state, bank, tasks, step) -> Rollout:
    policy = build.model_policy(
        config, parts.model, parts.engine, rows, _joined(parts, state), step
    )
    arrays, words = bank_.arrays(bank.entries, config.bank.capacity)
    played = loop.rollout(
        policy,
        parts.domain,
        arrays,
        words,
        tasks,
        parts.setting,
        batch=parts.engine.rows,
        first_uid=step * len(tasks),
        tokens=parts.model.tokens,
        version=bank.name,
    )
    evaluate.check_context(config, played.records)
    return played


def _joined(parts: Parts, state: TrainState) -> Any:
    """Return what plays: the parameters, or base and adapter."""
    learner = parts.model.trained
    return learner.join(state.params, *learner.frozen)


def _learn(
    config: ConfigDict,
    parts: Parts,
    state: TrainState,
    played: Rollout,
    step: int,
) -> tuple[TrainState, dict[str, Any]]:
    """Turn a rollout into updates; return the new state and the step's metrics."""
    episodes = outcomes(played)
    _, _, advantage, numbers = judge(config, episodes, step)
    begun = time.monotonic()
    fields = packing.from_turns(played.turns, advantage)
    shared = build.shared_heads(config, parts.model.config)
    heads = packing.shared_heads(played.turns) if shared else None
    packed = packing.pack(fields, config.data.length, heads=heads)
    size = config.data.rows * config.data.updates
    accum = packing.few_shapes(-(-len(packed.batch.tokens) // size))
    batches = packing.batches(packed.batch, config.data.rows, accum)
    scored = [_score(config, parts, state.params, b) for b in batches]
    numbers["time/score"] = time.monotonic() - begun
    begun = time.monotonic()
    for batch in scored:
        state, updated = parts.update(state, batch, *parts.model.trained.frozen)
    numbers |= {k: np.asarray(v) for k, v in updated.items()}
    numbers["time/update"] = time.monotonic() - begun
    numbers["data/fill"] = packed.fill
    numbers["data/reuse"] = packed.reuse
    numbers["data/tokens"] = sum(len(row) for row in played.turns.tokens)
    summary = summarise(played.records)
    numbers |= {
        "env/success": summary["success"],
        "env/turns": summary["turns"],
        "env/steps": summary["steps"],
        "env/errors": summary["errors"],
        "env/dropped": summary["dropped"],
        "env/invalid": float((~episodes.valid & (episodes.verbs >= 0)).sum(1).mean()),
        "env/tokens": summary["tokens"],
        "calls/total": summary["calls_total"],
    }
    numbers |= {f"calls/{verb}": summary["calls"][verb] for verb in META_VERBS}
    numbers |= {f"time/{phase}": s for phase, s in played.seconds.items()}
    return state, numbers


def _score(config, parts, params, batch):
    """Add the log-probabilities that the loss will ask for, and no others."""
    if config.data.updates > 1:
        frozen = parts.model.trained.frozen
        batch = batch._replace(old_logp=parts.score(params, batch, *frozen))
    if config.loss.kl_coef:
        batch = batch._replace(ref_logp=parts.score_base(parts.model.params, batch))
    return batch


def _evaluate(config, parts, state, bank, step, workdir) -> dict[str, float]:
    sampling = Sampling(config.evaluate.temperature, 0, config.evaluate.top_p)
    batch = min(config.evaluate.batch, parts.domain.capacity)
    engine = build.engine(config, parts.model, batch, sampling)
    policy = build.model_policy(
        config, parts.model, engine, Rows(engine), _joined(parts, state), step
    )
    played = evaluate.play(
        config,
        policy,
        parts.domain,
        bank,
        parts.games,
        parts.setting,
        batch,
        parts.model.tokens,
    )
    summary = summarise(played.records)
    return {
        "eval/success": summary["success"],
        "eval/calls": summary["calls_total"],
        "eval/turns": summary["turns"],
        "eval/tokens": summary["tokens"],
    }


def _evolve(config, bank: Version, played: Rollout, workdir: str, step: int):
    """Apply the edits of this step; the next one reads the new version."""
    if not config.train.evolve:
        return bank, len(bank.entries)
    entries, _ = evolve(
        bank.entries, collect.evidence(played.records), step, config.bank.capacity
    )
    if entries != bank.entries:
        bank = bank_.write(Path(workdir) / "bank", entries, bank.name, step)
    return bank, len(entries)


def _first_bank(config: ConfigDict, domain, workdir: str) -> Version:
    """Return version 0 of the run."""
    entries = build.first_bank(config, domain, config.model.init).entries
    folder = Path(workdir) / "bank"
    bank_.reset_head(folder, "")  # steps taken before a first checkpoint are gone
    return bank_.write(folder, entries, "", 0)


def _go_back_to(name: str, workdir: str) -> Version:
    """Make the checkpoint's bank version HEAD: later steps will be taken again."""
    folder = Path(workdir) / "bank"
    bank_.reset_head(folder, name)
    return bank_.read(folder, name)


def _write_records(workdir: str, step: int, records: list[dict]) -> None:
    folder = Path(workdir) / "episodes"
    folder.mkdir(exist_ok=True)
    with (folder / f"{step:06d}.jsonl").open("w") as file:
        file.writelines(json.dumps(record) + "\n" for record in records)


def _check(config: ConfigDict) -> None:
    if config.rollout.temperature <= 0:
        raise ValueError(
            "rollout.temperature: a greedy rollout has nothing to compare; it must be "
            f"positive: {config.rollout.temperature}"
        )
    if config.rollout.group < 2:
        raise ValueError(
            "rollout.group: an advantage compares episodes of one task, at least 2: "
            f"{config.rollout.group}"
        )
    if config.data.length < config.model.context:
        raise ValueError(
            "data.length: a packed row must hold a whole episode or turn, up to "
            f"model.context = {config.model.context} ids: {config.data.length}"
        )


def main() -> None:
    """Run from the command line."""
    cli.main(
        run, "train_rl", ("rollout", "reward", "advantage", "loss", "data", "optim")
    )


if __name__ == "__main__":
    main()
