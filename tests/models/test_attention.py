"""Every attention against the plain one: values and gradients, packed and meshed.

`splash` runs interpreted here; that a TPU takes its kernel is compiled for at the end.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding

from evoharness_jax import mesh as meshes
from evoharness_jax.models import attention, blocks


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

    mask = attention.Mask(q_segments=segments, kv_segments=segments)
    upstream = draw(heads)
    if segments is not None:  # nobody asks for the gradient of padding
        upstream *= (segments != 0)[:, None, :, None].astype(dtype)
    return (draw(heads), draw(kv_heads), draw(kv_heads)), mask, upstream


def results(name, arrays, mask, upstream):
    def f(arrays):
        y = attention.attend(*arrays, mask, name)
        return jnp.sum((y * upstream).astype(jnp.float32)), y * (upstream != 0)

    # Run once, so compiling is what costs.
    quick = {"xla_backend_optimization_level": 0}
    g = jax.jit(jax.value_and_grad(f, has_aux=True), compiler_options=quick)
    (_, y), grads = g(arrays)
    return y, *grads


# 130 and 200 do not fill their last block; 64 is one block.
@pytest.mark.parametrize(
    "name, length",
    [("blocks", n) for n in (64, 130, 256)] + [("splash", 200)],
)
@pytest.mark.parametrize("whole", [False, True])
def test_agrees_with_xla(name, length, whole):
    args = problem(3, length, None if whole else packed(3, length))
    for got, want in zip(results(name, *args), results("xla", *args)):
        np.testing.assert_allclose(got, want, atol=1e-5)


@pytest.mark.parametrize("heads, kv_heads", [(4, 4), (6, 3), (4, 1)])
def test_splash_shares_key_heads_as_xla_does(heads, kv_heads):
    arrays, mask, _ = problem(1, 130, packed(1, 130), heads, kv_heads)
    got, want = (attention.attend(*arrays, mask, n) for n in ("splash", "xla"))
    np.testing.assert_allclose(got, want, atol=1e-5)


@pytest.mark.parametrize("name", ["xla", "blocks", "splash"])
def test_by_hand(name):
    """Scores are 0, so a query takes the mean of what it sees: by order, by segment."""
    q = k = jnp.zeros((1, 1, 6, 2))
    v = jnp.array([1.0, 3.0, 8.0, 10.0, 12.0, 7.0])[None, None, :, None].repeat(2, -1)
    ids = jnp.array([[1, 1, 2, 2, 2, 0]], jnp.int32)
    mask = attention.Mask(q_segments=ids, kv_segments=ids)
    got = attention.attend(q, k, v, mask, name)
    assert got[0, 0, :, 0].tolist() == [1.0, 2.0, 8.0, 9.0, 10.0, 7.0]
    whole = attention.attend(q, k, v, attention.Mask(), name)
    want = [1.0, 2.0, 4.0, 5.5, 6.8, 41 / 6]
    np.testing.assert_allclose(whole[0, 0, :, 1], want, rtol=1e-6)


def test_places_of_a_whole_row_are_its_order():
    """Orders may be left out; queries that are not the keys' places need them."""
    arrays, mask, _ = problem(2, 64, packed(2, 64))
    order = jnp.arange(64, dtype=jnp.int32)[None]
    stated = attention.Mask(order, order, mask.q_segments, mask.kv_segments)
    left_out, given = (attention.attend(*arrays, m) for m in (mask, stated))
    np.testing.assert_array_equal(left_out, given)
    q, k, v = arrays
    with pytest.raises(ValueError, match="not a whole row"):
        attention.attend(q[:, :, :8], k, v, attention.Mask())


@pytest.mark.parametrize("name", ["blocks", "splash"])
def test_in_bfloat16(name):
    """Rounding costs no more than it does in `xla`, beside float32 on the same numbers.

    The two round in other places, so they need not agree with one another.
    """
    arrays, mask, upstream = problem(2, 200, packed(2, 200), dtype="bfloat16")
    exact, up = jax.tree.map(lambda x: x.astype(jnp.float32), (arrays, upstream))
    truth = results("xla", exact, mask, up)
    ours, xla = (results(n, arrays, mask, upstream) for n in (name, "xla"))
    for got, other, want in zip(ours, xla, truth):
        assert got.dtype == jnp.bfloat16
        error, allowed = (
            np.abs(x.astype(jnp.float32) - want).max() for x in (got, other)
        )
        assert error <= max(allowed, 0.05)


