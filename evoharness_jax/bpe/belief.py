"""Belief: what the agent has seen of the environment, in one episode.

A name's row is its id in the lexicon. The agent is row `AGENT`: its place is where it
stands, and what it holds is HELD at `AGENT`. Invariant: Belief holds only what some
observation said; what a later one contradicts is forgotten, not kept beside it.
"""

import jax.numpy as jnp
from flax import struct

from evoharness_jax.types import (
    AGENT,
    NONE,
    PLACE,
    QUERY_NAMES,
    QUERY_UNEXPLORED,
    SAME,
    UNKNOWN_ROLE,
    UNRELATED,
    A,
    Effects,
    K,
    N,
)


@struct.dataclass
class Belief:
    known: jnp.ndarray  # bool[N] ever named in feedback
    role: jnp.ndarray  # int8[N] PLACE, THING or UNKNOWN_ROLE
    attr: jnp.ndarray  # int8[N, A] 1 true, 0 false, -1 unknown
    place: jnp.ndarray  # int16[N] name id of where it is, NONE unknown
    relation: jnp.ndarray  # int8[N] IN, ON, HELD or AT; UNRELATED without a place
    placed_at: jnp.ndarray  # int32[N] clock when `place` last changed, NONE never
    last_seen: jnp.ndarray  # int32[N] clock when last named, NONE never
    explored: jnp.ndarray  # bool[N] a place whose content has been listed
    clock: jnp.ndarray  # int32[] observations absorbed


def empty(names: int = N, attributes: int = A) -> Belief:
    """Return the belief of an agent that has seen nothing."""
    return Belief(
        known=jnp.zeros(names, bool),
        role=jnp.zeros(names, jnp.int8),
        attr=jnp.full((names, attributes), -1, jnp.int8),
        place=jnp.full(names, NONE, jnp.int16),
        relation=jnp.zeros(names, jnp.int8),
        placed_at=jnp.full(names, NONE, jnp.int32),
        last_seen=jnp.full(names, NONE, jnp.int32),
        explored=jnp.zeros(names, bool),
        clock=jnp.zeros((), jnp.int32),
    )


def observe(belief: Belief, effects: Effects) -> Belief:
    """Absorb one turn's feedback."""
    news = effects.place != SAME
    # A full listing of a place contradicts everything else believed to be there, but
    # not the agent, which never reads of itself in one.
    listed_there = effects.listed[belief.place] & (belief.place >= 0)
    others = jnp.arange(belief.place.shape[0]) != AGENT
    gone = listed_there & ~news & others
    place = jnp.where(news, effects.place, jnp.where(gone, NONE, belief.place))
    place = place.astype(jnp.int16)
    relation = jnp.where(news, effects.relation, belief.relation)
    relation = jnp.where(place == NONE, UNRELATED, relation).astype(jnp.int8)
    return Belief(
        known=belief.known | effects.seen,
        role=jnp.where(effects.role != UNKNOWN_ROLE, effects.role, belief.role),
        attr=jnp.where(effects.attr >= 0, effects.attr, belief.attr),
        place=place,
        relation=relation,
        placed_at=jnp.where(place != belief.place, belief.clock, belief.placed_at),
        last_seen=jnp.where(effects.seen, belief.clock, belief.last_seen),
        explored=belief.explored | effects.listed,
        clock=belief.clock + 1,
    )


def track(belief: Belief, query, match) -> tuple[jnp.ndarray, jnp.ndarray]:
    """Select what answers a query, most recently seen first.

    Args:
        query: int8[] QUERY_NAMES, QUERY_UNEXPLORED or QUERY_ALL.
        match: bool[N] names meant by a QUERY_NAMES.

    Returns:
        int16[K] name ids, NONE behind the last; int32[] how many more there are.
    """
    inside = match[belief.place] & (belief.place >= 0)
    by_name = belief.known & (match | inside)
    unexplored = belief.known & (belief.role == PLACE) & ~belief.explored
    # The overview: what has a place, is held, or is in a state worth a word.
    placed = belief.known & (belief.place >= 0)
    chosen = jnp.where(
        query == QUERY_NAMES,
        by_name,
        jnp.where(query == QUERY_UNEXPLORED, unexplored, placed),
    )
    # Named by the query before merely lying there; then recent; then the lower id.
    rank = belief.last_seen + jnp.where(match, belief.clock + 1, 0)
    order = jnp.argsort(jnp.where(chosen, -rank, jnp.iinfo(jnp.int32).max), stable=True)
    count = chosen.sum(dtype=jnp.int32)
    nodes = jnp.where(jnp.arange(K) < count, order[:K], NONE).astype(jnp.int16)
    return nodes, jnp.maximum(count - K, 0)
