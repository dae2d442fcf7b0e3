"""Belief, rule by rule, on a world of six names."""

import jax
import numpy as np
import pytest

from evoharness_jax.bpe import belief as belief_
from evoharness_jax.bpe import lexicon as lexicon_
from evoharness_jax.types import (
    AGENT,
    AT,
    HELD,
    IN,
    NONE,
    ON,
    PLACE,
    QUERY_ALL,
    QUERY_NAMES,
    QUERY_UNEXPLORED,
    THING,
    UNRELATED,
    N,
)

DESK, DRAWER, EGG, MUG, PEN = 1, 2, 3, 4, 5
ROLES = {DESK: PLACE, DRAWER: PLACE, EGG: THING, MUG: THING, PEN: THING}

observe = jax.jit(belief_.observe)
track = jax.jit(belief_.track)


def said(seen=(), at=None, places=None, attr=None, listed=()):
    """Effects of feedback: `places` maps a name to (place, relation)."""
    effects = lexicon_.no_effects()
    for name in (*seen, *(places or ())):
        effects.seen[name] = True
        effects.role[name] = ROLES.get(name, 0)
    for name, (place, relation) in (places or {}).items():
        effects.place[name], effects.relation[name] = place, relation
    if at is not None:
        effects.seen[AGENT] = True
        effects.place[AGENT], effects.relation[AGENT] = at, AT
    for (name, column), value in (attr or {}).items():
        effects.attr[name, column] = value
    for place in listed:
        effects.listed[place] = True
    return effects


def after(*feedback):
    belief = belief_.empty()
    for effects in feedback:
        belief = observe(belief, effects)
    return jax.device_get(belief)


def asked(belief, query=QUERY_NAMES, *names):
    match = np.zeros(N, bool)
    match[list(names)] = True
    nodes, left = track(belief, query, match)
    return [int(n) for n in nodes if n != NONE], int(left)


def test_nothing_is_believed_at_first():
    belief = after()
    assert not belief.known.any() and not belief.explored.any()
    assert (belief.place == NONE).all() and (belief.attr == NONE).all()
    assert (belief.placed_at == NONE).all() and (belief.last_seen == NONE).all()
    assert (belief.relation == UNRELATED).all() and belief.clock == 0


def test_feedback_without_news_only_counts_the_clock():
    before = after(said([EGG], places={EGG: (DESK, ON)}))
    belief = jax.device_get(observe(before, said()))
    assert belief.clock == 2
    same = belief.replace(clock=before.clock)
    jax.tree.map(np.testing.assert_array_equal, same, before)


def test_what_is_seen_is_known_with_its_place_and_times():
    belief = after(said(), said([DESK], places={EGG: (DESK, ON)}))
    assert np.flatnonzero(belief.known).tolist() == [DESK, EGG]
    assert (belief.place[EGG], belief.relation[EGG]) == (DESK, ON)
    assert (belief.placed_at[EGG], belief.last_seen[EGG]) == (1, 1)
    assert (belief.placed_at[DESK], belief.last_seen[DESK]) == (NONE, 1)
    assert belief.role[[DESK, EGG, MUG]].tolist() == [PLACE, THING, 0]


def test_time_of_placing_moves_only_with_the_place():
    lying = said(places={EGG: (DESK, ON)})
    belief = after(lying, lying, said(places={EGG: (DESK, IN)}))
    assert (belief.placed_at[EGG], belief.last_seen[EGG]) == (0, 2)
    assert belief.relation[EGG] == IN
    belief = after(lying, lying, said(places={EGG: (AGENT, HELD)}))
    assert belief.placed_at[EGG] == 2


def test_a_role_outlives_feedback_that_does_not_name_one():
    unnamed = said()
    unnamed.seen[EGG] = True
    belief = after(said([EGG]), unnamed)
    assert (belief.role[EGG], belief.last_seen[EGG]) == (THING, 1)


def test_moving_a_thing_by_hand():
    belief = after(
        said(at=DESK, places={EGG: (DESK, ON)}, listed=[DESK]),
        said(places={EGG: (AGENT, HELD)}),
    )
    assert (belief.place[EGG], belief.relation[EGG]) == (AGENT, HELD)
    belief = jax.device_get(observe(belief, said(places={EGG: (DRAWER, IN)})))
    assert (belief.place[EGG], belief.relation[EGG]) == (DRAWER, IN)
    assert (belief.place[AGENT], belief.relation[AGENT]) == (DESK, AT)


