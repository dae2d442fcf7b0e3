"""Supervised harness fine-tuning.

    python -m evoharness_jax.train_sft --config=configs/alfworld_sft.py --workdir=DIR

Teacher episodes (collected here, or by `collect`) -> rows -> packed batches -> one
jitted update. Every batch is named by (seed, step), so a killed run that is started
again continues with the same batches and ends with the same bits.
"""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import optax
from ml_collections import ConfigDict

from evoharness_jax import (
    build,
    checkpoint,
    cli,
    collect,
    hosts,
    metrics,
    parameters,
)
from evoharness_jax import mesh as mesh_
from evoharness_jax.rollout import examples
from evoharness_jax.rollout import stream as stream_
from evoharness_jax.train import packing, sft, state
from evoharness_jax.types import Batch, TrainState


class Programs(NamedTuple):
    """What a run computes with; see `train.sft` and `train.state`."""

    tx: optax.GradientTransformation
    where: TrainState  # shardings
    shapes: TrainState  # ShapeDtypeStructs
    update: Callable
    score: Callable


def run(config: ConfigDict, workdir: str) -> dict[str, Any]:
    """Train; return the last metrics."""
    # What is wrong with these shows before collecting.
    build.shared_heads(config, build.model_config(config))
    parameters.spec(config)
    build.optimiser(config)
    folder = config.data.episodes or str(Path(workdir) / "collect")
    if not config.data.episodes:
        _collect(config, folder)
    records = _usable(config, collect.last_episodes(folder), folder)
    texts = (text for record in records for text in examples.texts(record))
    model = build.model(config, workdir, texts)
    learner = model.trained
    if hosts.leads():
        _inherit_bank(folder, workdir)

    train, held_out = _split(config, records)
    packed = _pack(config, model.tokens, train, config.data.prompt_weight)
    checks = _batches(config, _pack(config, model.tokens, held_out).batch)
    metrics.log.info(
        "%d episodes, %d of them held out; %d packed rows, %.1f %% filled, heads "
        "written once for %.2f times the tokens",
        len(records),
        len(held_out),
        len(packed.batch.tokens),
        100 * packed.fill,
        packed.reuse,
    )

    tx, where, _, update, score = programs(config, model)
    begin = jax.jit(
        lambda p: sft.make_state(p, tx, jax.random.key(config.seed)),
        out_shardings=where,
        donate_argnums=0,
    )
    current = begin(learner.params)

    saved = checkpoint.manager(workdir, config.checkpoint.keep)
    facts = build.model_facts(model.config)
    first = 0
    if found := checkpoint.restore(saved, current, facts):
        current, host = found
        parameters.same_adapter(host, learner.facts, workdir)
        first = host["step"]
        metrics.log.info("going on from step %d", first)
    writer = metrics.Writer(workdir, config.optim.steps, first)
    last = metrics.last(workdir)
    rows = state.microbatch_sharding(model.mesh)
    for step in range(first, config.optim.steps):
        batch = mesh_.place_all(next_batch(packed.batch, config, step), rows)
        current, numbers = update(current, batch, *learner.frozen)
        done = step + 1
        ending = done == config.optim.steps
        if done % config.train.log_every == 0 or ending:
            last = {k: float(v) for k, v in numbers.items()}
            metrics.stop_unless_finite(last, done, saved)
            if checks and (done % config.train.check_every == 0 or ending):
                last["loss/held_out"] = held_out_loss(
                    score, current, checks, rows, learner.frozen
                )
            writer.write(done, last, ("loss/sft", "loss/held_out", "optim/lr"))
        stopped = hosts.stopping("step")
        if done % config.checkpoint.every == 0 or ending or stopped:
            metrics.stop_unless_finite(numbers, done, saved)
            host = {"step": done, "model": facts}
            if learner.facts:
                host["lora"] = learner.facts
            checkpoint.save(saved, done, current, host)
        if stopped:
            metrics.log.info("asked to stop: step %d is saved", done)
            raise hosts.Stopped
    return last


def _collect(config: ConfigDict, folder: str) -> None:
    """Let the leading process collect; the others wait."""
    stopped = False
    if hosts.leads():
        Path(folder).mkdir(parents=True, exist_ok=True)
        try:
            collect.run(config, folder)
        except hosts.Stopped:
            stopped = True
    if any(hosts.gather("collected", stopped, patient=True)):
        raise hosts.Stopped