@pytest.mark.parametrize("name", ["blocks", "splash"])
@pytest.mark.parametrize("count", [1, 80])
def test_read_a_cache(name, count):
    """Queries from 40 on, of a row whose cache has room for 150 keys."""
    (q, k, v), _, _ = problem(2, 150, None)
    q_order = jnp.arange(40, 40 + count, dtype=jnp.int32)[None]
    mask = attention.Mask(q_order, jnp.arange(150, dtype=jnp.int32)[None])
    got, want = (
        attention.attend(q[:, :, :count], k, v, mask, n) for n in (name, "xla")
    )
    np.testing.assert_allclose(got, want, atol=1e-5)


def test_blocks_that_no_query_sees_are_skipped():
    ids = jnp.repeat(jnp.array([1, 2, 0], jnp.int32), 64)[None]
    order = jnp.arange(192, dtype=jnp.int32)[None]
    order, ids = blocks._cut(order, 0), blocks._cut(ids, 0)
    pairs, count = blocks._live((order, ids, ids), (order, ids))
    assert pairs[:count].tolist() == [[0, 0, 0], [0, 1, 1], [0, 2, 2]]
    parents = jnp.where(ids == 2, 1, ids)  # 2 continues 1
    pairs, count = blocks._live((order, ids, parents), (order, ids))
    assert pairs[:count].tolist() == [[0, 0, 0], [0, 1, 0], [0, 1, 1], [0, 2, 2]]


@pytest.mark.parametrize(
    "name, fsdp, tp", [("blocks", 8, 1), ("blocks", 4, 2), ("splash", 4, 2)]
)
def test_on_a_mesh(name, fsdp, tp):
    args = problem(8, 130, packed(8, 130))
    want = results("xla", *args)
    with jax.set_mesh(meshes.make(fsdp, tp)):
        got = results(name, *args)
    for a, b in zip(got, want):
        np.testing.assert_allclose(a, b, atol=1e-5)


def test_splash_on_a_mesh_without_segments():
    (q, k, v), mask, _ = problem(4, 130, None)
    want = attention.attend(q, k, v, mask, "xla")
    with jax.set_mesh(meshes.make(4, 2)):
        got = jax.jit(lambda q, k, v: attention.attend(q, k, v, mask, "splash"))(
            q, k, v
        )
    np.testing.assert_allclose(got, want, atol=1e-5)


@pytest.mark.aot
def test_splash_compiles_for_a_tpu():
    """Forward and backward, two rows and two key heads a chip; no [T, S] matrix."""
    from jax.experimental import topologies

    slice_ = topologies.get_topology_desc(platform="tpu", topology_name="v5e:2x2")
    mesh = meshes.make(2, 2, slice_.devices)
    where = NamedSharding(mesh, meshes.spec(("batch", "heads")))

    def shape(heads):
        return jax.ShapeDtypeStruct((4, heads, 2048, 128), "bfloat16", sharding=where)

    rows = NamedSharding(mesh, meshes.spec(("batch",)))
    ids = jax.ShapeDtypeStruct((4, 2048), "int32", sharding=rows)

    def program(name):
        def loss(q, k, v, ids):
            mask = attention.Mask(q_segments=ids, kv_segments=ids)
            return jnp.sum(attention.attend(q, k, v, mask, name).astype(jnp.float32))

        grad = jax.jit(jax.grad(loss, argnums=(0, 1, 2)))
        with jax.set_mesh(mesh):
            return grad.lower(shape(8), shape(4), shape(4), ids).compile()

    splash, xla = program("splash"), program("xla")
    # Three kernels: forward, the gradient of q, the gradient of k and v.
    assert splash.as_text().count('custom_call_target="tpu_custom_call"') == 3
    scores = 2 * 4 * 2048 * 2048 * 4  # float32, of a chip's rows and heads
    assert xla.memory_analysis().temp_size_in_bytes > scores
    assert splash.memory_analysis().temp_size_in_bytes < scores / 4


def test_blocks_agree_with_xla_where_segments_have_parents():
    segments = packed(3, 256)
    # Every third segment is the head of the two behind it.
    parents = jnp.where(segments > 0, segments - (segments - 1) % 3, 0)
    arrays, mask, upstream = problem(3, 256, segments)
    args = arrays, mask._replace(q_parents=parents), upstream
    got, want = results("blocks", *args), results("xla", *args)
    for one, other in zip(got, want):
        np.testing.assert_allclose(one, other, atol=1e-5)
    assert np.abs(got[0] - results("xla", arrays, mask, upstream)[0]).max() > 0.1
    with pytest.raises(ValueError, match="splash attention sees no parents"):
        attention.attend(*arrays, args[1], "splash")
