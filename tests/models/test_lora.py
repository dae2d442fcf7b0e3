"""LoRA on literal matrices, beside and inside the weights, on one device and eight."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evoharness_jax import mesh as meshes
from evoharness_jax.models import lora, qwen3
from evoharness_jax.models.lora import Spec

CONFIG = qwen3.Config(
    vocab_size=62, width=24, layers=3, heads=4, kv_heads=2, head_dim=8, mlp=40
)
SPEC = Spec(rank=2, alpha=3.0)
TOKENS = np.random.default_rng(0).integers(0, 61, (2, 12)).astype(np.int32)
forward = jax.jit(qwen3.forward, static_argnums=1)


@pytest.fixture(scope="module")
def params():
    return jax.jit(partial(qwen3.init, config=CONFIG))(jax.random.key(0))


@pytest.fixture(scope="module")
def adapter():
    return random(SPEC)


def random(spec, config=CONFIG):
    """An adapter whose B is not zero, as after training."""
    fresh = lora.init(jax.random.key(1), config, spec)
    leaves, tree = jax.tree.flatten(fresh)
    keys = jax.random.split(jax.random.key(2), len(leaves))
    drawn = [0.3 * jax.random.normal(k, x.shape) for k, x in zip(keys, leaves)]
    return jax.tree.unflatten(tree, drawn)


def same_bits(one, other):
    flat, other = jax.tree.leaves(one), jax.tree.leaves(other)
    return all(np.array_equal(a, b) for a, b in zip(flat, other, strict=True))


def test_shapes_and_axes():
    shapes, axes = lora.shapes(CONFIG, SPEC), lora.logical_axes(CONFIG, SPEC)
    found = {n: (m["a"].shape, m["b"].shape) for n, m in shapes.items()}
    assert found == {
        "q": ((3, 24, 2), (3, 2, 4, 8)),
        "k": ((3, 24, 2), (3, 2, 2, 8)),
        "v": ((3, 24, 2), (3, 2, 2, 8)),
        "o": ((3, 4, 8, 2), (3, 2, 24)),
        "gate": ((3, 24, 2), (3, 2, 40)),
        "up": ((3, 24, 2), (3, 2, 40)),
        "down": ((3, 40, 2), (3, 2, 24)),
    }
    assert axes["o"]["a"] == ("layers", "heads", "head_dim", None)
    assert axes["o"]["b"] == ("layers", None, "embed")
    # q 3 x 2 x (24 + 32), k and v 3 x 2 x (24 + 16), o as q, the MLP's 64 each.
    assert lora.param_count(CONFIG, SPEC) == 6 * (2 * 56 + 2 * 40 + 3 * 64)


def test_a_new_adapter_changes_no_bit(params):
    fresh = lora.init(jax.random.key(3), CONFIG, SPEC)
    assert {float(jnp.abs(m["b"]).max()) for m in fresh.values()} == {0.0}
    assert float(fresh["down"]["a"].std()) == pytest.approx(40**-0.5, rel=0.1)
    assert same_bits(
        forward(lora.attach(params, fresh, SPEC), CONFIG, TOKENS),
        forward(params, CONFIG, TOKENS),
    )


@pytest.mark.parametrize("name", lora.READS)
def test_beside_a_projection_is_as_added_to_it(params, adapter, name):
    """W' = W + 3/2 A B by hand, one projection at a time."""
    spec = dataclasses.replace(SPEC, targets=(name,))
    one = {name: adapter[name]}
    a, b = (np.asarray(one[name][part], np.float64) for part in "ab")
    weight = params["layers"][name]
    a, b = a.reshape(3, -1, 2), b.reshape(3, 2, -1)
    whole = np.asarray(weight) + 1.5 * (a @ b).reshape(weight.shape)
    layers = {**params["layers"], name: jnp.asarray(whole, jnp.float32)}
    want = forward({**params, "layers": layers}, CONFIG, TOKENS)
    got = forward(lora.attach(params, one, spec), CONFIG, TOKENS)
    assert float(jnp.abs(want - forward(params, CONFIG, TOKENS)).max()) > 1e-3
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-5)
    merged = lora.merge(params, one, spec)
    np.testing.assert_allclose(merged["layers"][name], whole, rtol=0, atol=1e-6)


@pytest.mark.parametrize("remat", ["none", "full"])
def test_gradients_are_those_of_the_merged_weights(params, adapter, remat):
    config = dataclasses.replace(CONFIG, remat=remat)

    def loss(join):
        def value(adapter):
            logp, _ = qwen3.logprobs(join(params, adapter, SPEC), config, TOKENS)
            return -logp.mean()

        return jax.jit(jax.grad(value))(adapter)

    beside, inside = loss(lora.attach), loss(lora.merge)
    for name in lora.READS:
        for part in "ab":
            want = inside[name][part]
            size = float(jnp.abs(want).max())
            assert size > 0
            # W + 3/2 A B is rounded once more than x W + 3/2 x A B.
            np.testing.assert_allclose(
                beside[name][part], want, rtol=0, atol=5e-4 * size, err_msg=name
            )


