"""Blocked attention against the plain one: values and gradients, packed and meshed."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evoharness_jax import mesh as meshes
from evoharness_jax.models import attention


def packed(rows, length, seed=0):
    """Segment ids of rows that end in padding; blocks are crossed anywhere."""
    rng = np.random.default_rng(seed)
    ids = np.zeros((rows, length), np.int32)
    for row in ids:
        at, segment = 0, 1
        while at + (size := int(rng.integers(3, 110))) <= length:
            row[at : at + size] = segment
            at, segment = at + size, segment + 1
    return jnp.asarray(ids)


def problem(rows, length, segments, heads=4, kv_heads=2, dtype="float32"):
    rng = np.random.default_rng(1)

    def draw(heads):
        return jnp.asarray(rng.normal(size=(rows, heads, length, 8)), dtype)

    order = jnp.arange(length, dtype=jnp.int32)[None]
    mask = attention.Mask(order, order, segments, segments)
    upstream = draw(heads)
    if segments is not None:  # nobody asks for the gradient of padding
        upstream *= (segments != 0)[:, None, :, None].astype(dtype)
    return (draw(heads), draw(kv_heads), draw(kv_heads)), mask, upstream


def results(name, arrays, mask, upstream):
    def f(arrays):
        y = attention.attend(*arrays, mask, name)
        return jnp.sum((y * upstream).astype(jnp.float32)), y * (upstream != 0)

    (_, y), grads = jax.jit(jax.value_and_grad(f, has_aux=True))(arrays)
    return y, *grads


# 200 and 130 do not fill their last block; 64 is one block.
@pytest.mark.parametrize("length", [64, 130, 200, 256])
@pytest.mark.parametrize("whole", [False, True])
def test_blocks_agree_with_xla(length, whole):
    args = problem(3, length, None if whole else packed(3, length))
    for got, want in zip(results("blocks", *args), results("xla", *args)):
        np.testing.assert_allclose(got, want, atol=1e-5)


def test_blocks_in_bfloat16():
    """Rounding costs no more than it does in `xla`, beside float32 on the same numbers.

    The two round in other places, so they need not agree with one another.
    """
    arrays, mask, upstream = problem(2, 200, packed(2, 200), dtype="bfloat16")
    exact, up = jax.tree.map(lambda x: x.astype(jnp.float32), (arrays, upstream))
    truth = results("xla", exact, mask, up)
    blocks, xla = (results(name, arrays, mask, upstream) for name in ("blocks", "xla"))
    for got, other, want in zip(blocks, xla, truth):
        assert got.dtype == jnp.bfloat16
        error, allowed = (
            np.abs(x.astype(jnp.float32) - want).max() for x in (got, other)
        )
        assert error <= max(allowed, 0.05)


def test_blocks_read_a_cache():
    """Queries 40 .. 119 of a row whose cache has room for 150 keys."""
    (q, k, v), _, _ = problem(2, 150, None)
    q_order = jnp.arange(40, 120, dtype=jnp.int32)[None]
    mask = attention.Mask(q_order, jnp.arange(150, dtype=jnp.int32)[None])
    got, want = (
        attention.attend(q[:, :, :80], k, v, mask, name) for name in ("blocks", "xla")
    )
    np.testing.assert_allclose(got, want, atol=1e-5)


def test_blocks_that_no_query_sees_are_skipped():
    ids = jnp.repeat(jnp.array([1, 2, 0], jnp.int32), 64)[None]
    order = jnp.arange(192, dtype=jnp.int32)[None]
    side = attention._cut(order, 0), attention._cut(ids, 0)
    pairs, count = attention._live(side, side)
    assert pairs[:count].tolist() == [[0, 0, 0], [0, 1, 1], [0, 2, 2]]


@pytest.mark.parametrize("fsdp,tp", [(8, 1), (4, 2)])
def test_blocks_on_a_mesh(fsdp, tp):
    args = problem(8, 130, packed(8, 130))
    want = results("blocks", *args)
    with jax.set_mesh(meshes.make(fsdp, tp)):
        got = results("blocks", *args)
    for a, b in zip(got, want):
        np.testing.assert_allclose(a, b, atol=1e-5)
