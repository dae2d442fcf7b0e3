"""GSPO by hand, and its gradient beside the paper's formula by finite differences."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evoharness_jax.train import losses, packing, policy_gradient

f32 = functools.partial(np.array, dtype=np.float32)
# A packed row: a head of one token, two sequences that continue it, one of its own,
# padding; and a row with one sequence.
SEGMENTS = np.array([[1, 2, 2, 2, 3, 3, 4, 4, 0], [1, 1, 1, 1, 1, 0, 0, 0, 0]])
WEIGHT = f32([[0, 0, 1, 1, 0, 1, 0, 1, 0], [0, 0, 1, 1, 1, 0, 0, 0, 0]])
# log ratios; where nothing is weighed they are not read
LOG = np.log(
    f32([[9, 9, 1.44, 1, 9, 1.5, 9, 0.5, 9], [9, 9, 0.7, 0.7, 0.7, 9, 9, 9, 9]])
)
# The sequences' ratios: sqrt(1.44) = 1.2, 1.5, .5 and .7; clipped to [.8, 1.28]
ADVANTAGE = f32([[0, 0, 2, 2, 0, 1, 0, 3, 0], [0, 0, -1, -1, -1, 0, 0, 0, 0]])
OPTIONS = {"objective": "gspo", "kl_coef": 0.0, "entropy_coef": 0.0}


def gspo(logp, weight=WEIGHT, **options):
    zero = jnp.zeros_like(logp)
    return losses.policy_gradient(
        logp, zero, zero, ADVANTAGE, weight, segments=SEGMENTS, **OPTIONS | options
    )


def each_alike():
    """Return the weights under which each sequence counts once."""
    return WEIGHT * f32([[0, 0, 0.5, 0.5, 0, 1, 0, 1, 0], [1 / 3] * 9])


@pytest.mark.parametrize("jit", [False, True])
def test_gspo_by_hand(jit):
    # Objectives: 2 x 1.2 = 2.4; 1.28, held; 3 x .5 = 1.5, the lower one; -.8, held.
    fn = jax.jit(gspo) if jit else gspo
    loss, metrics = fn(LOG, each_alike())
    assert float(loss) == pytest.approx(-(2.4 + 1.28 + 1.5 - 0.8) / 4, rel=1e-5)
    assert float(metrics["policy/ratio"]) == pytest.approx(3.9 / 4, rel=1e-5)
    assert float(metrics["policy/clip_fraction"]) == pytest.approx(2 / 4)
    # Every token alike: 2, 1, 1 and 3 of them.
    loss, _ = fn(LOG)
    assert float(loss) == pytest.approx(-(4.8 + 1.28 + 1.5 - 2.4) / 7, rel=1e-5)


def test_gspo_has_no_dual_clip():
    # The last sequence at ratio 5 with advantage -1: the paper's loss is 5.
    logp = f32([LOG[0], np.full(9, np.log(5))])
    only_last = each_alike() * f32([[0], [1]])
    loss, _ = gspo(logp, only_last, dual_clip=3.0)
    assert float(loss) == pytest.approx(5.0, rel=1e-5)


@pytest.mark.parametrize("jit", [False, True])
def test_the_gradient_is_that_of_the_formula(jit):
    sequences = [(0, [2, 3]), (0, [5]), (0, [7]), (1, [2, 3, 4])]

    def formula(logp):  # float64, written down once more from the paper
        total = 0.0
        for row, tokens in sequences:
            ratio = np.exp(np.mean([logp[row, t] for t in tokens]))
            a = float(ADVANTAGE[row, tokens[0]])
            total += min(ratio * a, np.clip(ratio, 0.8, 1.28) * a)
        return -total / len(sequences)

    def value(logp):
        return gspo(logp, each_alike())[0]

    gradient = jax.grad(value)
    found = (jax.jit(gradient) if jit else gradient)(LOG)
    where, step = LOG.astype(np.float64), 1e-6
    assert float(value(LOG)) == pytest.approx(formula(where), rel=1e-5)
    slopes = np.zeros_like(where)
    for at in np.ndindex(*where.shape):
        up, down = where.copy(), where.copy()
        up[at] += step
        down[at] -= step
        slopes[at] = (formula(up) - formula(down)) / (2 * step)
    np.testing.assert_allclose(found, slopes, atol=1e-5)
    # By hand: -(2 x 1.2) / 2 / 4 in the first one; the held ones do not move.
    np.testing.assert_allclose(
        found[0, [2, 3, 5, 7]], [-0.3, -0.3, 0, -0.375], atol=1e-5
    )
    assert not found[1].any()


def test_numbers_where_nothing_is_weighed_do_no_harm():
    spoilt = np.where(WEIGHT > 0, LOG, f32(np.nan))
    value, gradient = jax.value_and_grad(lambda x: gspo(x)[0])(spoilt)
    assert float(value) == pytest.approx(float(gspo(LOG)[0]))
    assert np.isfinite(gradient).all()


def test_weights_of_sequences_make_the_mean_over_sequences():
    """What `from_turns` gives, packed, is the mean over rows of their objective."""
    rng = np.random.default_rng(0)
    sizes = [3, 7, 5, 4, 6]
    masks = [np.arange(n) >= 2 for n in sizes]
    logp = [rng.normal(0, 0.3, n).astype(np.float32) for n in sizes]
    worth = rng.normal(size=5).astype(np.float32)
    packed = packing.pack(
        {
            "tokens": [np.ones(n, np.int32) for n in sizes],
            "weight": [(m / m.sum()).astype(np.float32) for m in masks],
            "advantage": [m * a for m, a in zip(masks, worth)],
            "ref_logp": logp,  # carried through the packing
        },
        8,
    ).batch
    loss, _ = losses.policy_gradient(
        packed.ref_logp,
        packed.old_logp,
        None,
        packed.advantage,
        packed.weight,
        segments=packed.segment_ids,
        **OPTIONS,
    )
    ratios = np.exp([row[mask].mean() for row, mask in zip(logp, masks)])
    objectives = np.minimum(ratios * worth, np.clip(ratios, 0.8, 1.28) * worth)
    assert float(loss) == pytest.approx(-objectives.mean(), rel=1e-5)


def test_choices_are_named():
    for name, message in (
        ("objective", "loss.objective: 'ppo', not one of clip, gspo"),
        ("average", "loss.average: 'ppo', not one of tokens, sequences, constant"),
        ("kl_kind", "loss.kl_kind: 'ppo', not one of k1, k2, k3"),
    ):
        with pytest.raises(ValueError, match=message):
            policy_gradient.Settings(**{name: "ppo"})
    with pytest.raises(ValueError, match="loss.average: 'constant' wants one: 0.0"):
        policy_gradient.Settings(average="constant")
