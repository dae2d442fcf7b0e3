"""Every estimator against numbers worked by hand, and what holds for any rewards."""

import functools

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evoharness_jax.train import gigpo
from evoharness_jax.train.advantages import ESTIMATORS, group_advantages

f32 = functools.partial(np.array, dtype=np.float32)
i32 = functools.partial(np.array, dtype=np.int32)
ONE_NUMBER = ("grpo", "rloo", "dr_grpo")  # an episode; gigpo has one a turn

# Groups 4 (mixed), 2 (all won), 9 (all failed), shuffled; the last one broke.
GROUP = i32([4, 2, 9, 4, 2, 9, 4, 4])
WON = np.array([1, 1, 0, 0, 1, 0, 0, 1], bool)
ERROR = np.array([0, 0, 0, 0, 0, 0, 0, 1], bool)
REWARD = f32([10, 10.75, -0.5, 0, 10.25, -1, -1, 0])
PRICE = f32([0.5, 0.75, 0, 0, 0.25, 0, 0, 0])


def compute(estimator, jit=False, reward=REWARD, **options):
    fn = functools.partial(group_advantages, estimator=estimator, **options)
    fn = jax.jit(fn) if jit else fn
    advantage, _ = fn(reward, {"efficiency": PRICE}, GROUP, WON, ERROR)
    return np.asarray(advantage)


@pytest.mark.parametrize("jit", [False, True])
def test_rloo_by_hand(jit):
    # Mixed 10, 0, -1: 10 - (0 - 1) / 2, 0 - (10 - 1) / 2, -1 - (10 + 0) / 2
    # All won, prices .75, .25: each less the other's, over the scale 2. All failed: 0.
    advantage = compute("rloo", jit, scale=2.0)
    np.testing.assert_allclose(
        advantage, [10.5, 0.25, 0, -4.5, -0.25, 0, -6, 0], rtol=1e-6
    )
    # plain: 10.75 - 10.25 and back; -.5 + 1 and back
    advantage = compute("rloo", jit, uniform="plain")
    np.testing.assert_allclose(
        advantage, [10.5, 0.5, 0.5, -4.5, -0.5, -0.5, -6, 0], rtol=1e-6
    )


@pytest.mark.parametrize("jit", [False, True])
def test_dr_grpo_by_hand(jit):
    # Mixed 10, 0, -1: less their mean 3. All won: .75, .25 less .5, over the scale 2.
    advantage = compute("dr_grpo", jit, scale=2.0)
    np.testing.assert_allclose(
        advantage, [7, 0.125, 0, -3, -0.125, 0, -4, 0], rtol=1e-6
    )
    # plain: 10.5 +- .25 and -.75 +- .25
    advantage = compute("dr_grpo", jit, uniform="plain")
    np.testing.assert_allclose(
        advantage, [7, 0.25, 0.25, -3, -0.25, -0.25, -4, 0], rtol=1e-6
    )


@pytest.mark.parametrize("jit", [False, True])
def test_rows_weigh_the_mean_of_each_estimator(jit):
    # Mixed 10, 0, -1 over 1, 2, 1 turns. Mean of the rows 10 0 0 -1: 2.25.
    # Of the others: (0 0 -1) -1/3, (10 -1) 4.5, (10 0 0) 10/3.
    turns = i32([1, 5, 5, 2, 5, 5, 1, 3])
    rows = {"jit": jit, "turns": turns, "statistic": "rows"}
    mixed = [0, 3, 6]
    np.testing.assert_allclose(
        compute("dr_grpo", **rows)[mixed], [7.75, -2.25, -3.25], rtol=1e-6
    )
    np.testing.assert_allclose(
        compute("rloo", **rows)[mixed], [31 / 3, -4.5, -13 / 3], rtol=1e-6
    )