def test_decoding_with_an_adapter(params, adapter):
    attached = lora.attach(params, adapter, SPEC)
    cache = qwen3.init_cache(CONFIG, 2, 16)
    extend = jax.jit(qwen3.extend, static_argnums=1)
    want = forward(attached, CONFIG, TOKENS)
    for start, width in ((0, 8), (8, 1), (9, 3)):
        block = TOKENS[:, start : start + width]
        at, count = np.full(2, start, np.int32), np.full(2, width, np.int32)
        cache, logits = extend(attached, CONFIG, cache, block, at, count)
        last = want[:, start + width - 1]
        np.testing.assert_allclose(logits, last, rtol=0, atol=1e-5)


def test_detached_params_are_the_base_itself(params, adapter):
    attached = lora.attach(params, adapter, SPEC)
    base = lora.detach(attached)
    assert base["layers"]["q"] is params["layers"]["q"]
    assert jax.tree.structure(base) == jax.tree.structure(params)
    again = lora.attach(attached, adapter, SPEC)  # replaces, does not add up
    assert same_bits(again, attached)


@pytest.mark.parametrize("dtype, off", [("float32", 2e-7), ("bfloat16", 2**-7)])
def test_unmerging_gives_the_base_within_rounding(params, adapter, dtype, off):
    base = jax.tree.map(lambda x: x.astype(dtype), params)
    merged = lora.merge(base, adapter, SPEC)
    back = lora.unmerge(merged, adapter, SPEC)
    for name in lora.READS:
        one, other = merged["layers"][name], back["layers"][name]
        assert one.dtype == other.dtype == jnp.dtype(dtype)
        assert not same_bits(one, base["layers"][name])
        largest = float(jnp.abs(one.astype(jnp.float32)).max())
        np.testing.assert_allclose(
            other.astype(np.float32),
            base["layers"][name].astype(np.float32),
            rtol=0,
            atol=off * largest,
        )
    # What has no adapter is not touched.
    assert back["embed"] is base["embed"]


def test_on_a_mesh(params, adapter):
    mesh = meshes.make(4, 2)
    axes = lora.logical_axes(CONFIG, SPEC)
    where = meshes.shardings(mesh, axes, lora.shapes(CONFIG, SPEC))
    assert repr(where["q"]["a"].spec) == "P(None, 'fsdp', None)"
    assert repr(where["q"]["b"].spec) == "P(None, None, 'tp', None)"
    assert repr(where["down"]["a"].spec) == "P(None, 'tp', None)"
    placed = meshes.place(adapter, where)
    base = meshes.place(
        params, meshes.shardings(mesh, qwen3.logical_axes(CONFIG), params)
    )
    rows = np.concatenate([TOKENS, TOKENS])
    with jax.set_mesh(mesh):
        got = forward(lora.attach(base, placed, SPEC), CONFIG, rows)
    want = forward(lora.attach(params, adapter, SPEC), CONFIG, rows)
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-5)


def test_an_update_copies_no_weight():
    """Gradients and their buffers are the adapter's; the base is read in place."""
    config = dataclasses.replace(CONFIG, width=256, mlp=1024, layers=8, remat="full")
    base, small = qwen3.shapes(config), lora.shapes(config, SPEC)

    def loss(adapter, base):
        attached = lora.attach(base, adapter, SPEC)
        return -qwen3.logprobs(attached, config, TOKENS)[0].mean()

    compiled = jax.jit(jax.grad(loss)).lower(small, base).compile()
    memory = compiled.memory_analysis()
    size = 4 * qwen3.param_count(config)
    assert memory.argument_size_in_bytes >= size
    assert memory.output_size_in_bytes < 0.05 * size
    assert memory.temp_size_in_bytes < 0.2 * size  # one layer of eight is in flight


@pytest.mark.parametrize(
    "wrong, words",
    [
        ({"rank": 0}, "rank must be at least 1: 0"),
        ({"rank": 2, "targets": ("q", "query")}, "called query; there are q, k, v, o"),
        ({"rank": 2, "targets": ()}, "called nothing; there are q"),
    ],
)
def test_a_wrong_spec_is_named(wrong, words):
    with pytest.raises(ValueError, match=words):
        Spec(**wrong)


def test_an_adapter_of_another_base_is_named(adapter):
    lora.check(adapter, CONFIG, SPEC)
    wider = dataclasses.replace(CONFIG, width=32)
    words = r"here: q/a: shape \(3, 24, 2\), want \(3, 32, 2\); it is an adapter of"
    with pytest.raises(ValueError, match=words):
        lora.check(adapter, wider, SPEC, "here")
    with pytest.raises(ValueError, match=r"q/a: shape None, want"):
        lora.check({}, CONFIG, SPEC)
    with pytest.raises(ValueError, match=r"matrices for \['down', 'gate'.*targets are"):
        lora.check(adapter, CONFIG, dataclasses.replace(SPEC, targets=("q", "v")))
