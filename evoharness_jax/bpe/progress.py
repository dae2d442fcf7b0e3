"""Progress: subgoals and their status, oldest first, in one episode.

A subgoal is done because the policy says so (`evidence` is NONE) or because feedback
proved it (`evidence` is the clock of that observation). The two are kept apart, and
only subgoals that the feedback names are proved.
"""

import jax.numpy as jnp
from flax import struct

from evoharness_jax.types import BLOCKED, DONE, DROPPED, EMPTY, NONE, OPEN, C, P

POLICY, OBJECTIVE = 1, 2  # who set the subgoal


@struct.dataclass
class Progress:
    text: jnp.ndarray  # int32[P] text id of the subgoal as written, NONE empty
    key: jnp.ndarray  # int32[P] text id of it normalised: equal keys, same subgoal
    status: jnp.ndarray  # int8[P] EMPTY, OPEN, DONE, BLOCKED or DROPPED
    source: jnp.ndarray  # int8[P] POLICY or OBJECTIVE
    evidence: jnp.ndarray  # int32[P] clock of the observation that proved it, or NONE
    size: jnp.ndarray  # int32[] subgoals held; rows 0..size-1


def empty(subgoals: int = P) -> Progress:
    """Return a plan without subgoals."""
    return Progress(
        text=jnp.full(subgoals, NONE, jnp.int32),
        key=jnp.full(subgoals, NONE, jnp.int32),
        status=jnp.full(subgoals, EMPTY, jnp.int8),
        source=jnp.zeros(subgoals, jnp.int8),
        evidence=jnp.full(subgoals, NONE, jnp.int32),
        size=jnp.zeros((), jnp.int32),
    )


def commit(progress: Progress, text, key, status, source=POLICY):
    """Set the status of each phrase, adding those that are new.

    Args:
        text, key: int32[C] text ids, NONE for no phrase.
        status: int8[C] the status asked for.

    Returns:
        The new Progress, and int32[] subgoals still open that had to give way.
    """
    dropped = jnp.zeros((), jnp.int32)
    for c in range(text.shape[0]):
        progress, lost = _commit_one(progress, text[c], key[c], status[c], source)
        dropped += lost
    return progress, dropped


def _commit_one(progress: Progress, text, key, status, source):
    capacity = progress.text.shape[0]
    rows = jnp.arange(capacity)
    asked = key != NONE
    same = (progress.key == key) & asked
    known = same.any()

    # A full plan gives up its first settled subgoal, or else its oldest one.
    full = progress.size == capacity
    settled = (progress.status == DONE) | (progress.status == DROPPED)
    victim = jnp.where(settled.any(), jnp.argmax(settled), 0)
    evict = asked & ~known & full
    source_row = jnp.where(evict & (rows >= victim), rows + 1, rows).clip(
        0, capacity - 1
    )
    lost = (evict & ~settled.any()).astype(jnp.int32)

    end = jnp.where(full, capacity - 1, progress.size)
    new = (rows == end) & asked & ~known
    # Proof outlives a repeated claim, but not reopening: the world may change back.
    touched = new | same

    def put(field, value):
        return jnp.where(new, value, field[source_row]).astype(field.dtype)

    status = jnp.where(touched, status, progress.status[source_row])
    evidence = put(progress.evidence, NONE)
    evidence = jnp.where(touched & (status != DONE), NONE, evidence)
    return Progress(
        text=put(progress.text, text),
        key=put(progress.key, key),
        status=status.astype(jnp.int8),
        source=put(progress.source, source),
        evidence=evidence,
        size=jnp.minimum(progress.size + (asked & ~known), capacity).astype(jnp.int32),
    ), lost


def prove(progress: Progress, proved, clock) -> Progress:
    """Tick the open or blocked subgoals whose key is in `proved` (int32[C])."""
    named = (progress.key[:, None] == proved[None, :]) & (proved[None, :] != NONE)
    waiting = (progress.status == OPEN) | (progress.status == BLOCKED)
    claimed = (progress.status == DONE) & (progress.evidence == NONE)
    hit = named.any(axis=1) & (waiting | claimed)
    return progress.replace(
        status=jnp.where(hit, DONE, progress.status).astype(jnp.int8),
        evidence=jnp.where(hit, clock, progress.evidence).astype(jnp.int32),
    )


def seeded(text, key) -> Progress:
    """Return a plan that holds the objective as its only subgoal."""
    pad = jnp.full(C, NONE, jnp.int32)
    progress, _ = commit(
        empty(),
        pad.at[0].set(text),
        pad.at[0].set(key),
        jnp.full(C, OPEN, jnp.int8),
        OBJECTIVE,
    )
    return progress
