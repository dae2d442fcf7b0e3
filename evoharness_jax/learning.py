"""What a step learns from its rollout: rows, log-probabilities, updates, numbers.

rollout -> judge -> pack -> score (old, ref) -> update

Each process packs and scores what it played itself; together its rows and those of the
others are the batches of one update.
"""

import time
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from evoharness_jax import build, hosts
from evoharness_jax import mesh as mesh_
from evoharness_jax.judging import anchors, by_turn, judge, outcomes
from evoharness_jax.rollout.loop import Rollout
from evoharness_jax.rollout.summary import summarise
from evoharness_jax.train import packing
from evoharness_jax.train import state as state_
from evoharness_jax.types import META_VERBS, Batch, TrainState, Turns


def learn(
    config: ConfigDict,
    parts: Any,
    state: TrainState,
    played: Rollout,
    step: int,
) -> tuple[TrainState, dict[str, Any]]:
    """Turn a rollout into updates; return the new state and the step's metrics.

    Args:
        parts: of the run, `train_rl.Parts`.
    """
    episodes, turns = outcomes(played), drawn(config, played.turns, step)
    begun = time.monotonic()
    kl, scored = None, None
    if kl_in_reward(config):
        packed, scored = _scored(config, parts, state.params, turns)
        kl = _distance(packed, scored, turns, episodes)
    anchor = None
    if config.advantage.estimator == "gigpo":
        anchor = anchors(played.records, config.rollout.group, episodes.verbs.shape[1])
    _, _, advantage, numbers = judge(config, episodes, step, anchor=anchor, kl=kl)
    packed, scored = _scored(config, parts, state.params, turns, advantage, scored)
    numbers["time/score"] = time.monotonic() - begun
    begun = time.monotonic()
    for batch in scored:
        state, updated = parts.update(state, batch, *parts.model.trained.frozen)
    numbers |= {k: np.asarray(v) for k, v in updated.items()}
    numbers["time/update"] = time.monotonic() - begun
    numbers["data/fill"] = packed.fill
    numbers["data/reuse"] = packed.reuse
    numbers["data/tokens"] = sum(len(row) for row in turns.tokens)
    numbers["env/invalid"] = (~episodes.valid & (episodes.verbs >= 0)).sum(1).mean()
    numbers |= {f"time/{phase}": s for phase, s in played.seconds.items()}
    return state, _averaged(numbers)


def drawn(config: ConfigDict, turns: Turns, step: int) -> Turns:
    """Return the turns to learn from: a share of them, named by (seed, step, process).

    The mean over a random share is that over all, with more noise and less work.
    """
    if config.data.sample == 1:
        return turns
    count = len(turns.tokens)
    rng = np.random.default_rng((config.seed, step, hosts.index()))
    kept = max(1, round(config.data.sample * count))
    chosen = np.sort(rng.permutation(count)[:kept])
    return Turns(
        *(
            [field[i] for i in chosen] if isinstance(field, list) else field[chosen]
            for field in turns
        )
    )


def _scored(config, parts, params, turns: Turns, advantage=None, before=None):
    """Pack the rows of a rollout into updates that hold all that the loss will ask for.

    Args:
        before: the same rows, scored without their advantage.

    Returns:
        (Packed, the updates' batches [accum, rows, L]).
    """
    fields = packing.from_turns(turns, advantage, config.loss.average)
    shared = build.shared_heads(config, parts.model.config)
    heads = packing.shared_heads(turns) if shared else None
    packed = packing.pack(fields, config.data.length, heads=heads)
    batches = [_global(parts, batch) for batch in _batches(config, packed.batch)]
    if before is None:
        return packed, [_score(config, parts, params, batch) for batch in batches]
    return packed, [
        batch._replace(old_logp=known.old_logp, ref_logp=known.ref_logp)
        for batch, known in zip(batches, before, strict=True)
    ]


def _score(config, parts, params, batch):
    """Add the log-probabilities that the loss will ask for, and no others."""
    if config.data.updates > 1 or kl_in_reward(config):
        frozen = parts.model.trained.frozen
        batch = batch._replace(old_logp=parts.score(params, batch, *frozen))
    if config.loss.kl_coef:
        batch = batch._replace(ref_logp=parts.score_base(parts.model.params, batch))
    return batch


def kl_in_reward(config: ConfigDict) -> bool:
    return config.loss.kl_in == "reward" and config.loss.kl_coef != 0


def _distance(packed, scored: list, turns: Turns, episodes) -> np.ndarray:
    """Give log policy - log reference of what was written, by turn, f32[B, T]."""
    gap = [mesh_.mine(b.old_logp) - mesh_.mine(b.ref_logp) for b in scored]
    rows = packing.unpack(packing.gather(gap), packed.index)
    return by_turn(rows, turns, episodes)


def _batches(config, packed: Batch) -> list[Batch]:
    """Cut this process's packed rows into as many batches as all others have."""
    rows = config.data.rows // hosts.count()
    most = max(hosts.gather("rows", len(packed.tokens)))
    size = rows * config.data.updates
    accum = packing.few_shapes(-(-most // size))
    return packing.batches(packing.pad(packed, most), rows, accum)


def _global(parts, batch: Batch) -> Batch:
    """Return the batch of all processes, whose rows stay where they were made."""
    if hosts.count() == 1:
        return batch
    where = state_.microbatch_sharding(parts.model.mesh)
    return Batch(*(jax.make_array_from_process_local_data(where, f) for f in batch))


def _averaged(numbers: dict[str, Any]) -> dict[str, float]:
    """Return the means over the processes, which have equally many episodes."""
    if hosts.count() == 1:
        return numbers
    plain = {name: float(np.asarray(value)) for name, value in numbers.items()}
    every = hosts.gather("numbers", plain)
    return {name: float(np.mean([one[name] for one in every])) for name in plain}


def summed_up(records: list[dict]) -> dict[str, float]:
    """Return what the episodes of a step amount to."""
    summary = summarise(records)
    numbers = {
        "env/success": summary["success"],
        "env/turns": summary["turns"],
        "env/steps": summary["steps"],
        "env/errors": summary["errors"],
        "env/dropped": summary["dropped"],
        "env/tokens": summary["tokens"],
        "calls/total": summary["calls_total"],
    }
    return numbers | {f"calls/{verb}": summary["calls"][verb] for verb in META_VERBS}
