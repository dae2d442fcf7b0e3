"""Rope frequencies: by hand, and what scaling may and may not change."""

import math

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evoharness_jax.models import rope

LLAMA = rope.Scaling("llama3", 8.0, 8192, low_freq_factor=1.0, high_freq_factor=4.0)
YARN = rope.Scaling("yarn", 4.0, 32768)


def test_plain_by_hand():
    turns, grown = rope.frequencies(4, 100.0)  # 100 ** -(0, 2) / 4
    np.testing.assert_allclose(turns, [1.0, 0.1], rtol=1e-6)
    assert turns.dtype == np.float32 and grown == 1.0


def test_linear_by_hand():
    turns, grown = rope.frequencies(4, 100.0, rope.Scaling("linear", 4.0))
    np.testing.assert_allclose(turns, [0.25, 0.025], rtol=1e-6)
    assert grown == 1.0


def test_yarn_by_hand():
    """E 8, theta 10, trained on 64 places, 2: entries 10 ** -(0, 1, 2, 3) / 4.

    The entry that turns b times in 64 places is 4 ln(64 / (2 pi b)) / ln 10: 4.03 for
    b = 1 and 1.62 for b = 4. Whole entries: a ramp from 1 to 5, so entries 0 and 1 are
    kept, 2 and 3 are a quarter and half of the way to their half.
    """
    scaling = rope.Scaling("yarn", 2.0, 64, beta_fast=4.0)
    turns, grown = rope.frequencies(8, 10.0, scaling)
    plain = 10.0 ** -(np.arange(4) / 4)
    np.testing.assert_allclose(turns, plain * [1, 1, 0.875, 0.75], rtol=1e-6)
    assert grown == pytest.approx(0.1 * math.log(2) + 1)


def test_yarn_ramp_that_is_not_rounded():
    """Unrounded the ramp runs from 1.6238 to 4.0320: 2.4082 wide."""
    scaling = rope.Scaling("yarn", 2.0, 64, beta_fast=4.0, truncate=False)
    turns, _ = rope.frequencies(8, 10.0, scaling)
    way = np.clip((np.arange(4) - 1.6238) / 2.4082, 0, 1)
    plain = 10.0 ** -(np.arange(4) / 4)
    np.testing.assert_allclose(turns, plain * (1 - way / 2), rtol=1e-4)


def test_llama3_by_hand():
    """Waves of 2 pi, 62.8, 628, 6283 places; trained on 1000, bounds 250 and 1000.

    The first two are short: kept. The third lies between: (1000 / 628.3 - 1) / 3 =
    0.1972 of it is kept. The last is long: divided.
    """
    scaling = rope.Scaling(
        "llama3", 2.0, 1000, low_freq_factor=1.0, high_freq_factor=4.0
    )
    turns, _ = rope.frequencies(8, 1e4, scaling)
    want = [1.0, 0.1, 0.01 * (0.1972 + 0.8028 / 2), 0.001 / 2]
    np.testing.assert_allclose(turns, want, rtol=1e-4)


@pytest.mark.parametrize("given_factor, want", [(None, 1.1386294), (1.5, 1.5)])
def test_yarn_grows_cos_and_sin(given_factor, want):
    scaling = rope.Scaling("yarn", 4.0, 32768, attention_factor=given_factor)
    cos, sin = rope.angles(jnp.zeros((1, 3), jnp.int32), 128, 1e6, scaling)
    np.testing.assert_allclose(cos, np.full((1, 1, 3, 64), want), rtol=1e-6)
    assert not sin.any()


@given(
    st.sampled_from([rope.Scaling("linear", 4.0), YARN, LLAMA]),
    st.sampled_from([8, 64, 128]),
    st.sampled_from([1e4, 5e5, 1e6]),
)
def test_scaling_only_slows_and_never_by_more_than_its_factor(scaling, size, theta):
    plain, _ = rope.frequencies(size, theta)
    turns, _ = rope.frequencies(size, theta, scaling)
    assert turns.shape == (size // 2,) and turns.dtype == np.float32
    assert np.all(turns <= plain * (1 + 1e-6))
    assert np.all(turns >= plain / scaling.factor * (1 - 1e-6))
    assert np.all(np.diff(turns) < 0)


@given(st.integers(0, 5000), st.integers(0, 5000))
def test_only_distance_counts(place, shift):
    """The product of two turned heads depends on how far apart they stand."""
    rng = np.random.default_rng(0)
    q, k = (jnp.asarray(rng.normal(size=(1, 1, 1, 8)), jnp.float32) for _ in range(2))

    def product(i, j):
        a, b = (rope.angles(jnp.full((1, 1), n), 8, 1e4) for n in (i, j))
        return float(jnp.sum(rope.rope(q, *a) * rope.rope(k, *b)))

    assert product(place + 3, place) == pytest.approx(
        product(place + shift + 3, place + shift), abs=5e-3
    )


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"kind": "dynamic", "factor": 2.0}, "'dynamic' is not one of"),
        ({"kind": "longrope", "factor": 2.0}, "'longrope' is not one of"),
        ({"kind": "linear", "factor": None}, "'linear' needs factor: None"),
        ({"kind": "linear", "factor": 0.0}, "factor must be positive: 0.0"),
        ({"kind": "linear", "factor": math.nan}, "factor must be positive: nan"),
        ({"kind": "yarn", "factor": 2.0}, "'yarn' needs original_length: None"),
        (
            {
                "kind": "llama3",
                "factor": 2.0,
                "original_length": 9,
                "low_freq_factor": 4.0,
                "high_freq_factor": 4.0,
            },
            "high=4.0 must be more than low=4.0",
        ),
    ],
)
def test_refused_by_name(fields, message):
    with pytest.raises(ValueError, match=message):
        rope.Scaling(**fields)