@pytest.mark.parametrize("jit", [False, True])
def test_the_distance_from_the_reference_is_kept_where_all_ended_alike(jit):
    # All won: price + kl = .75 - .25, .25 - .5: .5, -.25: +-.375. All failed: kl alone,
    # -.25 and -.75: +-.25. Over the scale 2.
    kl = f32([0, -0.25, -0.25, 0, -0.5, -0.75, 0, 0])
    parts = {"efficiency": PRICE, "kl": kl}
    fn = functools.partial(group_advantages, scale=2.0)
    fn = jax.jit(fn) if jit else fn
    advantage, _ = fn(REWARD, parts, GROUP, WON, ERROR)
    np.testing.assert_allclose(
        np.asarray(advantage)[[1, 4, 2, 5]], [0.1875, -0.1875, 0.125, -0.125], rtol=1e-6
    )


# GiGPO. Two episodes of a task, three turns at most:
#   0 (won)     places  A  B  C     paid 0, 0, 10
#   1 (failed)  places  A  B  -     paid -1, 0
# and two more of another task, which both won; the second needs a turn more:
#   2           places  D  E  -     paid 0, 8 of which 2 are the price
#   3           places  D  D  E     paid 0, 0, 7 of which 1 is the price
ANCHOR = i32([[0, 1, 2], [0, 1, -1], [3, 4, -1], [3, 3, 4]])
SUCCESS = f32([[0, 0, 10], [0, 0, 0], [0, 6, 0], [0, 0, 6]])
EFFICIENCY = f32([[0, 0, 0], [0, 0, 0], [0, 2, 0], [0, 0, 1]])
INVALID = f32([[0, 0, 0], [-1, 0, 0], [0, 0, 0], [0, 0, 0]])
PAID = {"success": SUCCESS, "efficiency": EFFICIENCY, "invalid": INVALID}


def turns_of(jit=False, **options):
    parts = {name: paid.sum(axis=1) for name, paid in PAID.items()}
    fn = functools.partial(group_advantages, estimator="gigpo", discount=0.5, **options)
    fn = jax.jit(fn) if jit else fn
    advantage, metrics = fn(
        sum(parts.values()),
        parts,
        i32([0, 0, 1, 1]),
        np.array([True, False, True, True]),
        np.zeros(4, bool),
        paid=PAID,
        anchor=ANCHOR,
    )
    return np.asarray(advantage), metrics


def test_returns_by_hand():
    # 1 + .5 x 2 + .25 x 4, 2 + .5 x 4, 4; undiscounted; of the turn alone
    paid = f32([[1, 2, 4]])
    for fn in (gigpo.returns, jax.jit(gigpo.returns, static_argnums=1)):
        np.testing.assert_array_equal(fn(paid, 0.5), [[3, 4, 4]])
        np.testing.assert_array_equal(fn(paid, 1.0), [[7, 6, 4]])
        np.testing.assert_array_equal(fn(paid, 0.0), paid)


@pytest.mark.parametrize("jit", [False, True])
def test_gigpo_by_hand(jit):
    # Episodes 10 and -1: +-5.5, deviation sqrt(60.5): +-.70711. Returns at A: 10 / 4
    # and -1; at B: 10 / 2 and 0; two values are always +-.70711 from their mean. C is
    # alone.
    half = np.sqrt(0.5)
    advantage, metrics = turns_of(jit)
    np.testing.assert_allclose(advantage[0], [2 * half, 2 * half, half], rtol=1e-5)
    np.testing.assert_allclose(advantage[1, :2], [-2 * half, -2 * half], rtol=1e-5)
    # Both of the second task won: prices 2 and 1 are +-.5. At E the price left is 2 and
    # 1: +-.5. At D it is 1, .25 and .5: less their mean .58333.
    np.testing.assert_allclose(
        advantage[2, :2], [0.5 + 1 - 7 / 12, 0.5 + 0.5], rtol=1e-5
    )
    np.testing.assert_allclose(
        advantage[3], [-0.5 + 0.25 - 7 / 12, -0.5 + 0.5 - 7 / 12, -1], rtol=1e-5
    )
    assert advantage.dtype == np.float32
    assert float(metrics["groups/mixed"]) == 0.5


