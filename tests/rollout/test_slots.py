"""Rows that share what they begin with, and responses that do not wait for others."""

import jax
import numpy as np
import pytest

from evoharness_jax.models import qwen3
from evoharness_jax.rollout import engine as engine_
from evoharness_jax.rollout import slots
from evoharness_jax.rollout.engine import Engine
from evoharness_jax.rollout.sampling import Sampling
from evoharness_jax.rollout.slots import Asked, Rows

CONFIG = qwen3.CONFIGS["counter-tiny"]
STOPS = tuple(range(2, 42))  # responses of one to ten ids
KEY = jax.random.key(7)
ENGINE = Engine(CONFIG, 8, 512, 12, Sampling(), STOPS, subsets=(1, 4, 8))
# The same without any sharing: each row computes its own prompt, all rows at once.
PLAIN = ENGINE._replace(subsets=())


@pytest.fixture(scope="module")
def params():
    drawn = jax.jit(qwen3.init, static_argnums=1)(jax.random.key(0), CONFIG)
    return jax.tree.map(lambda x: x * 6 if x.ndim > 2 else x * 3, drawn)


def ids(seed, length):
    drawn = np.random.default_rng(seed).integers(50, CONFIG.vocab_size, length)
    return drawn.tolist()


def asked(row, head, tail, uid=None, turn=0):
    return Asked(row, head + tail, row if uid is None else uid, turn, len(head))


def assert_same(one, two):
    assert set(one) == set(two)
    for row in one:
        assert one[row].ids == two[row].ids
        np.testing.assert_allclose(one[row].logp, two[row].logp, rtol=1e-5)
        np.testing.assert_allclose(one[row].raw_logp, two[row].raw_logp, rtol=1e-5)


def test_what_episodes_begin_with_is_computed_once(params):
    system, tail = ids(0, 200), ids(9, 10)
    openings = [ids(1, 60), ids(2, 60)]  # of two groups
    prompts = [
        asked(row, system + openings[row // 4], [*tail, 50 + row]) for row in range(8)
    ]
    rows, plain = Rows(ENGINE), Rows(PLAIN)
    slots.put(rows, params, prompts)
    # One row reads all 271 ids, in blocks of 256 and 16; one more the opening and tail
    # of its group, in 128. Three rows of a group are fed as four, and a block has 16.
    assert rows.computed == 272 + 128 + 2 * 4 * 16
    said = {}
    while rows.busy:
        said |= slots.take(rows, params, KEY)
    assert_same(said, slots.answer(plain, params, KEY, prompts))


def test_a_group_that_begins_later_copies_what_is_there(params):
    system = ids(0, 200)
    rows = Rows(ENGINE)
    slots.answer(rows, params, KEY, [asked(0, system + ids(1, 40), ids(2, 10))])
    before = rows.computed
    new = [asked(row, system + ids(3, 40), [60 + row]) for row in (3, 5, 6)]
    slots.put(rows, params, new)
    assert rows.computed - before == 64 + 4 * 16  # opening; the last ids of the others
    said = slots.take(rows, params, KEY)
    assert_same(said, slots.answer(Rows(PLAIN), params, KEY, new))


def test_tails_are_not_looked_for_in_other_rows(params):
    """Only heads are shared, so only they are worth a comparison with all rows."""
    rows, head = Rows(ENGINE), ids(0, 40)
    slots.answer(rows, params, KEY, [asked(0, head, []), asked(1, head, [])])
    before = rows.computed
    tail = ids(5, 100)
    slots.put(rows, params, [asked(0, head, tail, 0, 1), asked(1, head, tail, 1, 1)])
    assert rows.computed - before == 4 * 128


@pytest.mark.parametrize("ahead", [0, 3])
def test_nobody_waits_and_nothing_changes(params, ahead):
    """Rows whose response is there go on at once, for six turns of their own."""
    head, turns = ids(0, 50), 6

    def prompt(row, turn):
        return asked(row, head, ids(100 * row + turn, 5 + row), row, turn)

    rows, told, turn = Rows(ENGINE), {}, dict.fromkeys(range(8), 0)
    slots.put(rows, params, [prompt(row, 0) for row in range(8)])
    most = 0
    while rows.busy:
        said = slots.take(rows, params, KEY, wait=0.1, ahead=ahead)
        assert said
        most = max(most, max(turn.values()) - min(turn.values()))
        told |= {(row, turn[row]): answer for row, answer in said.items()}
        for row in said:
            turn[row] += 1
        going = [row for row in said if turn[row] < turns]
        slots.put(rows, params, [prompt(row, turn[row]) for row in going])
    assert len(told) == 8 * turns
    assert most >= 2  # turns that the first was ahead of the last
    together = {}
    plain = Rows(PLAIN)
    for t in range(turns):
        said = slots.answer(plain, params, KEY, [prompt(row, t) for row in range(8)])
        together |= {(row, t): answer for row, answer in said.items()}
    assert_same(told, together)


def test_rows_grow_while_responses_are_under_way(params):
    rows = Rows(ENGINE)
    short, long = asked(0, ids(1, 20), []), asked(1, ids(2, 490), [])
    slots.put(rows, params, [short])
    slots.put(rows, params, [long])
    assert rows.cache.k.shape[3] == 512
    said = {}
    while rows.busy:
        said |= slots.take(rows, params, KEY, wait=0.1)
    assert_same(said, slots.answer(Rows(PLAIN), params, KEY, [short, long]))


def test_a_row_answers_one_prompt_at_a_time(params):
    rows = Rows(ENGINE)
    slots.put(rows, params, [asked(2, ids(1, 20), [])])
    with pytest.raises(ValueError, match="row 2 has a response under way"):
        slots.put(rows, params, [asked(2, ids(1, 20), [])])


def test_nothing_to_take(params):
    assert slots.take(Rows(ENGINE), params, KEY) == {}


def test_after_all_programs_are_compiled_none_is(params):
    small = ENGINE._replace(rows=2, context=256, subsets=(1, 2))
    rows = Rows(small)
    slots.compile_all(rows, params, KEY)
    compiled = engine_.compilations()
    for length in (10, 130, 244, 20):
        for cut in (length, length // 2):
            slots.put(rows, params, [asked(0, ids(length, cut), [])])
            slots.put(rows, params, [asked(1, ids(length, cut - 1), [9])])
            while rows.busy:
                slots.take(rows, params, KEY, wait=0.3, ahead=2)
    assert engine_.compilations() == compiled


def test_the_lengths_of_a_cache():
    assert engine_.lengths(ENGINE) == (256, 384, 512)
    assert engine_.lengths(ENGINE._replace(context=96)) == (96,)
    assert engine_.lengths(ENGINE._replace(context=1000)) == (256, 384, 512, 768, 1000)


@pytest.mark.parametrize(
    "one, other, same",
    [([], [], 0), ([1], [2], 0), ([1, 2, 3], [1, 2], 2), ([1, 2, 3], [1, 2, 4, 3], 2)],
)
def test_ids_that_two_lists_begin_with(one, other, same):
    assert slots.shared(one, other) == slots.shared(other, one) == same
