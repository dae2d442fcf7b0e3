"""Scores on a mesh, where each device has a part of the vocabulary, and on one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evoharness_jax import mesh as meshes
from evoharness_jax.models import scores

needs8 = pytest.mark.skipif(jax.device_count() < 8, reason="eight devices")


def test_scores_of_three_words():
    """Logits log 1, log 2, log 5: p = 1/8, 1/4, 5/8; at temperature 1/2 squared."""
    h = jnp.ones((1, 1, 1))
    head = jnp.log(jnp.array([[1.0], [2.0], [5.0]]))
    target = jnp.array([[1]])
    logp, entropy = scores.scores(h, head, target, 1)
    np.testing.assert_allclose(logp, [[-1.386294]], atol=1e-6)
    np.testing.assert_allclose(entropy, [[0.900256]], atol=1e-6)
    logp, _ = scores.scores(h, head, target, 1, temperature=0.5)
    np.testing.assert_allclose(logp, [[np.log(4 / 30)]], atol=1e-6)


@needs8
@pytest.mark.parametrize("fsdp, tp, words", [(8, 1, 64), (4, 2, 61), (2, 4, 3)])
def test_a_mesh_gives_the_scores_and_gradients_of_one_device(fsdp, tp, words):
    """61 and 3 words do not divide over eight devices: the last parts are filled up."""
    rng = np.random.default_rng(0)
    h = rng.normal(size=(8, 12, 16)).astype(np.float32)
    head = rng.normal(size=(words, 16)).astype(np.float32)
    target = rng.integers(0, words, (8, 12)).astype(np.int32)
    weigh = rng.normal(size=(2, 8, 12)).astype(np.float32)

    def loss(h, head):
        both = scores.scores(h, head, target, 4, 0.7)
        return sum(jnp.sum(x * w) for x, w in zip(both, weigh)), both

    step = jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)
    want = jax.jit(step)(h, head)
    with jax.set_mesh(meshes.make(fsdp, tp)):
        got = jax.jit(step)(h, head)
        only_h = jax.jit(jax.grad(lambda h: loss(h, head)[0]))(h)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5), got, want)
    np.testing.assert_allclose(only_h, want[1][0], atol=2e-5)


@needs8
def test_a_frozen_head_costs_no_gradient():
    """The head's gradient would be the one product of [B, L, V] and [B, L, D]."""
    h, target = jnp.ones((8, 4, 16)), jnp.zeros((8, 4), jnp.int32)
    head = jnp.ones((64, 16))

    def program(argnums):
        grad = jax.grad(
            lambda h, head: scores.scores(h, head, target, 4)[0].sum(), argnums
        )
        with jax.set_mesh(meshes.make(8, 1)):
            return str(jax.make_jaxpr(grad)(h, head))

    assert program((0, 1)).count("dot_general") == 4
    assert program(0).count("dot_general") == 3
