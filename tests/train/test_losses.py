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


def test_importance_cap():
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
        importance_cap=2.0,
    )
    assert float(loss) == pytest.approx(-1.75)
    assert float(metrics["policy/sampler_gap"]) == pytest.approx(np.log(6) / 2)


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
        {"entropy_coef": 0.0, "importance_cap": 2.0},
    ):
        with pytest.raises(ValueError):
            losses.policy_gradient(one, one, one, one, one, **wrong)