@pytest.mark.parametrize("jit", [False, True])
def test_gigpo_plain_divides_everywhere(jit):
    # Second task, rewards 8 and 7: +-.70711. Returns at D: 4, 1.75, 3.5: less their
    # mean 37/12: 11/12, -16/12, 5/12; their deviation is
    # sqrt((121 + 256 + 25) / 288) = sqrt(201) / 12.
    half, spread = np.sqrt(0.5), np.sqrt(201) / 12
    advantage, _ = turns_of(jit, uniform="plain", step_weight=2.0)
    np.testing.assert_allclose(
        advantage[2, :2], [half + 2 * 11 / 12 / spread, 3 * half], rtol=1e-5
    )
    np.testing.assert_allclose(
        advantage[3, :2],
        [-half - 2 * 16 / 12 / spread, -half + 2 * 5 / 12 / spread],
        atol=1e-5,
    )


def test_without_its_second_comparison_gigpo_is_grpo():
    advantage, _ = turns_of(step_weight=0.0)
    reward = f32([10, -1, 8, 7])
    parts = {"efficiency": f32([0, 0, 2, 1])}
    won, group = np.array([True, False, True, True]), i32([0, 0, 1, 1])
    whole, _ = group_advantages(reward, parts, group, won, group < 0)
    np.testing.assert_array_equal(advantage, np.tile(whole[:, None], 3))


def test_a_task_that_nobody_solved_teaches_no_turn_anything():
    paid = {"efficiency": f32([[0, 0]] * 2), "invalid": f32([[-1, 0], [0, -2]])}
    parts = {name: values.sum(axis=1) for name, values in paid.items()}
    two = i32([0, 0])
    advantage, _ = group_advantages(
        f32([-1, -2]),
        parts,
        two,
        two > 0,
        two > 0,
        estimator="gigpo",
        paid=paid,
        anchor=i32([[0, 1], [0, 1]]),
    )
    np.testing.assert_array_equal(advantage, np.zeros((2, 2)))


def test_an_episode_that_broke_is_nobodys_like():
    two = i32([0, 0])
    paid = {"efficiency": f32([[0, 1], [0, 5]])}
    advantage, _ = group_advantages(
        f32([1, 5]),
        {"efficiency": f32([1, 5])},
        two,
        np.array([True, True]),
        np.array([False, True]),
        estimator="gigpo",
        uniform="plain",
        paid=paid,
        anchor=i32([[0, 1], [0, 1]]),
    )
    np.testing.assert_array_equal(advantage, np.zeros((2, 2)))


def test_choices_are_named():
    with pytest.raises(ValueError, match="advantage.estimator: 'ppo', not one of grpo"):
        compute("ppo")
    with pytest.raises(ValueError, match="advantage.uniform: 'mask', not one of rule"):
        compute("rloo", uniform="mask")
    with pytest.raises(ValueError, match="advantage.statistic: 'turns', not one of ep"):
        compute("dr_grpo", statistic="turns")
    with pytest.raises(ValueError, match="advantage.statistic: 'rows' wants turns"):
        compute("rloo", statistic="rows")
    with pytest.raises(ValueError, match="'gigpo' wants paid and anchor"):
        compute("gigpo")
    with pytest.raises(ValueError, match=r"advantage.discount must lie in \[0, 1\]: 2"):
        compute("gigpo", discount=2.0)
    with pytest.raises(ValueError, match="advantage.scale must be positive: 0"):
        compute("grpo", scale=0.0)


# What holds for any episodes. Rewards are eighths, so that sums are exact.


