"""A draw that copies: its heads do what they were drawn for, before any training."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from evoharness_jax.models import copying, qwen3
from evoharness_jax.models.rope import angles, rope
from evoharness_jax.train import optim

CONFIG = qwen3.CONFIGS["household-tiny"]


@pytest.fixture(scope="module")
def params():
    return jax.jit(copying.init, static_argnums=1)(jax.random.key(0), CONFIG)


def attention(params, x, layer, head):
    """Return [L, L]: how much each place of x[L, D] sees of the ones before it."""
    weights = {name: leaf[layer] for name, leaf in params["layers"].items()}

    def unit(y, scale):
        return y * jax.lax.rsqrt(jnp.mean(y**2, -1, keepdims=True)) * scale

    y = unit(x, weights["attn_norm"])
    group = CONFIG.heads // CONFIG.kv_heads
    q = unit(y @ weights["q"][:, head], weights["q_norm"])
    k = unit(y @ weights["k"][:, head // group], weights["k_norm"])
    places = jnp.arange(len(x))[None]
    turns = angles(places, CONFIG.head_dim, CONFIG.rope_theta)
    q, k = (rope(z[None, None], *turns)[0, 0] for z in (q, k))
    scores = q @ k.T / CONFIG.head_dim**0.5
    seen = jax.nn.softmax(jnp.where(jnp.tril(jnp.ones_like(scores)), scores, -jnp.inf))
    return np.asarray(seen), y


def test_the_first_layer_looks_one_and_two_words_back(params):
    words = jax.random.randint(jax.random.key(1), (300,), 0, CONFIG.vocab_size)
    for head, back in ((0, 1), (1, 2)):
        seen, _ = attention(params, params["embed"][words], 0, head)
        assert np.diagonal(seen, -back)[5:].min() > 0.6


def test_the_second_finds_what_followed_the_present_word(params):
    """Words 0 to 99 twice: at the second 40, attention is on the first 41."""
    words = jnp.tile(jax.random.permutation(jax.random.key(2), 1024)[:100], 2)
    x = params["embed"][words]
    seen, y = attention(params, x, 0, 0)
    weights = params["layers"]
    x += seen @ (y @ weights["v"][0, :, 0]) @ weights["o"][0, 0]
    seen, _ = attention(params, x, 1, 0)
    found = seen[np.arange(100, 199), np.arange(1, 100)]
    assert np.median(found) > 0.3  # of two hundred places


@pytest.mark.slow
def test_it_learns_to_copy_where_a_plain_draw_still_guesses():
    """Things with a number of their own, in random order: the number is a copy."""
    learned = {
        name: trained(draw, steps=160)
        for name, draw in (("copying", copying.init), ("plain", qwen3.init))
    }
    assert learned["copying"] > 0.9
    assert learned["plain"] < 0.4  # one of nine is a tenth


def trained(draw, steps):
    """Return the share of numbers copied rightly at the end of a short training."""
    shape = dataclasses.replace(CONFIG, vocab_size=128)
    params = jax.jit(draw, static_argnums=1)(jax.random.key(0), shape)
    tx = optim.make(optim.constant(5e-4, 20), b2=0.95)

    @jax.jit
    def update(params, state, words):
        def loss(params):
            logits = qwen3.forward(params, shape, words)[:, :-1]
            logp = jax.nn.log_softmax(logits)
            told = jnp.take_along_axis(logp, words[:, 1:, None], -1)
            return -told.mean(), logits.argmax(-1) == words[:, 1:]

        (_, right), grads = jax.value_and_grad(loss, has_aux=True)(params)
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state, right

    state, shares = tx.init(params), []
    for step in range(steps):
        words, copies = numbered(np.random.default_rng(step))
        params, state, right = update(params, state, words)
        shares.append(np.asarray(right)[copies[:, 1:]].mean())
    return np.mean(shares[-10:])


def numbered(rng, rows=16, things=16, length=64):
    """Return words [rows, 3 length], and where a number stands for the second time."""
    words = np.zeros((rows, length, 3), np.int32)
    words[..., 0] = 100 + rng.integers(3, size=(rows, length))
    again = np.zeros((rows, length, 3), bool)
    for row in range(rows):
        which = rng.integers(things, size=length)
        words[row, :, 1] = 10 + rng.permutation(60)[which]
        words[row, :, 2] = rng.integers(1, 10, size=things)[which]
        again[row, :, 2] = [thing in which[:i] for i, thing in enumerate(which)]
    return words.reshape(rows, -1), again.reshape(rows, -1)


def test_everything_else_is_as_of_a_plain_draw(params):
    plain = qwen3.init(jax.random.key(0), CONFIG)
    shapes = jax.tree.map(lambda x: (x.shape, x.dtype), plain)
    assert jax.tree.map(lambda x: (x.shape, x.dtype), params) == shapes
    deviation = 0.68 / 128**0.5
    assert np.std(params["layers"]["gate"]) == pytest.approx(deviation, rel=0.02)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tie_embeddings": False}, "tied embeddings.*config.tie_embeddings=False"),
        ({"qk_norm": False}, "norms of queries and keys.*config.qk_norm=False"),
        ({"width": 64}, "beyond two head dimensions.*config.width=64"),
    ],
)
def test_a_shape_that_cannot_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        copying.init(jax.random.key(0), dataclasses.replace(CONFIG, **changes))
