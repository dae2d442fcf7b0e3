"""Drawing tokens: what is kept, what it is scored as, and which key draws it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evoharness_jax.rollout.sampling import Sampling, sample, turn_keys

# Probabilities 0.5, 0.25, 0.125, 0.125.
LOGITS = jnp.log(jnp.array([0.5, 0.25, 0.125, 0.125]))


def draw(sampling, logits=LOGITS, rows=512, index=0):
    keys = turn_keys(jax.random.key(0), jnp.arange(rows), jnp.zeros(rows, jnp.int32))
    logits = jnp.broadcast_to(logits, (rows, logits.shape[-1]))
    out = jax.jit(sample, static_argnums=0)(
        sampling, logits, keys, jnp.full(rows, index)
    )
    return jax.device_get(out)


@pytest.mark.parametrize(
    "sampling, kept",
    [
        (Sampling(), [0.5, 0.25, 0.125, 0.125]),
        (Sampling(top_k=1), [1, 0, 0, 0]),
        (Sampling(top_k=2), [2 / 3, 1 / 3, 0, 0]),
        (Sampling(top_k=99), [0.5, 0.25, 0.125, 0.125]),
        # The most likely that together reach the mass.
        (Sampling(top_p=0.4), [1, 0, 0, 0]),
        (Sampling(top_p=0.6), [2 / 3, 1 / 3, 0, 0]),
        (Sampling(top_p=1e-9), [1, 0, 0, 0]),
        # Equals are not told apart.
        (Sampling(top_p=0.8), [0.5, 0.25, 0.125, 0.125]),
        # Of 2/3 and 1/3, the first alone reaches 0.6.
        (Sampling(top_k=2, top_p=0.6), [1, 0, 0, 0]),
        # Squared and normalised: 16/22, 4/22, 1/22, 1/22.
        (Sampling(temperature=0.5), [16 / 22, 4 / 22, 1 / 22, 1 / 22]),
    ],
)
def test_tokens_are_drawn_from_and_scored_under_what_is_kept(sampling, kept):
    ids, logp, raw = draw(sampling)
    np.testing.assert_allclose(np.exp(logp), np.array(kept)[ids], atol=1e-6)
    np.testing.assert_allclose(raw, LOGITS[ids], atol=1e-6)
    share = np.bincount(ids, minlength=4) / len(ids)
    np.testing.assert_allclose(share, kept, atol=0.08)
    assert not share[np.array(kept) == 0].any()


def test_greedy_takes_the_most_likely_for_certain():
    ids, logp, raw = draw(Sampling(temperature=0.0), rows=3)
    assert ids.tolist() == [0, 0, 0] and logp.tolist() == [0.0, 0.0, 0.0]
    np.testing.assert_allclose(np.exp(raw), 0.5, atol=1e-6)
    assert ids.dtype == np.int32 and logp.dtype == raw.dtype == np.float32


def test_a_key_belongs_to_run_episode_and_turn():
    def key(run, episode, turn):
        keys = turn_keys(jax.random.key(run), jnp.array([episode]), jnp.array([turn]))
        return tuple(jax.random.key_data(keys)[0].tolist())

    some = [(0, 1, 2), (0, 2, 1), (0, 1, 3), (1, 1, 2), (0, 1 << 30, 0)]
    assert len({key(*names) for names in some}) == len(some)
    assert key(0, 1, 2) == key(0, 1, 2)


def test_a_draw_depends_on_its_place_in_the_response_and_not_on_its_row():
    keys = turn_keys(jax.random.key(0), jnp.arange(64), jnp.zeros(64, jnp.int32))
    logits = jnp.broadcast_to(LOGITS, (64, 4))
    first = sample(Sampling(), logits, keys, jnp.zeros(64, jnp.int32))[0]
    assert (first != sample(Sampling(), logits, keys, jnp.ones(64, jnp.int32))[0]).any()
    back = sample(Sampling(), logits, keys[::-1], jnp.zeros(64, jnp.int32))[0]
    np.testing.assert_array_equal(back[::-1], first)


@pytest.mark.parametrize(
    "sampling, message",
    [
        (Sampling(temperature=-1.0), "temperature must not be negative: -1.0"),
        (Sampling(top_k=-1), "top_k must not be negative: -1"),
        (Sampling(top_p=0.0), r"top_p must lie in \(0, 1\]: 0.0"),
        (Sampling(top_p=1.5), r"top_p must lie in \(0, 1\]: 1.5"),
    ],
)
def test_settings_out_of_range_are_named(sampling, message):
    with pytest.raises(ValueError, match=message):
        sampling.check()


def test_settings_in_range_pass():
    Sampling().check()
    Sampling(0.0, 5, 0.9).check()
