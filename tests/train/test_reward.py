import jax
import numpy as np
import pytest

from evoharness_jax.train import reward
from evoharness_jax.types import COMMIT, ENV, NULL, TRACK

INC, DEC, JUMP, SEE, PLAN, NOTHING = 0, 1, 2, 3, 4, -1  # text ids
VERB = {SEE: TRACK, PLAN: COMMIT}


def outcomes(*episodes, won, invalid=(), error=None, tokens=0, width=5):
    """Episodes as lists of text ids; `invalid`: (episode, turn) pairs."""
    count = len(episodes)
    verbs = np.full((count, width), NULL, np.int8)
    actions = np.full((count, width), NOTHING, np.int32)
    valid = np.zeros((count, width), bool)
    for i, ids in enumerate(episodes):
        verbs[i, : len(ids)] = [VERB.get(a, ENV) for a in ids]
        actions[i, : len(ids)] = ids
        valid[i, : len(ids)] = True
    for at in invalid:
        valid[at] = False
    turns = np.array([len(ids) for ids in episodes], np.int32)
    return reward.Outcomes(
        won=np.array(won),
        error=np.zeros(count, bool) if error is None else np.array(error),
        turns=turns,
        env_steps=np.sum((verbs == ENV) & valid, axis=1).astype(np.int32),
        tokens=np.full(count, tokens, np.int32),
        verbs=verbs,
        actions=actions,
        valid=valid,
        executed=valid,
        leading=actions,  # every word here is its own action
    )


def jitted(episodes, weights, step, **budget):
    def total(episodes):
        return reward.total(episodes, reward.PRICES, weights, step, **budget)

    return jax.jit(total)(episodes)


def test_anneal_is_one_at_first_and_zero_from_its_end():
    assert [float(reward.anneal(u, 4)) for u in (0, 4, 99)] == [1.0, 0.0, 0.0]
    # U = 150: 1, .957, .835, .604, .5, .25, 0 at these updates
    got = [float(reward.anneal(u, 150)) for u in (0, 20, 40, 65, 75, 100, 150)]
    assert got == pytest.approx([1, 0.957, 0.835, 0.604, 0.5, 0.25, 0], abs=6e-4)


def test_spam_counts_repeats():
    # inc inc inc dec: two. inc nothing inc: none. nothing nothing: none.
    actions = np.array([[0, 0, 0, 1], [0, -1, 0, 1], [-1, -1, 0, 1]], np.int32)
    np.testing.assert_array_equal(reward.spam(actions), [2, 0, 0])


def test_coverage_is_of_the_four_meta_verbs_that_ran():
    # commit track inc: 2 of 4; a refused commit counts for nothing: 1 of 4
    verbs = np.array([[COMMIT, TRACK, ENV, NULL], [COMMIT, TRACK, TRACK, ENV]], np.int8)
    ran = np.array([[1, 1, 1, 0], [0, 1, 1, 1]], bool)
    np.testing.assert_array_equal(reward.coverage(verbs, ran), [0.5, 0.25])


def test_verb_ratio_is_distinct_words_over_actions():
    # inc inc dec track: 3 words in 4 actions. An empty action is not one: 2 of 2.
    actions = np.array([[0, 0, 1, 3], [0, -1, 3, -1], [-1, -1, -1, -1]], np.int32)
    np.testing.assert_array_equal(reward.verb_ratio(actions, actions), [0.75, 1.0, 0.0])


def test_reference_bonus():
    # T = 10, U = 4. Won in 2 with 1 invalid: efficiency 1 - 2/10 = .8,
    # diversity 1 x 2/2, invalid -.1: 1.7 beside the 10. Lost: efficiency 0.
    weights = reward.Weights(diversity=1, diversity_kind="verb_ratio", anneal_steps=4)
    episodes = outcomes(
        [DEC, INC], [DEC, INC], won=[True, False], invalid=[(0, 0), (1, 0)]
    )
    total, parts = reward.total(episodes, reward.PRICES, weights, 0, step_budget=10)
    np.testing.assert_allclose(parts["efficiency"], [0.8, 0])
    np.testing.assert_allclose(total, [11.7, 0.9], rtol=1e-6)
    assert total.dtype == np.float32
    # at the end of the annealing the bonus is gone
    total, _ = reward.total(episodes, reward.PRICES, weights, 4, step_budget=10)
    np.testing.assert_allclose(total, [10.7, -0.1], rtol=1e-5)