@st.composite
def episodes(draw, size=8, turns=4):
    count = draw(st.integers(1, size))

    def column(values):
        return draw(st.lists(values, min_size=count, max_size=count))

    eighths = st.integers(-80, 80).map(lambda n: n / 8)
    group = i32(column(st.integers(0, 2)))
    # Places that start alike, and part: two to a turn, none shared between groups.
    where = i32(column(st.lists(st.integers(0, 1), min_size=turns, max_size=turns)))
    anchor = np.arange(turns) * 2 + where
    _, anchor = np.unique(group[:, None] * 2 * turns + anchor, return_inverse=True)
    length = i32(column(st.integers(1, turns)))
    anchor = np.where(
        np.arange(turns) < length[:, None], anchor.reshape(count, turns), -1
    )
    price = f32(column(eighths))
    return {
        "reward": f32(column(eighths)) + price,
        "parts": {"efficiency": price},
        "group": group,
        "won": np.array(column(st.booleans()), bool),
        "error": np.array(column(st.booleans()), bool),
        "turns": length,
        "anchor": anchor.astype(np.int32),
    }


def advantage_of(given, estimator, jit=False, **options):
    fn = functools.partial(group_advantages, estimator=estimator, **options)
    given = dict(given)
    last = np.arange(given["anchor"].shape[1]) == given["turns"][:, None] - 1
    price = given["parts"]["efficiency"]
    paid = {"efficiency": price, "rest": given["reward"] - price}
    given["paid"] = {name: last * value[:, None] for name, value in paid.items()}
    return np.asarray((jax.jit(fn) if jit else fn)(**given)[0])


@pytest.mark.parametrize("uniform", ["rule", "plain"])
@pytest.mark.parametrize("statistic", ["episodes", "rows"])
@pytest.mark.parametrize("estimator", list(ESTIMATORS))
@settings(max_examples=30)
@given(given=episodes(), order=st.randoms(use_true_random=False))
def test_the_order_of_episodes_does_not_matter(
    estimator, statistic, uniform, given, order
):
    options = {"statistic": statistic, "uniform": uniform}
    whole = advantage_of(given, estimator, **options)
    at = list(range(len(whole)))
    order.shuffle(at)
    shuffled = jax.tree.map(lambda field: field[np.array(at)], given)
    # Sums in another order differ in their last bits.
    np.testing.assert_allclose(
        advantage_of(shuffled, estimator, **options), whole[at], rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize("statistic", ["episodes", "rows"])
@pytest.mark.parametrize("estimator", ONE_NUMBER)
@settings(max_examples=30)
@given(given=episodes(), constant=st.integers(-800, 800).map(lambda n: n / 8))
def test_a_constant_added_to_a_group_changes_nothing(
    estimator, statistic, given, constant
):
    options = {"statistic": statistic, "uniform": "plain"}
    before = advantage_of(given, estimator, **options)
    more = given["reward"] + np.where(given["group"] == 1, f32(constant), f32(0))
    after = advantage_of(given | {"reward": more}, estimator, **options)
    np.testing.assert_array_equal(after, before)


@pytest.mark.parametrize("estimator", list(ESTIMATORS))
@settings(max_examples=10)
@given(given=episodes(size=6))
def test_numpy_and_jit_agree_and_errors_get_nothing(estimator, given):
    one, two = (advantage_of(given, estimator, jit) for jit in (False, True))
    np.testing.assert_allclose(one, two, rtol=1e-4, atol=1e-4)
    assert (one[given["error"]] == 0).all()


@settings(max_examples=30)
@given(given=episodes())
def test_leave_one_out_is_the_distance_from_the_mean_made_larger(given):
    # n / (n - 1), so both point the same way
    plain = {"uniform": "plain"}
    rloo, dr_grpo = (advantage_of(given, e, **plain) for e in ("rloo", "dr_grpo"))
    counted = ~given["error"]
    n = (given["group"][:, None] == given["group"])[:, counted].sum(axis=1)
    np.testing.assert_allclose(rloo, dr_grpo * n / np.maximum(n - 1, 1), rtol=1e-5)
