"""Gradients of a layer's matrices in the compute dtype."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evoharness_jax.models import narrow, qwen3

CONFIG = qwen3.Config(
    vocab_size=32,
    width=16,
    layers=2,
    heads=2,
    kv_heads=1,
    head_dim=8,
    mlp=24,
    dtype="bfloat16",
)
TOKENS = jnp.arange(24, dtype=jnp.int32).reshape(2, 12)


@pytest.mark.parametrize("remat", ["none", "full"])
def test_gradients_are_those_of_the_weights_bit_for_bit(remat):
    config = dataclasses.replace(CONFIG, remat=remat)
    params = qwen3.init(jax.random.key(0), config)

    def loss(params):
        return qwen3.logprobs(params, config, TOKENS)[0].sum()

    def of(standing):
        return loss(narrow.lend(params, standing))

    want = jax.jit(jax.grad(loss))(params)
    got = jax.jit(jax.grad(of))(narrow.stand_ins(params, jnp.bfloat16))
    for name in ("q", "k", "v", "o", "gate", "up", "down"):
        assert got["layers"][name].dtype == jnp.bfloat16
        assert want["layers"][name].dtype == jnp.float32
    for name in ("attn_norm", "mlp_norm", "q_norm", "k_norm"):
        assert got["layers"][name].dtype == jnp.float32
    assert got["embed"].dtype == got["head"].dtype == jnp.float32
    jax.tree.map(np.testing.assert_array_equal, got, want)


def test_nobody_reads_a_stand_in():
    params = qwen3.init(jax.random.key(0), CONFIG)
    hidden = partial(qwen3.hidden, config=CONFIG, tokens=TOKENS)
    standing = narrow.stand_ins(params, jnp.bfloat16)
    standing["layers"] |= {"q": jnp.full_like(standing["layers"]["q"], jnp.nan)}
    lent = narrow.lend(params, standing)
    np.testing.assert_array_equal(hidden(lent), hidden(params))
