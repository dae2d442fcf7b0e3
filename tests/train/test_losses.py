import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evoharness_jax.train import losses

f32 = functools.partial(np.array, dtype=np.float32)


def test_sft_by_hand():
    # -(-1 x 1 + -3 x .5) / 1.5 = 5/3; nan where nothing is weighed does no harm
    logp, weight = f32([[-1, -3, np.nan]]), f32([[1, 0.5, 0]])
    for fn in (losses.sft, jax.jit(losses.sft)):
        loss, metrics = fn(logp, weight)
        assert float(loss) == pytest.approx(5 / 3)
        assert float(metrics["loss/sft"]) == pytest.approx(5 / 3)
        assert float(fn(logp, weight, 3.0)[0]) == pytest.approx(2.5 / 3)
    assert float(losses.sft(logp, weight * 0)[0]) == 0.0


@pytest.mark.parametrize("jit", [False, True])
def test_clipping_by_hand(jit):
    # clip [.8, 1.28], dual 3
    #   ratio  A   objective
    #   1.1    1   1.1         free
    #   1.5    2   2.56        held at 1.28
    #   .5     1   .5          free: the minimum is the pessimistic one
    #   .5    -1   -.8         held at .8
    #   1.5   -1   -1.5        free
    #   5     -1   -3          dual clip
    ratio = f32([[1.1, 1.5, 0.5, 0.5, 1.5, 5]])
    advantage = f32([[1, 2, 1, -1, -1, -1]])
    fn = functools.partial(losses.policy_gradient, kl_coef=0.0, entropy_coef=0.0)
    fn = jax.jit(fn) if jit else fn
    zero, one = np.zeros_like(ratio), np.ones_like(ratio)
    loss, metrics = fn(np.log(ratio), zero, zero, advantage, one)
    assert float(loss) == pytest.approx(-(1.1 + 2.56 + 0.5 - 0.8 - 1.5 - 3) / 6)
    assert float(metrics["policy/clip_fraction"]) == pytest.approx(2 / 6)
    assert float(metrics["policy/ratio"]) == pytest.approx(10.1 / 6)


def test_no_gradient_where_clipped():
    ratio = f32([1.1, 1.5, 0.5, 0.5, 1.5, 5])
    advantage = f32([1, 2, 1, -1, -1, -1])

    def loss(logp):
        zero, one = jnp.zeros(6), jnp.ones(6)
        options = {"count": 1.0, "kl_coef": 0.0, "entropy_coef": 0.0}
        return losses.policy_gradient(logp, zero, zero, advantage, one, **options)[0]

    # free ones: d(-A ratio)/dlogp = -A ratio
    np.testing.assert_allclose(
        jax.grad(loss)(np.log(ratio)), [-1.1, 0, -0.5, 0, 1.5, 0], atol=1e-6
    )


def test_kl_and_entropy_terms_by_hand():
    # d = .5: k1 .5, k2 .125, k3 exp(-.5) - 1 + .5 = .106531
    logp, one = f32([[-1.0]]), f32([[1.0]])
    for kind, value in (("k1", 0.5), ("k2", 0.125), ("k3", 0.106531)):
        loss, metrics = losses.policy_gradient(
            logp,
            None,
            logp - 0.5,
            one * 2,
            one,
            entropy=one * 3,
            kl_kind=kind,
            kl_coef=0.1,
            entropy_coef=0.01,
        )
        assert float(loss) == pytest.approx(-2 + 0.1 * value - 0.03, abs=1e-6)
        assert float(metrics["policy/kl"]) == pytest.approx(0.106531, abs=1e-6)
        assert float(metrics["loss/entropy"]) == pytest.approx(-0.03)


def test_gradient_of_kl_estimators_in_expectation():
    # Three-way softmax at 0: policy 1/3 each; reference 1/2, 1/4, 1/4.
    # KL(p||r) = (ln 2/3 + 2 ln 4/3) / 3 = .056633; its gradient p (d - KL):
    #   (-.405465 - .056633) / 3 = -.154033, (.287682 - .056633) / 3 = .077016
    # gradient of KL(r||p): p - r = -1/6, 1/12, 1/12
    reference = np.log(f32([0.5, 0.25, 0.25]))
    chance = f32([1 / 3, 1 / 3, 1 / 3])  # the samples' share, held fixed

    def loss(theta, kind):
        return losses.policy_gradient(
            jax.nn.log_softmax(theta),
            None,
            reference,
            jnp.zeros(3),
            chance,
            count=1.0,
            kl_kind=kind,
            kl_coef=1.0,
            entropy_coef=0.0,
        )[0]

    def gradient(kind):
        return jax.grad(loss)(jnp.zeros(3), kind)

    np.testing.assert_allclose(gradient("k1"), [0, 0, 0], atol=1e-6)
    np.testing.assert_allclose(
        gradient("k2"), [-0.154033, 0.077016, 0.077016], atol=1e-5
    )
    np.testing.assert_allclose(gradient("k3"), [-1 / 6, 1 / 12, 1 / 12], atol=1e-5)

    def kl(theta):
        logp = jax.nn.log_softmax(theta)
        return jnp.sum(jnp.exp(logp) * (logp - reference))

    np.testing.assert_allclose(gradient("k2"), jax.grad(kl)(jnp.zeros(3)), atol=1e-6)