def programs(config: ConfigDict, model: build.Model) -> Programs:
    """Make what a run computes with, from shapes alone: nothing is compiled yet."""
    learner = model.trained
    tx, schedule = build.optimiser(config)
    logprobs = build.logprobs(
        model.config, config.train.logprob_chunk, join=learner.join
    )
    shapes = jax.eval_shape(
        lambda p: sft.make_state(p, tx, jax.random.key(0)), learner.params
    )
    where = sft.state_shardings(model.mesh, learner.axes, shapes)
    beside = {"frozen_shardings": learner.frozen_shardings}
    return Programs(
        tx,
        where,
        shapes,
        sft.make_update(
            logprobs,
            tx,
            model.mesh,
            where,
            schedule=schedule,
            by=build.differentiated(model.config, learner),
            **beside,
        ),
        state.make_score(logprobs, model.mesh, where.params, stacked=True, **beside),
    )


def next_batch(packed: Batch, config: ConfigDict, step: int) -> Batch:
    """Return the batch [accum, rows, L] of a step, from (seed, step) alone.

    Each pass over the data goes through the packed rows in an order of its own.
    """
    size = config.data.accum * config.data.rows
    rows = len(packed.tokens)
    wanted = np.arange(step * size, (step + 1) * size)
    orders = {
        epoch: np.random.default_rng((config.seed, epoch)).permutation(rows)
        for epoch in {int(w) // rows for w in wanted}
    }
    index = np.array([orders[int(w) // rows][int(w) % rows] for w in wanted])
    shape = (config.data.accum, config.data.rows, -1)
    return Batch(*(field[index].reshape(shape) for field in packed))


def held_out_loss(
    score, current: TrainState, checks: list[Batch], rows, frozen: tuple = ()
) -> float:
    """Return the mean negative log-likelihood of held-out responses.

    Args:
        rows: sharding of a batch.
    """
    total = weight = 0.0
    for batch in checks:
        placed = mesh_.place_all(batch, rows)
        logp = mesh_.fetch(score(current.params, placed, *frozen))
        total -= float((logp * batch.weight).sum())
        weight += float(batch.weight.sum())
    return total / weight


def _usable(config: ConfigDict, records: list[dict], folder: str) -> list[dict]:
    """Leave out lost episodes; refuse those worded otherwise than this run is."""
    wanted = build.setting(config).style._asdict()
    for record in records:
        found = record["setting"]["style"]
        differ = [k for k in wanted if found[k] != wanted[k]]
        if differ:
            raise ValueError(
                f"data.episodes: {folder} was collected with "
                + ", ".join(f"env.{k} = {found[k]!r}" for k in differ)
                + ", this run has "
                + ", ".join(f"{wanted[k]!r}" for k in differ)
            )
    usable = [r for r in records if r["won"] or not config.data.only_won]
    usable = [r for r in usable if not r["error"]]
    if not usable:
        raise ValueError(f"data.episodes: no episode of {folder} was won")
    return usable


def _split(config: ConfigDict, records: list[dict]) -> tuple[list, list]:
    """Hold out whole tasks, so that a repeated one is not on both sides."""
    tasks = sorted({r["task"] for r in records})
    order = np.random.default_rng(config.seed).permutation(len(tasks))
    count = min(round(config.data.held_out * len(tasks)), len(tasks) - 1)
    out = {tasks[i] for i in order[:count]}
    return (
        [r for r in records if r["task"] not in out],
        [r for r in records if r["task"] in out],
    )


def _pack(
    config: ConfigDict, tokens, records: list[dict], prompt_weight: float = 0.0
) -> packing.Packed:
    rows = [examples.rows(tokens, record) for record in records]
    turns = stream_.turns(rows, 0)
    fields = packing.from_turns(turns)
    fields["weight"] = [np.maximum(w, prompt_weight) for w in fields["weight"]]
    longest = max((len(one) for one in fields["tokens"]), default=0)
    if longest > config.data.length:
        raise ValueError(
            f"data.length: {config.data.length} ids do not hold a row of {longest}"
        )
    shared = build.shared_heads(config, build.model_config(config))
    heads = packing.shared_heads(turns) if shared else None
    return packing.pack(fields, config.data.length, heads=heads)


def _batches(config: ConfigDict, batch: Batch) -> list[Batch]:
    if not len(batch.tokens):
        return []
    return packing.batches(batch, config.data.rows, accum=1)


def _inherit_bank(folder: str, workdir: str) -> None:
    """The bank grown during collection goes on with the model."""
    source, target = Path(folder.split(os.pathsep)[0]) / "bank", Path(workdir) / "bank"
    if source.is_dir() and not target.exists():
        temporary = target.with_name("bank.new")  # a kill leaves all of it or nothing
        shutil.copytree(source, temporary, dirs_exist_ok=True)
        os.replace(temporary, target)


def main() -> None:
    """Run from the command line."""
    cli.main(run, "train_sft", ("collect", "data", "optim", "train"))


if __name__ == "__main__":
    main()
