"""Experience: a read-only bank of lessons, and what an episode would add to it.

The bank is an argument, like params: nothing in a rollout changes it. What happens to
its entries (shown, and then won or lost) and new notes are collected as Evidence and
merged between rollouts (`evoharness_jax.experience`).
"""

import jax
import jax.numpy as jnp
from flax import struct

from evoharness_jax.types import NONE, K, M

SKILL, MISTAKE, HINT, INSIGHT = 1, 2, 3, 4
SECTIONS = ("", "skill", "mistake", "hint", "insight")  # indexed by section


@struct.dataclass
class Bank:
    alive: jnp.ndarray  # bool[X] the slot holds an entry
    section: jnp.ndarray  # int8[X] SKILL, MISTAKE, HINT or INSIGHT
    uses: jnp.ndarray  # int32[X] episodes in which the entry was recalled
    wins: jnp.ndarray  # int32[X] how many of those were won


@struct.dataclass
class Evidence:
    notes: jnp.ndarray  # int32[M] text ids, NONE behind the last
    num_notes: jnp.ndarray  # int32[]
    uses: jnp.ndarray  # int32[X] 1: recalled in this episode
    wins: jnp.ndarray  # int32[X] 1: recalled in this episode, which was won


def empty_bank(capacity: int) -> Bank:
    """Return a bank without entries."""
    zeros = jnp.zeros(capacity, jnp.int32)
    return Bank(jnp.zeros(capacity, bool), jnp.zeros(capacity, jnp.int8), zeros, zeros)


def empty_evidence(capacity: int, notes: int = M) -> Evidence:
    """Return the evidence of an episode in which nothing was learned yet."""
    zeros = jnp.zeros(capacity, jnp.int32)
    none = jnp.full(notes, NONE, jnp.int32)
    return Evidence(none, jnp.zeros((), jnp.int32), zeros, zeros)


def recall(bank: Bank, overlap, top_k: int) -> jnp.ndarray:
    """Select the entries that fit a query best.

    An entry's rank is its text overlap times the mean of the Beta(1 + wins,
    1 + losses) posterior of winning after it was shown, so that equal matches are
    ordered by what they were worth.

    Args:
        overlap: f32[X] fit of each entry's words to the query, 0 not at all.
        top_k: how many to return, at most K.

    Returns:
        int16[K] slots, best first, NONE behind the last.
    """
    utility = (bank.wins + 1.0) / (bank.uses + 2.0)
    rank = jnp.where(bank.alive, overlap * utility, 0.0)
    count = min(K, top_k, rank.shape[0])
    best, slots = jax.lax.top_k(rank, count)
    slots = jnp.where(best > 0, slots, NONE).astype(jnp.int16)
    return jnp.pad(slots, (0, K - count), constant_values=NONE)


def use(evidence: Evidence, slots) -> Evidence:
    """Mark the recalled slots (int16[K]) as used in this episode."""
    index = jnp.where(slots >= 0, slots, evidence.uses.shape[0]).astype(jnp.int32)
    return evidence.replace(uses=evidence.uses.at[index].set(1, mode="drop"))


def note(evidence: Evidence, text) -> tuple[Evidence, jnp.ndarray]:
    """Keep an insight (a text id) for consolidation, once.

    Returns:
        The new Evidence, and int32[] 1 if it did not fit.
    """
    known = (evidence.notes == text).any()
    full = evidence.num_notes >= evidence.notes.shape[0]
    add = ~known & ~full
    here = (jnp.arange(evidence.notes.shape[0]) == evidence.num_notes) & add
    return evidence.replace(
        notes=jnp.where(here, text, evidence.notes).astype(jnp.int32),
        num_notes=evidence.num_notes + add.astype(jnp.int32),
    ), (~known & full).astype(jnp.int32)


def settle(evidence: Evidence, won) -> Evidence:
    """Credit the used entries with the episode's outcome."""
    return evidence.replace(wins=evidence.uses * won.astype(jnp.int32))
