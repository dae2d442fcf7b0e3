"""The training step and the engine's programs compile for a TPU pod slice.

Nothing runs: libtpu compiles for a topology that is not there. Kept tiny, since what
is checked is that shardings, scatters and loops are ones that a TPU takes.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from evoharness_jax import build, mesh, parameters
from evoharness_jax.models import qwen3
from evoharness_jax.train import optim, sft, state
from evoharness_jax.types import Batch

pytestmark = pytest.mark.aot
CONFIG = dataclasses.replace(
    qwen3.CONFIGS["qwen3-8b"],
    vocab_size=1024,
    width=256,
    layers=2,
    heads=4,
    kv_heads=4,
    mlp=512,
)


@pytest.fixture(scope="module")
def tpu_mesh():
    from jax.experimental import topologies

    slice_ = topologies.get_topology_desc(platform="tpu", topology_name="v5e:2x2")
    return mesh.make(2, 2, slice_.devices)


@pytest.fixture(scope="module")
def two_slices():
    from jax.experimental import topologies

    slices = topologies.get_topology_desc(
        platform="tpu", topology_name="v5e:2x2", num_slices=2
    )
    return mesh.make(-1, 2, slices.devices)


def test_several_slices_lie_along_fsdp(two_slices):
    assert dict(two_slices.shape) == {"fsdp": 4, "tp": 2}
    assert [[d.slice_index for d in row] for row in two_slices.devices] == [
        [0, 0],
        [0, 0],
        [1, 1],
        [1, 1],
    ]
    with pytest.raises(ValueError, match="slices must divide fsdp: fsdp=1 slices=2"):
        mesh.make(1, 8, list(two_slices.devices.flat))


@pytest.mark.parametrize("slices, shards", [("tpu_mesh", 4), ("two_slices", 8)])
def test_the_sft_update_compiles_and_reuses_its_state(slices, shards, request):
    tpu_mesh = request.getfixturevalue(slices)
    tx = optim.make(1e-3)
    shapes = jax.eval_shape(
        lambda: sft.make_state(
            qwen3.init(jax.random.key(0), CONFIG), tx, jax.random.key(0)
        )
    )
    where = sft.state_shardings(tpu_mesh, qwen3.logical_axes(CONFIG), shapes)
    rows = state.microbatch_sharding(tpu_mesh)
    ints = jax.ShapeDtypeStruct((2, 4, 256), jnp.int32, sharding=rows)
    floats = jax.ShapeDtypeStruct((2, 4, 256), jnp.float32, sharding=rows)
    batch = Batch(*[ints] * 4, *[floats] * 5)
    update = sft.make_update(build.logprobs(CONFIG, 128), tx, tpu_mesh, where)
    compiled = update.lower(parameters.placed(shapes, where), batch).compile()
    memory = compiled.memory_analysis()
    held = sum(
        np.prod(s.shape) * s.dtype.itemsize for s in jax.tree.leaves(shapes.params)
    )
    # Parameters and two moments, a share on each chip; donated, so they are reused.
    assert memory.argument_size_in_bytes >= 3 * held / shards
    assert memory.alias_size_in_bytes >= 3 * held / shards


def test_generation_keeps_one_cache(tpu_mesh):
    everywhere = NamedSharding(tpu_mesh, PartitionSpec())
    place = jax.tree_util.Partial(
        jax.tree.map,
        lambda s: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=everywhere),
    )
    params = place(qwen3.shapes(CONFIG))
    cache = place(jax.eval_shape(lambda: qwen3.init_cache(CONFIG, 8, 1024)))
    row = jax.ShapeDtypeStruct((8,), jnp.int32, sharding=everywhere)

    def generate(params, cache, token, start):
        def one(i, carry):
            cache, token = carry
            cache, logits = qwen3.extend(
                params, CONFIG, cache, token[:, None], start + i, jnp.ones_like(start)
            )
            return cache, jnp.argmax(logits, -1).astype(jnp.int32)

        return jax.lax.fori_loop(0, 16, one, (cache, token))

    program = jax.jit(generate, donate_argnums=1)
    memory = program.lower(params, cache, row, row).compile().memory_analysis()
    size = sum(np.prod(s.shape) * s.dtype.itemsize for s in jax.tree.leaves(cache))
    assert memory.alias_size_in_bytes >= size
    # A second cache in the loop would show as temporary memory of the same size.
    assert memory.temp_size_in_bytes < size
