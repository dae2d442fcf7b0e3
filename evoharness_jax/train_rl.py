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
from functools import partial
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
    hosts,
    judging,
    learning,
    metrics,
    parameters,
    sync,
)
from evoharness_jax.experience import bank as bank_
from evoharness_jax.experience.bank import Version
from evoharness_jax.experience.evolve import evolve
from evoharness_jax.models import qwen3
from evoharness_jax.rollout import loop, policies
from evoharness_jax.rollout.engine import Engine
from evoharness_jax.rollout.loop import Rollout, Setting
from evoharness_jax.rollout.sampling import Sampling
from evoharness_jax.rollout.slots import Rows
from evoharness_jax.rollout.summary import summarise
from evoharness_jax.train import policy_gradient
from evoharness_jax.types import TrainState

KL_IN = ("loss", "reward")
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
    playing: Any  # the mesh to play on; None: there is one device
    update: Any
    score: Any
    score_base: Any  # of the policy that the run began with
    facts: dict


class Programs(NamedTuple):
    """What a run computes with; see `train.policy_gradient` and `train.state`."""

    tx: Any
    where: TrainState  # shardings
    shapes: TrainState  # ShapeDtypeStructs
    update: Any
    score: Any
    score_base: Any  # of the policy that the run began with


def run(config: ConfigDict, workdir: str) -> dict[str, Any]:
    """Train; return the last step's metrics."""
    _check(config)
    build.shared_heads(config, build.model_config(config))
    model = build.model(config, workdir)
    parts, tx, where = _assemble(config, model)
    # The first update donates its parameters, so the state gets a copy of its own:
    # what the run began with is the reference. Beside an adapter there is one copy, and
    # the reference is that without it.
    begin = jax.jit(
        lambda p: policy_gradient.make_state(p, tx, jax.random.key(config.seed)),
        out_shardings=where,
    )
    state = begin(model.trained.params)

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
        if any(hosts.gather("played", played is None)):
            # A step that is not over is taken again, the same, by whoever goes on.
            _save(saved, step, state, bank, model, parts)
            raise hosts.Stopped
        state, last = learning.learn(config, parts, state, played, step)
        done = step + 1
        metrics.stop_unless_finite(last, done, saved)
        records = _write_records(workdir, done, played.records)
        bank, last["bank/entries"] = _evolve(config, bank, records, workdir, done)
        last |= learning.summed_up(records) | {"time/step": time.monotonic() - begun}
        every = config.train.evaluate_every
        if every and (done % every == 0 or done == config.optim.steps):
            last |= _evaluate(config, parts, state, bank, done, workdir)
        writer.write(done, last, SHOWN)
        stopped = hosts.stopping("step")
        ending = stopped or done == config.optim.steps
        if done % config.checkpoint.every == 0 or ending:
            _save(saved, done, state, bank, model, parts)
        if stopped:
            raise hosts.Stopped
    return last


def _save(saved, done: int, state: TrainState, bank: Version, model, parts) -> None:
    host = {"step": done, "model": parts.facts, "bank": bank.name}
    if model.trained.facts:
        host["lora"] = model.trained.facts
    checkpoint.save(saved, done, state, host)
    if hosts.asked_to_stop():
        metrics.log.info("asked to stop: step %d is saved", done)


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


def loss_settings(config: ConfigDict, old: str = "batch") -> policy_gradient.Settings:
    """Return what the update is told of the config's section `loss`.

    Raises:
        ValueError: a choice that there is not.
    """
    settings = config.loss.to_dict()
    where, each = settings.pop("kl_in"), settings.pop("episode_tokens")
    if where not in KL_IN:
        raise ValueError(f"loss.kl_in: {where!r}, not one of {', '.join(KL_IN)}")
    if where == "reward":
        settings["kl_coef"] = 0.0  # it is charged already
    # The same at every step, and for each of a step's updates.
    episodes = config.rollout.tasks * config.rollout.group
    constant = episodes * each / config.data.updates
    return policy_gradient.Settings(**settings, constant=constant, old=old)


def programs(config: ConfigDict, model: build.Model) -> Programs:
    """Make what a run computes with, from shapes alone: nothing is compiled yet."""
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
    # With one update per rollout the old policy is the current one.
    old = "current" if config.data.updates == 1 else "batch"
    settings = loss_settings(config, old)
    update = policy_gradient.make_update(
        logprobs,
        tx,
        settings,
        model.mesh,
        where,
        schedule=schedule,
        by=build.differentiated(model.config, learner),
        **beside,
    )
    return Programs(tx, where, shapes, update, score, score_base)


def _assemble(config: ConfigDict, model: build.Model):
    made = programs(config, model)
    domain = build.domain(config)
    batch = min(config.rollout.batch, domain.capacity)
    sampling = Sampling(config.rollout.temperature, 0, config.rollout.top_p)
    parts = Parts(
        domain=domain,
        tasks=domain.tasks(config.rollout.split),
        games=evaluate.chosen(config, domain) if config.train.evaluate_every else [],
        setting=build.setting(config),
        model=model,
        engine=build.engine(config, model, batch, sampling),
        playing=sync.rollout_mesh(config.rollout.tp) if model.mesh.size > 1 else None,
        update=made.update,
        score=made.score,
        score_base=made.score_base,
        facts=build.model_facts(model.config),
    )
    return parts, made.tx, made.where


