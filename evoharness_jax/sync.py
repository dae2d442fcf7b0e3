"""Weights from the mesh that trains to the mesh that plays.

Training spreads every weight over all devices of the job; playing wants whole rows of
them inside each process, so that no token waits for another host:

    train    [fsdp, tp] over all devices
    rollout  [fsdp, tp] over the devices of one process: rows x parts of a layer

A weight is cast to the compute dtype, then moved, one layer of it at a time: what is
in flight is never a second copy of the model.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from evoharness_jax import mesh as mesh_

RULES = mesh_.RULES | {"embed": None}  # whole rows, copied over "fsdp"


def rollout_mesh(tp: int = 1, process: int | None = None) -> Mesh:
    """Return the mesh of a process's own devices, `tp` of them to a layer.

    Args:
        process: whose; None: this one's.

    Raises:
        ValueError: tp does not divide their number; names `rollout.tp`.
    """
    devices = jax.local_devices(process_index=process)
    if tp < 1 or len(devices) % tp:
        raise ValueError(
            f"rollout.tp: {tp} does not divide the {len(devices)} devices of a process"
        )
    return mesh_.make(-1, tp, devices)


def moved(params: Any, axes: Any, mesh: Mesh, dtype: str) -> Any:
    """Return parameters on the rollout mesh; every process has to call this.

    Args:
        params: on the training mesh.
        axes: tree of their logical axis names.
        mesh: this process's, from `rollout_mesh`.
        dtype: what they are cast to before they move.
    """
    everywhere = _of_all(mesh)

    def move(piece, spec):
        spread = jax.device_put(piece, NamedSharding(everywhere, spec))
        held = [shard.data for shard in spread.addressable_shards]
        here = NamedSharding(mesh, spec)
        return jax.make_array_from_single_device_arrays(spread.shape, here, held)

    def one(names, leaf):
        spec = mesh_.spec(names, RULES)
        if names[0] != "layers":
            return move(_cast(leaf, dtype), spec)
        inner = PartitionSpec(*spec[1:])
        layers = [move(_layer(leaf, i, dtype), inner) for i in range(leaf.shape[0])]
        return jax.jit(_stack, out_shardings=NamedSharding(mesh, spec))(layers)

    return jax.tree.map(one, axes, params, is_leaf=lambda x: isinstance(x, tuple))


def _of_all(mesh: Mesh) -> Mesh:
    """Return [process, fsdp, tp]: the rollout meshes of all processes as one."""
    tp = mesh.shape["tp"]
    each = [rollout_mesh(tp, p).devices for p in range(jax.process_count())]
    kinds = (AxisType.Auto,) * 3
    return Mesh(np.stack(each), ("process", *mesh.axis_names), axis_types=kinds)


@partial(jax.jit, static_argnums=1)
def _cast(leaf, dtype):
    return leaf.astype(dtype)


@partial(jax.jit, static_argnums=2)
def _layer(leaf, layer, dtype):
    return jax.lax.dynamic_index_in_dim(leaf, layer, keepdims=False).astype(dtype)


def _stack(layers):
    return jnp.stack(layers)
