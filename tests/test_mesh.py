"""The mesh and its table, on eight virtual devices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from evoharness_jax import mesh as meshes
from evoharness_jax.models import qwen3, weights

CONFIG = qwen3.Config(
    vocab_size=64, width=32, layers=2, heads=8, kv_heads=4, head_dim=8, mlp=48
)
needs8 = pytest.mark.skipif(jax.device_count() < 8, reason="eight devices")


@needs8
@pytest.mark.parametrize(
    "sizes, want", [({}, (8, 1)), ({"tp": 4}, (2, 4)), ({"fsdp": 4, "tp": 2}, (4, 2))]
)
def test_make(sizes, want):
    mesh = meshes.make(**sizes)
    assert mesh.axis_names == ("fsdp", "tp")
    assert mesh.devices.shape == want
    assert mesh.axis_types == (AxisType.Auto, AxisType.Auto)


def test_make_of_some_devices():
    assert meshes.make(devices=jax.devices()[:1]).devices.shape == (1, 1)


@needs8
@pytest.mark.parametrize(
    "sizes, message",
    [
        ({"tp": 3}, "tp must divide .* tp=3 count=8"),
        ({"fsdp": 2, "tp": 2}, "fsdp=2 tp=2 count=8"),
        ({"fsdp": 16}, "fsdp=16 tp=1 count=8"),
        ({"tp": 0}, "tp=0"),
        ({"fsdp": -2}, "fsdp=-2"),
    ],
)
def test_make_refuses(sizes, message):
    with pytest.raises(ValueError, match=message):
        meshes.make(**sizes)


def test_spec():
    axes = ("layers", "embed", "heads", "head_dim")
    assert meshes.spec(axes) == P(None, "fsdp", "tp", None)
    assert meshes.spec(("batch", None)) == P("fsdp", None)
    assert meshes.spec(()) == P()
    rollout = meshes.RULES | {"embed": None}
    assert meshes.spec(axes, rollout) == P(None, None, "tp", None)
    with pytest.raises(ValueError, match="'width'"):
        meshes.spec(("width",))
    with pytest.raises(ValueError, match="twice"):
        meshes.spec(("heads", "mlp"))


@needs8
def test_shardings_name_what_does_not_divide():
    axes, shapes = qwen3.logical_axes(CONFIG), qwen3.shapes(CONFIG)
    got = meshes.shardings(meshes.make(tp=4), axes, shapes)
    assert got["layers"]["down"].spec == P(None, "tp", "fsdp")
    with pytest.raises(ValueError, match=r"layers/k: dimension 2 \(kv_heads, 4\) .*"):
        meshes.shardings(meshes.make(tp=8), axes, shapes)
    with pytest.raises(ValueError, match="'tp' .8."):
        meshes.shardings(meshes.make(tp=8), axes, shapes)
    one = meshes.make(devices=jax.devices()[:1])
    odd = jax.ShapeDtypeStruct((7, 5), jnp.float32)
    assert meshes.shardings(one, {"w": ("embed", "mlp")}, {"w": odd})
    with pytest.raises(ValueError, match="w: shape"):
        meshes.shardings(one, {"w": ("embed",)}, {"w": odd})


@needs8
def test_place_takes_host_and_device_arrays():
    mesh = meshes.make(tp=2)
    rows = meshes.batch_sharding(mesh)
    assert rows == NamedSharding(mesh, P("fsdp"))
    host = np.arange(16, dtype=np.int32).reshape(8, 2)
    got = meshes.place({"a": host, "b": jnp.asarray(host)}, {"a": rows, "b": rows})
    for x in got.values():
        np.testing.assert_array_equal(x, host)
        assert x.sharding == rows
        assert x.addressable_shards[0].data.shape == (2, 2)


@needs8
def test_constrain():
    x = jnp.ones((8, 4))
    assert meshes.constrain(x, ("batch", None)) is x  # no mesh, nothing to do
    mesh = meshes.make()
    pinned = jax.jit(lambda x: meshes.constrain(x, ("batch", None)))
    with jax.set_mesh(mesh):
        assert pinned(x).sharding.is_equivalent_to(meshes.batch_sharding(mesh), 2)
        with pytest.raises(ValueError, match=r"dimension 0 \(batch, 3\)"):
            meshes.constrain(jnp.ones((3, 4)), ("batch", None))


@pytest.fixture(scope="module")
def alone():
    """Params, tokens, and the scores and gradient of a single device."""
    params = jax.jit(qwen3.init, static_argnums=1)(jax.random.key(0), CONFIG)
    params = jax.tree.map(np.asarray, params)
    tokens = np.random.default_rng(0).integers(0, 64, (8, 12)).astype(np.int32)
    return params, tokens, jax.tree.map(np.asarray, jax.jit(score)(params, tokens))


def score(params, tokens):
    def loss(params):
        return qwen3.logprobs(params, CONFIG, tokens, chunk=5)[0].mean()

    return qwen3.forward(params, CONFIG, tokens), jax.grad(loss)(params)


@needs8
@pytest.mark.parametrize("ambient", [True, False])
@pytest.mark.parametrize("fsdp, tp", [(8, 1), (4, 2), (2, 4)])
def test_sharded_forward_and_gradient_equal_one_device(alone, fsdp, tp, ambient):
    params, tokens, want = alone
    mesh = meshes.make(fsdp, tp)
    shardings = meshes.shardings(mesh, qwen3.logical_axes(CONFIG), qwen3.shapes(CONFIG))
    params = meshes.place(params, shardings)
    tokens = meshes.place(tokens, meshes.batch_sharding(mesh))
    step = jax.jit(score, out_shardings=(meshes.batch_sharding(mesh), shardings))
    if ambient:  # constraints on activations apply only here
        with jax.set_mesh(mesh):
            got = step(params, tokens)
    else:
        got = step(params, tokens)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-5), got, want
    )


@needs8
def test_init_in_place_draws_the_same_numbers(alone):
    mesh = meshes.make(4, 2)
    shardings = meshes.shardings(mesh, qwen3.logical_axes(CONFIG))
    with jax.set_mesh(mesh):
        init = jax.jit(qwen3.init, static_argnums=1, out_shardings=shardings)
        params = init(jax.random.key(0), CONFIG)
    assert params["layers"]["gate"].sharding == shardings["layers"]["gate"]
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-6),
        params,
        alone[0],
    )


@needs8
def test_load_onto_a_mesh(alone, tmp_path):
    weights.save(tmp_path, CONFIG, alone[0])
    config, params = weights.load(tmp_path, mesh=meshes.make(4, 2))
    assert config == CONFIG
    assert params["layers"]["q"].sharding.spec == P(None, "fsdp", "tp", None)
    jax.tree.map(np.testing.assert_array_equal, params, alone[0])
    with pytest.raises(ValueError, match="layers/k"):
        weights.load(tmp_path, mesh=meshes.make(1, 8))


@needs8
@pytest.mark.parametrize("fsdp, tp", [(4, 2), (2, 4)])
def test_sharded_extend_equals_one_device(alone, fsdp, tp):
    params, tokens, _ = alone
    start, count = np.arange(8, dtype=np.int32), np.arange(8, dtype=np.int32) % 4
    cache = jax.tree.map(np.asarray, qwen3.init_cache(CONFIG, 8, 16))
    extend = jax.jit(qwen3.extend, static_argnums=1, donate_argnums=2)
    want = extend(params, CONFIG, cache, tokens[:, :4], start, count)
    mesh = meshes.make(fsdp, tp)
    rules = meshes.RULES | {"embed": None}
    params = meshes.place(
        params, meshes.shardings(mesh, qwen3.logical_axes(CONFIG), rules=rules)
    )
    kv = meshes.shardings(mesh, qwen3.CACHE_AXES)
    cache = meshes.place(cache, qwen3.Cache(k=kv, v=kv))
    with jax.set_mesh(mesh):
        got = extend(params, CONFIG, cache, tokens[:, :4], start, count)
    assert got[0].k.sharding.is_equivalent_to(kv, 5)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-5), got, want
    )