def _rollout(config, parts, rows, state, bank, tasks, step) -> Rollout | None:
    """Play this process's share of the tasks; None: it was asked to stop."""
    share = len(tasks) // hosts.count()
    mine = hosts.index() * share
    policy = _policy(config, parts, rows, state, step)
    arrays, words = bank_.arrays(bank.entries, config.bank.capacity)
    try:
        played = loop.rollout(
            policies.wrapped(policy, _until_stopped),
            parts.domain,
            arrays,
            words,
            tasks[mine : mine + share],
            parts.setting,
            batch=parts.engine.rows,
            first_uid=step * len(tasks) + mine,
            tokens=parts.model.tokens,
            version=bank.name,
        )
    except hosts.Stopped:
        return None
    evaluate.check_context(config, played.records)
    return played


def _until_stopped(call):
    """A rollout may take longer than the time between a warning and the end."""

    def checked(*args):
        if hosts.asked_to_stop():
            raise hosts.Stopped
        return call(*args)

    return checked


def _policy(config, parts: Parts, rows: Rows, state: TrainState, step: int):
    """Return the policy that plays, on the rollout mesh where there is one."""
    learner, playing = parts.model.trained, parts.playing
    params, frozen = state.params, learner.frozen
    if playing is not None:
        shape, dtype = parts.model.config, parts.model.config.dtype
        whole = qwen3.logical_axes(shape)
        params = sync.moved(params, learner.axes, playing, dtype)
        frozen = tuple(sync.moved(f, whole, playing, dtype) for f in frozen)
    joined = learner.join(params, *frozen)
    make = partial(build.model_policy, config, parts.model, rows, joined, step)
    if playing is None:
        return make()
    return policies.wrapped(_on(playing)(make)(), _on(playing))


def _on(mesh):
    """Return what makes a call one on this mesh."""

    def around(call):
        def there(*args):
            with jax.set_mesh(mesh):
                return call(*args)

        return there

    return around


def _evaluate(config, parts, state, bank, step, workdir) -> dict[str, float]:
    """Play this process's share of the games; return the means over all of them."""
    share = -(-len(parts.games) // hosts.count())
    mine = parts.games[hosts.index() * share :][:share]
    found = {}
    if mine:
        found = _evaluate_on(config, parts, state, bank, step, mine)
    every = hosts.gather("evaluated", [len(mine), found], patient=True)
    names = next(numbers for count, numbers in every if count)
    return {
        name: sum(n * one[name] for n, one in every if n) / len(parts.games)
        for name in names
    }


def _evaluate_on(config, parts, state, bank, step, games) -> dict[str, float]:
    sampling = Sampling(config.evaluate.temperature, 0, config.evaluate.top_p)
    batch = min(config.evaluate.batch, parts.domain.capacity)
    engine = build.engine(config, parts.model, batch, sampling)
    policy = _policy(config, parts, Rows(engine), state, step)
    played = evaluate.play(
        config,
        policy,
        parts.domain,
        bank,
        games,
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


def _evolve(config, bank: Version, records: list[dict], workdir: str, step: int):
    """Apply the edits of this step; the next one reads the new version."""
    if not config.train.evolve:
        return bank, len(bank.entries)
    folder = Path(workdir) / "bank"
    if hosts.leads():
        entries, _ = evolve(
            bank.entries, collect.evidence(records), step, config.bank.capacity
        )
        if entries != bank.entries:
            bank = bank_.write(folder, entries, bank.name, step)
    name = hosts.agreed("bank", bank.name)
    if name != bank.name:
        bank = bank_.read(folder, name)
    return bank, len(bank.entries)


def _first_bank(config: ConfigDict, domain, workdir: str) -> Version:
    """Return version 0 of the run."""
    entries = build.first_bank(config, domain, config.model.init).entries
    folder = Path(workdir) / "bank"
    name = ""
    if hosts.leads():
        bank_.reset_head(folder, "")  # steps taken before a first checkpoint are gone
        name = bank_.write(folder, entries, "", 0).name
    return bank_.read(folder, hosts.agreed("first bank", name))


def _go_back_to(name: str, workdir: str) -> Version:
    """Make the checkpoint's bank version HEAD: later steps will be taken again."""
    folder = Path(workdir) / "bank"
    if hosts.leads():
        bank_.reset_head(folder, name)
    hosts.meet("bank")
    return bank_.read(folder, name)


def _write_records(workdir: str, step: int, records: list[dict]) -> list[dict]:
    """Write a step's episodes; return those of all processes, in the one that leads."""
    folder = Path(workdir) / "episodes"
    folder.mkdir(exist_ok=True)
    path = folder / f"{step:06d}.jsonl"
    parts = [path.with_suffix(f".part{p}") for p in range(hosts.count())]
    if len(parts) > 1:
        _write_lines(parts[hosts.index()], records)
        hosts.meet("episodes")
    if not hosts.leads():
        return records
    if len(parts) > 1:
        records = [record for part in parts for record in collect.read_episodes(part)]
    _write_lines(path, records)
    for part in parts:
        part.unlink(missing_ok=True)
    return records


def _write_lines(path: Path, records: list[dict]) -> None:
    with path.open("w") as file:
        file.writelines(json.dumps(record) + "\n" for record in records)


def _check(config: ConfigDict) -> None:
    judging.check(config)
    loss_settings(config)
    if not 0 < config.data.sample <= 1:
        raise ValueError(f"data.sample must lie in (0, 1]: {config.data.sample}")
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
    for key in ("rollout.tasks", "data.rows"):
        section, name = key.split(".")
        if config[section][name] % hosts.count():
            raise ValueError(
                f"{key}: {config[section][name]} cannot be shared by {hosts.count()} "
                "processes"
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
