"""The device mesh, and one table from logical axes to mesh axes.

    devices [fsdp, tp]    fsdp: batch rows, and every weight's width
                          tp:   heads, MLP columns and vocabulary inside a layer

Model code names *what* a dimension is ("heads", "embed"); `RULES` alone says where
it goes. Axes are Auto: the compiler places what nobody constrains, and the same
code runs on one device. Nothing falls back silently: a dimension that its mesh
axis does not divide is an error that names both.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import mesh_utils, multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

AXES = ("fsdp", "tp")

# Training.
RULES: dict[str, str | None] = {
    "batch": "fsdp",
    "length": None,
    "layers": None,
    "embed": "fsdp",
    "heads": "tp",
    "kv_heads": "tp",
    "head_dim": None,
    "mlp": "tp",
    "vocab": "tp",
    "norm": None,
}
# A rollout, which reads every weight for every token: only tp cuts them.
ROLLOUT = RULES | {"embed": None}


def make(
    fsdp: int = -1, tp: int = 1, devices: Sequence[jax.Device] | None = None
) -> Mesh:
    """Arrange devices as a mesh [fsdp, tp] with Auto axes.

    Args:
        fsdp: devices along the data axis; -1 takes what `tp` leaves.
        tp: devices that share one layer; they should sit on one host.
        devices: which devices to use; all of them by default.

    Raises:
        ValueError: the sizes do not multiply to the number of devices, or tp would
            reach over two TPU slices.
    """
    devices = list(jax.devices() if devices is None else devices)
    count = len(devices)
    if tp < 1 or (fsdp < 1 and fsdp != -1):
        raise ValueError(f"mesh axes must be positive (fsdp may be -1): {fsdp=} {tp=}")
    if fsdp == -1:
        if count % tp:
            raise ValueError(f"tp must divide the number of devices: {tp=} {count=}")
        fsdp = count // tp
    if fsdp * tp != count:
        raise ValueError(
            f"fsdp x tp must be the number of devices: {fsdp=} {tp=} {count=}"
        )
    auto = (AxisType.Auto,) * 2
    # Several TPU slices lie along fsdp: what tp exchanges stays within one, the slower
    # network between them carries gathered weights and gradients.
    slices = len({getattr(device, "slice_index", 0) for device in devices})
    if devices[0].platform == "tpu" and slices > 1:
        if fsdp % slices:
            raise ValueError(f"the slices must divide fsdp: {fsdp=} {slices=} {tp=}")
        within, across = (fsdp // slices, tp), (slices, 1)
        ordered = mesh_utils.create_hybrid_device_mesh(within, across, devices)
        return Mesh(ordered, AXES, axis_types=auto)
    # make_mesh, unlike Mesh, orders TPU devices so that neighbours are neighbours.
    return jax.make_mesh((fsdp, tp), AXES, axis_types=auto, devices=devices)


def spec(
    axes: Sequence[str | None], rules: Mapping[str, str | None] = RULES
) -> PartitionSpec:
    """Translate logical axis names to a PartitionSpec; None stays unsharded.

    Raises:
        ValueError: a name that `rules` does not hold, or one mesh axis used twice.
    """
    unknown = [a for a in axes if a is not None and a not in rules]
    if unknown:
        raise ValueError(f"unknown logical axes {unknown} in {axes}: {sorted(rules)=}")
    mapped = [None if a is None else rules[a] for a in axes]
    used = [m for m in mapped if m is not None]
    if len(set(used)) < len(used):
        raise ValueError(f"{tuple(axes)} would use one mesh axis twice: {mapped}")
    return PartitionSpec(*mapped)


def shardings(
    mesh: Mesh,
    axes: Any,
    shapes: Any = None,
    rules: Mapping[str, str | None] = RULES,
) -> Any:
    """Build the NamedSharding of every leaf from its logical axes.

    Args:
        mesh: from `make`.
        axes: tree whose leaves are tuples of logical axis names.
        shapes: tree of the same structure holding arrays or ShapeDtypeStructs;
            given, every sharded dimension is checked.
        rules: logical axis -> mesh axis.

    Raises:
        ValueError: a dimension is not divisible by its mesh axis; the message names
            the parameter, the dimension and the mesh axis.
    """

    def one(path, names, leaf=None):
        partition = spec(names, rules)
        if leaf is not None:
            name = jax.tree_util.keystr(path, simple=True, separator="/")
            _check(name, names, partition, leaf.shape, mesh)
        return NamedSharding(mesh, partition)

    rest = () if shapes is None else (shapes,)
    return jax.tree_util.tree_map_with_path(
        one, axes, *rest, is_leaf=lambda x: isinstance(x, tuple)
    )


def _check(name, names, partition, shape, mesh):
    if len(shape) != len(names):
        raise ValueError(f"{name}: shape {shape} does not fit axes {tuple(names)}")
    for i, (size, axis) in enumerate(zip(shape, partition)):
        parts = 1 if axis is None else mesh.shape[axis]
        if size % parts:
            raise ValueError(
                f"{name}: dimension {i} ({names[i]}, {size}) is not divisible by mesh"
                f" axis {axis!r} ({parts})"
            )


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Shard dimension 0, the rows of a batch, over fsdp; tp holds copies."""
    return NamedSharding(mesh, PartitionSpec("fsdp"))


def place(tree: Any, shardings: Any) -> Any:
    """Put every leaf where its sharding says.

    Host (numpy) leaves must hold the whole array on every process; each device then
    takes its slice without the processes comparing what they hold.
    """

    def one(leaf, sharding):
        if isinstance(leaf, np.ndarray):
            return jax.make_array_from_callback(
                leaf.shape, sharding, lambda index: leaf[index]
            )
        return jax.device_put(leaf, sharding)

    return jax.tree.map(one, tree, shardings)


def place_all(tree: Any, sharding: NamedSharding) -> Any:
    """`place` every leaf the same way."""
    return place(tree, jax.tree.map(lambda _: sharding, tree))


def fetch(x: jax.Array) -> np.ndarray:
    """Return all of an array on every process that calls this, as they all must."""
    if x.is_fully_addressable or x.is_fully_replicated:
        return np.asarray(x)
    return np.asarray(multihost_utils.process_allgather(x, tiled=True))


def mine(x: jax.Array) -> np.ndarray:
    """Return this process's rows of a [accum, W, L], in their order."""
    if x.is_fully_addressable:
        return np.asarray(x)
    shards = {shard.index[1].start or 0: shard.data for shard in x.addressable_shards}
    return np.concatenate([np.asarray(shards[at]) for at in sorted(shards)], axis=1)


def constrain(x: jax.Array, axes: Sequence[str | None]) -> jax.Array:
    """Pin an activation to `RULES` inside `jax.set_mesh(mesh)`; else return it as is.

    Only Auto axes are named, so the same line may run inside a `shard_map`.

    Raises:
        ValueError: a dimension is not divisible by its mesh axis.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty:
        return x
    auto = {n for n, t in zip(mesh.axis_names, mesh.axis_types) if t == AxisType.Auto}
    partition = PartitionSpec(*(a if a in auto else None for a in spec(axes)))
    if math.prod(mesh.shape[a] for a in partition if a is not None) == 1:
        return x
    _check("activation", axes, partition, x.shape, mesh)
    return jax.lax.with_sharding_constraint(x, partition)