def test_sampler_cap():
    # exp(old - sampler) = 1.5 and 4, the second held at 2: -(1 x 1.5 + 1 x 2) / 2
    zero, one = f32([0, 0]), f32([1, 1])
    loss, metrics = losses.policy_gradient(
        zero,
        zero,
        zero,
        one,
        one,
        sampler_logp=-np.log(f32([1.5, 4])),
        kl_coef=0.0,
        entropy_coef=0.0,
        sampler_cap=2.0,
    )
    assert float(loss) == pytest.approx(-1.75)
    assert float(metrics["policy/sampler_gap"]) == pytest.approx(np.log(6) / 2)


@pytest.mark.parametrize("jit", [False, True])
def test_the_cap_is_of_each_token_and_not_differentiated(jit):
    # trainer / sampler 1.5, 4 held at 2, .5: the gradient is -A ratio of each, in that
    # weight; a parameter moves the weight of "old = current" too, and must not.
    sampler = -np.log(f32([[1.5, 4, 0.5]]))
    zero, one = np.zeros_like(sampler), np.ones_like(sampler)

    def loss(logp, old):
        return losses.policy_gradient(
            logp,
            old,
            zero,
            one,
            one,
            sampler_logp=sampler,
            kl_coef=0.0,
            entropy_coef=0.0,
            sampler_cap=2.0,
        )

    gradient = jax.value_and_grad(loss, has_aux=True)
    gradient = jax.jit(gradient) if jit else gradient
    for old in (zero, None):
        (value, metrics), slope = gradient(zero, old)
        assert float(value) == pytest.approx(-4 / 3)
        assert float(metrics["policy/sampler_weight"]) == pytest.approx(4 / 3)
        np.testing.assert_allclose(slope, [[-0.5, -2 / 3, -1 / 6]], rtol=1e-5)


@pytest.mark.parametrize("jit", [False, True])
def test_a_constant_divides_the_terms_and_not_the_metrics(jit):
    # ratios 1 and 1, advantages 3 and 1: -(3 + 1) / 8; k1 .5 and .5: .1 x 1 / 8;
    # entropy 2 and 4: -.01 x 6 / 8
    logp, weight = f32([[-1, -1, -1]]), f32([[0, 1, 1]])
    fn = functools.partial(
        losses.policy_gradient,
        kl_kind="k1",
        kl_coef=0.1,
        entropy_coef=0.01,
        constant=8.0,
    )
    fn = jax.jit(fn) if jit else fn
    loss, metrics = fn(
        logp, logp, logp - 0.5, f32([[9, 3, 1]]), weight, entropy=f32([[9, 2, 4]])
    )
    assert float(metrics["loss/policy"]) == pytest.approx(-0.5)
    assert float(metrics["loss/kl"]) == pytest.approx(0.0125)
    assert float(metrics["loss/entropy"]) == pytest.approx(-0.0075)
    assert float(loss) == pytest.approx(-0.495)
    assert float(metrics["policy/ratio"]) == pytest.approx(1.0)
    assert float(metrics["policy/entropy"]) == pytest.approx(3.0)
    # A batch of half the tokens with the same constant is half the loss.
    half, _ = fn(
        logp,
        logp,
        logp - 0.5,
        f32([[9, 3, 1]]),
        f32([[0, 1, 0]]),
        entropy=f32([[9, 2, 4]]),
    )
    assert float(half) == pytest.approx(-3 / 8 + 0.05 / 8 - 0.02 / 8)


def test_k1_in_the_reward_has_the_gradient_of_the_distance():
    # As above: policy 1/3 each, reference 1/2, 1/4, 1/4. Score function times
    # -(reward), reward = -k1 less its mean: the gradient of KL(policy || reference).
    reference = np.log(f32([0.5, 0.25, 0.25]))
    chance = f32([1 / 3, 1 / 3, 1 / 3])
    reward = -(np.log(chance) - reference)

    def loss(theta):
        return losses.policy_gradient(
            jax.nn.log_softmax(theta),
            None,
            None,
            reward - reward.mean(),
            chance,
            count=1.0,
            kl_coef=0.0,
            entropy_coef=0.0,
        )[0]

    np.testing.assert_allclose(
        jax.grad(loss)(jnp.zeros(3)), [-0.154033, 0.077016, 0.077016], atol=1e-5
    )


def test_unweighted_tokens_spoil_nothing():
    bad = f32([0, np.nan])
    weight = f32([1, 0])

    def loss(logp):
        return losses.policy_gradient(
            logp, bad, bad, f32([1, 1]), weight, entropy=bad, sampler_logp=bad
        )[0]

    value, gradient = jax.value_and_grad(loss)(f32([0, 3]))
    assert np.isfinite(value)
    np.testing.assert_allclose(gradient, [-1, 0], atol=1e-6)


def test_options_are_checked():
    one = f32([1])
    for wrong in (
        {"kl_kind": "k4", "entropy_coef": 0.0},
        {"entropy_coef": 0.1},
        {"entropy_coef": 0.0, "objective": "ppo"},
        {"entropy_coef": 0.0, "objective": "gspo"},  # of which segments?
        {"entropy_coef": 0.0, "sampler_cap": 2.0},
    ):
        with pytest.raises(ValueError):
            losses.policy_gradient(one, one, one, one, one, **wrong)
