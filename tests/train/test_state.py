"""What holds for any loss: dtypes of the moments, trees that nobody trains."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evoharness_jax import mesh as meshes
from evoharness_jax.train import optim, packing, sft, state
from evoharness_jax.types import Batch


def batch_of_ones() -> Batch:
    """Eight rows of four tokens, as one microbatch."""
    ones = [np.ones(4, np.int32)] * 8
    (batch,) = packing.batches(
        packing.pack({"tokens": ones, "weight": ones}, 4).batch, 8
    )
    return batch


def test_moments_are_float32_under_bfloat16_parameters():
    params = {"w": jnp.ones((2, 2), jnp.bfloat16)}

    def toy(params, tokens, positions, segment_ids, parents):
        logp = -jnp.sum(params["w"]) * jnp.ones(tokens.shape)
        return logp, logp

    tx = optim.make(1e-2)
    current = state.make_state(params, tx, jax.random.key(0))
    update = sft.make_update(toy, tx)
    for _ in range(2):
        current, _ = update(current, batch_of_ones())
    assert update._cache_size() == 1  # the second state looks like the first
    adam = current.opt_state[1][0]
    assert adam.mu["w"].dtype == adam.nu["w"].dtype == jnp.float32
    assert current.params["w"].dtype == jnp.bfloat16


def test_frozen_trees_reach_the_loss_and_stay():
    base = {"w": jnp.full((2, 2), 2.0)}

    def toy(params, tokens, positions, segment_ids, parents, base):
        logp = -jnp.sum(params["w"] * base["w"]) * jnp.ones(tokens.shape)
        return logp, logp

    mesh = meshes.make(8, 1)
    tx = optim.make(1e-2)
    axes = {"w": (None, None)}
    make = functools.partial(
        state.make_state, {"w": jnp.ones((2, 2))}, tx, jax.random.key(0)
    )
    shardings = state.state_shardings(mesh, axes, jax.eval_shape(make))
    current = jax.jit(make, out_shardings=shardings)()
    frozen = meshes.shardings(mesh, axes)
    update = sft.make_update(toy, tx, mesh, shardings, frozen_shardings=(frozen,))
    base = jax.device_put(base, frozen)
    batch = jax.device_put(batch_of_ones(), state.microbatch_sharding(mesh))
    current, metrics = update(current, batch, base)
    assert float(metrics["loss/sft"]) == pytest.approx(8.0)  # four times 1 x 2
    assert not base["w"].is_deleted()
    score = state.make_score(
        toy, mesh, shardings.params, stacked=True, frozen_shardings=(frozen,)
    )
    assert score(current.params, batch, base).shape == batch.tokens.shape
