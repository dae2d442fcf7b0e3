"""Progress, rule by rule. A subgoal's text id is its number, its key that plus 100."""

import jax
import numpy as np
import pytest

from evoharness_jax.bpe import progress as progress_
from evoharness_jax.types import BLOCKED, DONE, DROPPED, EMPTY, NONE, OPEN, C, P

commit = jax.jit(progress_.commit)
prove = jax.jit(progress_.prove)


def pad(ids):
    return np.array([*ids, *[NONE] * (C - len(ids))], np.int32)


def said(progress, *goals):
    """Commit (number, status) pairs; returns the plan and what was lost."""
    text = pad([number for number, _ in goals])
    key = pad([number + 100 for number, _ in goals])
    status = np.array([s for _, s in goals] + [0] * (C - len(goals)), np.int8)
    progress, lost = commit(progress, text, key, status)
    return progress, int(lost)


def plan_of(*calls):
    progress, lost = progress_.empty(), 0
    for goals in calls:
        progress, more = said(progress, *goals)
        lost += more
    return progress, lost


def rows(progress):
    progress = jax.device_get(progress)
    n = int(progress.size)
    assert (progress.text[n:] == NONE).all() and (progress.key[n:] == NONE).all()
    assert (progress.status[n:] == EMPTY).all()
    assert (progress.key[:n] == progress.text[:n] + 100).all()
    return [
        (int(t), int(s), int(e))
        for t, s, e in zip(progress.text, progress.status, progress.evidence)
    ][:n]


def proved(progress, *numbers, clock=7):
    return prove(progress, pad([number + 100 for number in numbers]), clock)


def test_an_empty_plan():
    assert rows(progress_.empty()) == []
    assert rows(proved(progress_.empty(), 1)) == []


def test_new_subgoals_are_added_in_order():
    plan, lost = plan_of([(1, OPEN), (2, OPEN)], [(3, BLOCKED)])
    assert rows(plan) == [(1, OPEN, NONE), (2, OPEN, NONE), (3, BLOCKED, NONE)]
    assert lost == 0
    assert jax.device_get(plan.source)[:3].tolist() == [progress_.POLICY] * 3


def test_no_phrase_changes_nothing():
    plan, _ = plan_of([(1, OPEN)], [])
    assert rows(plan) == [(1, OPEN, NONE)]


def test_a_known_subgoal_is_not_added_twice():
    plan, _ = plan_of([(1, OPEN), (2, OPEN), (1, OPEN)], [(2, OPEN)])
    assert rows(plan) == [(1, OPEN, NONE), (2, OPEN, NONE)]


def test_the_first_wording_stays():
    plan, _ = plan_of([(1, OPEN)])
    plan, _ = commit(plan, pad([5]), pad([101]), np.full(C, DONE, np.int8))
    assert rows(plan) == [(1, DONE, NONE)]


def test_committing_one_subgoal_leaves_the_others_open():
    """Unlike the original, where a new subgoal ticks off all that came before."""
    plan, _ = plan_of([(1, OPEN)], [(2, OPEN)])
    assert rows(plan) == [(1, OPEN, NONE), (2, OPEN, NONE)]


@pytest.mark.parametrize("status", [OPEN, DONE, BLOCKED, DROPPED])
def test_a_phrase_sets_the_status_that_it_asks_for(status):
    plan, _ = plan_of([(1, OPEN)], [(1, status)])
    assert rows(plan) == [(1, status, NONE)]
    plan, _ = plan_of([(1, status)])
    assert rows(plan) == [(1, status, NONE)]


def test_claimed_and_proven_are_kept_apart():
    plan, _ = plan_of([(1, DONE), (2, OPEN)])
    assert rows(proved(plan, 2)) == [(1, DONE, NONE), (2, DONE, 7)]


def test_feedback_proves_a_claim():
    plan, _ = plan_of([(1, DONE)])
    assert rows(proved(plan, 1)) == [(1, DONE, 7)]


def test_feedback_proves_a_blocked_subgoal_but_not_a_dropped_one():
    plan, _ = plan_of([(1, BLOCKED), (2, DROPPED)])
    assert rows(proved(plan, 1, 2)) == [(1, DONE, 7), (2, DROPPED, NONE)]


def test_the_first_proof_stays():
    plan, _ = plan_of([(1, OPEN)])
    assert rows(proved(proved(plan, 1), 1, clock=9)) == [(1, DONE, 7)]


def test_only_what_the_feedback_names_is_proved():
    plan, _ = plan_of([(1, OPEN), (2, OPEN)])
    assert rows(proved(plan)) == rows(plan)
    assert rows(proved(plan, 3)) == rows(plan)


def test_proof_outlives_a_claim_but_not_reopening():
    plan = proved(plan_of([(1, OPEN)])[0], 1)
    assert rows(said(plan, (1, DONE))[0]) == [(1, DONE, 7)]
    for status in (OPEN, BLOCKED, DROPPED):
        assert rows(said(plan, (1, status))[0]) == [(1, status, NONE)]
    again = said(plan, (1, OPEN))[0]
    assert rows(proved(again, 1, clock=9)) == [(1, DONE, 9)]


def full(**status):
    goals = [(n, status.get(f"s{n}", OPEN)) for n in range(1, P + 1)]
    return plan_of(goals[:C], goals[C:])


def test_a_full_plan_gives_up_its_first_settled_subgoal():
    plan, lost = full(s3=DROPPED, s5=DONE)
    assert lost == 0
    plan, lost = said(plan, (9, OPEN))
    assert [text for text, _, _ in rows(plan)] == [1, 2, 4, 5, 6, 7, 8, 9]
    assert lost == 0
    plan, lost = said(plan, (10, OPEN))
    assert [text for text, _, _ in rows(plan)] == [1, 2, 4, 6, 7, 8, 9, 10]
    assert lost == 0


def test_with_none_settled_the_oldest_gives_way_and_is_counted():
    plan, lost = said(full(s1=BLOCKED)[0], (9, OPEN), (10, DONE))
    assert [text for text, _, _ in rows(plan)] == [3, 4, 5, 6, 7, 8, 9, 10]
    assert lost == 2
    plan, lost = said(plan, (11, OPEN))  # 10 is settled now
    assert [text for text, _, _ in rows(plan)] == [3, 4, 5, 6, 7, 8, 9, 11]
    assert lost == 0


def test_a_full_plan_still_takes_news_of_what_it_holds():
    plan, lost = said(full()[0], (1, DONE), (8, BLOCKED))
    assert lost == 0
    assert rows(plan)[0] == (1, DONE, NONE) and rows(plan)[7] == (8, BLOCKED, NONE)


def test_eviction_takes_the_proof_of_the_right_row_along():
    plan = proved(full(s1=DROPPED)[0], 8)
    plan, _ = said(plan, (9, OPEN))
    assert rows(plan)[6:] == [(8, DONE, 7), (9, OPEN, NONE)]


def test_a_seeded_plan_holds_the_objective():
    plan = progress_.seeded(4, 104)
    assert rows(plan) == [(4, OPEN, NONE)]
    assert int(plan.source[0]) == progress_.OBJECTIVE
    plan, _ = said(plan, (4, DONE))
    assert int(plan.source[0]) == progress_.OBJECTIVE