def test_a_full_listing_contradicts_what_is_not_in_it():
    both = said(places={EGG: (DESK, ON), MUG: (DESK, ON), PEN: (DRAWER, IN)})
    belief = after(both, said([DESK], places={MUG: (DESK, ON)}, listed=[DESK]))
    assert (belief.place[EGG], belief.relation[EGG]) == (NONE, UNRELATED)
    assert belief.place[[MUG, PEN]].tolist() == [DESK, DRAWER]
    assert belief.placed_at[[EGG, MUG, PEN]].tolist() == [1, 0, 0]
    assert belief.known[EGG] and belief.last_seen[EGG] == 0


def test_a_partial_view_contradicts_nothing():
    both = said(places={EGG: (DESK, ON), MUG: (DESK, ON)})
    belief = after(both, said(places={MUG: (DESK, ON)}))
    assert belief.place[[EGG, MUG]].tolist() == [DESK, DESK]


def test_a_listing_does_not_move_the_agent_that_reads_it():
    belief = after(said(at=DESK), said([DESK], listed=[DESK]))
    assert (belief.place[AGENT], belief.relation[AGENT]) == (DESK, AT)


def test_listed_hands_drop_what_is_not_held():
    holds = said(places={EGG: (AGENT, HELD), MUG: (AGENT, HELD)})
    belief = after(holds, said(places={MUG: (AGENT, HELD)}, listed=[AGENT]))
    assert belief.place[[EGG, MUG]].tolist() == [NONE, AGENT]


def test_a_name_can_be_said_to_be_nowhere():
    belief = after(
        said(places={EGG: (DESK, ON)}), said(places={EGG: (NONE, UNRELATED)})
    )
    assert (belief.place[EGG], belief.relation[EGG]) == (NONE, UNRELATED)


def test_attributes_keep_their_last_news():
    belief = after(said(attr={(DRAWER, 0): 0}), said(attr={(DRAWER, 0): 1}), said())
    assert belief.attr[DRAWER, :2].tolist() == [1, NONE]


def test_only_a_full_listing_explores_a_place():
    belief = after(said([DESK, DRAWER], places={EGG: (DESK, ON)}))
    assert not belief.explored.any()
    belief = after(said([DESK]), said(listed=[DESK]), said([DESK]))
    assert np.flatnonzero(belief.explored).tolist() == [DESK]


def world():
    return after(
        said([DESK, DRAWER], at=DESK),
        said(places={EGG: (DESK, ON), MUG: (DRAWER, IN)}, listed=[DESK]),
        said(places={PEN: (AGENT, HELD)}),
    )


@pytest.mark.parametrize(
    "query, names, want",
    [
        (QUERY_NAMES, [EGG], [EGG]),
        (QUERY_NAMES, [DESK], [DESK, EGG, AGENT]),
        (QUERY_NAMES, [DRAWER, EGG], [EGG, DRAWER, MUG]),
        (QUERY_NAMES, [AGENT], [AGENT, PEN]),
        (QUERY_NAMES, [9], []),
        (QUERY_NAMES, [], []),
        (QUERY_UNEXPLORED, [], [DRAWER]),
        (QUERY_ALL, [], [PEN, EGG, MUG, AGENT]),
    ],
)
def test_track(query, names, want):
    """The named before what lies there, then the recent, then the lower id."""
    assert asked(world(), query, *names) == (want, 0)


def test_track_of_an_empty_belief():
    for query in (QUERY_NAMES, QUERY_UNEXPLORED, QUERY_ALL):
        assert asked(after(), query, EGG) == ([], 0)


def test_track_counts_what_it_leaves_out():
    many = said(places={name: (DESK, ON) for name in range(10, 21)})
    assert asked(after(many), QUERY_ALL) == (list(range(10, 18)), 3)
    assert asked(after(many, said([19])), QUERY_NAMES, DESK) == (
        [19, *range(10, 17)],
        3,
    )


def test_the_last_name_is_not_taken_for_nowhere():
    """NONE is -1, which indexes the last row: it must not count as a place."""
    effects = said(places={EGG: (NONE, UNRELATED), MUG: (N - 1, ON)})
    effects.seen[N - 1] = True
    belief = after(effects)
    assert asked(belief, QUERY_NAMES, N - 1) == ([N - 1, MUG], 0)
    belief = jax.device_get(observe(belief, said(listed=[N - 1])))
    assert belief.place[[EGG, MUG]].tolist() == [NONE, NONE]
    assert belief.placed_at[EGG] == NONE
