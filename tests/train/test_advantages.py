import functools

import jax
import numpy as np
import pytest

from evoharness_jax.train.advantages import group_advantages

# Groups 7 (mixed), 3 (all won) and 5 (all failed), shuffled; the last one broke.
GROUP = np.array([7, 3, 5, 7, 3, 5, 7, 3, 7], np.int32)
WON = np.array([1, 1, 0, 0, 1, 0, 0, 1, 1], bool)
ERROR = np.array([0, 0, 0, 0, 0, 0, 0, 0, 1], bool)
REWARD = np.array([10, 10.8, -0.1, 0, 10.5, -1, -1, 10.2, 0], np.float32)
PRICE = np.array([0, 0.8, 0, 0, 0.5, 0, 0, 0.2, 0], np.float32)
# Group 7: 10, 0, -1: mean 3, deviation sqrt((49 + 9 + 16) / 2) = sqrt(37)
MIXED = np.array([7, -3, -4]) / np.sqrt(37)


def compute(jit=False, reward=REWARD, group=GROUP, won=WON, error=ERROR, **options):
    fn = functools.partial(group_advantages, **options)
    fn = jax.jit(fn) if jit else fn
    parts = {"efficiency": PRICE[: len(reward)]}
    advantage, metrics = fn(reward, parts, group, won, error)
    return np.asarray(advantage), metrics


@pytest.mark.parametrize("jit", [False, True])
def test_rule(jit):
    advantage, metrics = compute(jit, scale=2.0)
    np.testing.assert_allclose(advantage[[0, 3, 6]], MIXED, rtol=1e-5)
    # all won: .8, .5, .2 less their mean .5, over the fixed scale 2
    np.testing.assert_allclose(advantage[[1, 4, 7]], [0.15, 0, -0.15], atol=1e-6)
    np.testing.assert_array_equal(advantage[[2, 5, 8]], [0, 0, 0])
    for name in ("all_won", "all_failed", "mixed"):
        assert float(metrics[f"groups/{name}"]) == pytest.approx(1 / 3)
    assert float(metrics["groups/error"]) == pytest.approx(1 / 9)
    assert advantage.dtype == np.float32


def test_plain_blows_up_what_little_differs():
    advantage, _ = compute(uniform="plain")
    np.testing.assert_allclose(advantage[[0, 3, 6]], MIXED, rtol=1e-5)
    # all failed: -.1, -1: centred +-.45, deviation .6364: full size
    np.testing.assert_allclose(advantage[[2, 5]], [0.7071, -0.7071], atol=1e-4)


def test_rows_weigh_an_episode_by_its_turns():
    # rewards 1, 0, 0 over 1, 2, 1 turns: rows 1 0 0 0: mean .25,
    # variance (.5625 + 3 x .0625) / 3 = .25
    three = np.zeros(3, np.int32)
    advantage, _ = compute(
        reward=np.array([1, 0, 0], np.float32),
        group=three,
        won=np.array([True, False, False]),
        error=three.astype(bool),
        turns=np.array([1, 2, 1], np.int32),
        statistic="rows",
    )
    np.testing.assert_allclose(advantage, [1.5, -0.5, -0.5], rtol=1e-5)


def test_equal_rewards_give_exact_zeros():
    # the rounded mean of ten times 10.7 is not 10.7 in float32
    ten = np.zeros(10, np.int32)
    for value in (10.7, 1e3 / 3, 0.1):
        advantage, _ = group_advantages(
            np.full(10, value, np.float32),
            {"efficiency": np.full(10, value, np.float32)},
            ten,
            ten == 0,
            ten != 0,
            uniform="plain",
        )
        np.testing.assert_array_equal(advantage, ten)


def test_one_survivor_and_none():
    # group 0 keeps one episode, group 1 none
    advantage, metrics = compute(
        reward=np.array([10, 0, 0, 0], np.float32),
        group=np.array([0, 0, 1, 1], np.int32),
        won=np.array([True, False, False, False]),
        error=np.array([False, True, True, True]),
        uniform="plain",
    )
    np.testing.assert_array_equal(advantage, np.zeros(4))
    assert float(metrics["groups/all_won"]) == 1.0


def test_options_are_checked():
    for wrong in ({"uniform": "mask"}, {"statistic": "turns"}, {"statistic": "rows"}):
        with pytest.raises(ValueError):
            compute(**wrong)