@pytest.mark.parametrize("run", [reward.total, None], ids=["numpy", "jit"])
def test_counter_episodes(run):
    weights = reward.Weights(diversity=0.0)
    episodes = outcomes(
        [INC],  # 10 + (3-1)/3
        [SEE, INC],  # 10 + (3-2)/3
        [DEC, INC, INC],  # lost, one repeat: -.1
        [JUMP, INC, INC],  # won at full budget, one repeat, one invalid: 10 - .2
        won=[True, True, False, True],
        invalid=[(3, 0)],
    )
    if run:
        total, parts = run(episodes, reward.PRICES, weights, 0, step_budget=3)
    else:
        total, parts = jitted(episodes, weights, 0, step_budget=3)
    np.testing.assert_allclose(total, [10 + 2 / 3, 10 + 1 / 3, -0.1, 9.8], rtol=1e-6)
    np.testing.assert_allclose(sum(parts.values()), total)
    assert set(parts) == {"success", "efficiency", "diversity", "spam", "invalid"}


def test_spam_is_capped():
    weights = reward.Weights(diversity=0.0, spam_cap=2)
    episodes = outcomes([INC] * 5, won=[False])  # four repeats, two paid for
    _, parts = reward.total(episodes, reward.PRICES, weights, 0, step_budget=5)
    np.testing.assert_allclose(parts["spam"], [-0.2])


def test_prices_and_tokens_share_the_cost():
    # track costs half a step: (.5 + 1) / 10 x .5 + 300 / 1000 x .5 = .075 + .15
    weights = reward.Weights(share_steps=0.5, share_tokens=0.5)
    episodes = outcomes([SEE, INC], won=[True], tokens=300)
    spent = reward.cost(episodes, [1, 0.5, 1, 1, 1], weights, 10, token_budget=1000)
    np.testing.assert_allclose(spent, [0.225])
    with pytest.raises(ValueError, match="token_budget"):
        reward.cost(episodes, reward.PRICES, weights, 10)


def test_an_error_earns_nothing():
    episodes = outcomes([INC, INC], won=[True], error=[True])
    total, parts = reward.total(
        episodes, reward.PRICES, reward.REFERENCE, 0, step_budget=3
    )
    assert total == [0] and all(part == [0] for part in parts.values())


@pytest.mark.parametrize("run", [lambda f: f, jax.jit], ids=["numpy", "jit"])
def test_terms_are_spread_over_the_turns_that_earned_them(run):
    # Episode 0 repeats at turns 1, 2 and 3, two of them paid for, and is invalid at
    # turn 2; it wins at turn 3. Episode 1 is over after a turn. Episode 2 broke.
    weights = reward.Weights(spam_cap=2)
    episodes = outcomes(
        [INC] * 4,
        [DEC],
        [INC, INC],
        won=[True, False, True],
        invalid=[(0, 2), (2, 0)],
        error=[False, False, True],
    )
    _, parts = reward.total(episodes, reward.PRICES, weights, 0, step_budget=10)

    def spread(episodes, parts):
        return reward.by_turn(episodes, parts, weights)

    paid = run(spread)(episodes, parts)
    assert set(paid) == set(parts)
    nothing = [0] * 5
    rows = {
        "success": [0, 0, 0, 10, 0],
        "efficiency": [0, 0, 0, 0.6, 0],
        "spam": [0, -0.1, -0.1, 0, 0],
        "invalid": [0, 0, -0.1, 0, 0],
    }
    for name, row in rows.items():
        np.testing.assert_allclose(paid[name], [row, nothing, nothing], atol=1e-6)
    for name, part in parts.items():
        np.testing.assert_allclose(paid[name].sum(axis=1), part, atol=1e-6)


def test_the_distance_from_the_reference_is_charged():
    # .1 x 3 nats and .1 x -1 nat
    total, parts = np.array([10, 0], np.float32), {"success": np.array([10, 0])}
    kl = np.array([3, -1], np.float32)
    charged, more = reward.charge_kl(total, parts, kl, 0.1)
    np.testing.assert_allclose(charged, [9.7, 0.1], rtol=1e-6)
    np.testing.assert_allclose(more["kl"], [-0.3, 0.1], rtol=1e-6)
    assert list(parts) == ["success"] and charged.dtype == np.float32


def test_settings_are_checked():
    with pytest.raises(ValueError, match="diversity_kind"):
        reward.Weights(diversity_kind="entropy")
    with pytest.raises(ValueError, match="anneal_steps"):
        reward.Weights(anneal_steps=0)
