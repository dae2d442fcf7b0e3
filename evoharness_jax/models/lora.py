"""LoRA (arXiv 2106.09685): small matrices beside frozen weights.

    y = x W + (alpha / rank) (x A) B        A [in, rank] drawn, B [rank, out] zero

An adapter is a pytree of its own over chosen projections, stacked on layers like what
it stands beside: {"q": {"a": [layers, D, R], "b": [layers, R, H, E]}, ...}.

    init(key, config, spec) -> adapter          shapes, logical_axes: no memory
    attach(params, adapter, spec) -> params     for every function of `models.qwen3`
    merge, unmerge                              into the weights themselves, and out

`attach` copies no weight: the functions add x A B to a projection where they find an
adapter for it, so nothing of the size of W exists, forward or backward, and the
gradient with respect to the adapter needs activations only. The policy before training
is the same params without the adapter, bit for bit: no second copy for a reference.
"""

from dataclasses import dataclass
from math import prod
from typing import Any

import jax
import jax.numpy as jnp

from evoharness_jax.models.decoder import Config

KEY = "lora"  # where the params of `attach` hold the adapter

# Projection -> logical axes of what it reads and of what it gives.
READS = {
    "q": ("embed",),
    "k": ("embed",),
    "v": ("embed",),
    "o": ("heads", "head_dim"),
    "gate": ("embed",),
    "up": ("embed",),
    "down": ("mlp",),
}
GIVES = {
    "q": ("heads", "head_dim"),
    "k": ("kv_heads", "head_dim"),
    "v": ("kv_heads", "head_dim"),
    "o": ("embed",),
    "gate": ("mlp",),
    "up": ("mlp",),
    "down": ("embed",),
}


@dataclass(frozen=True)
class Spec:
    """What an adapter is, beside its numbers."""

    rank: int
    alpha: float = 16.0
    targets: tuple[str, ...] = tuple(READS)

    def __post_init__(self):
        object.__setattr__(self, "targets", tuple(self.targets))  # JSON has lists
        if self.rank < 1:
            raise ValueError(f"lora: the rank must be at least 1: {self.rank}")
        unknown = [name for name in self.targets if name not in READS]
        if unknown or not self.targets:
            raise ValueError(
                f"lora: no projection is called {', '.join(unknown) or 'nothing'}; "
                f"there are {', '.join(READS)}"
            )

    @property
    def scale(self) -> float:
        return self.alpha / self.rank


def _sizes(config):
    return {
        "embed": config.width,
        "heads": config.heads,
        "kv_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "mlp": config.mlp,
    }


def _tree(config, spec, make):
    """Fill the adapter's tree: make(name, part, axes of a layer's matrix)."""
    rank = (None,)  # a dimension that lies nowhere in particular
    return {
        name: {"a": make(READS[name] + rank), "b": make(rank + GIVES[name])}
        for name in READS
        if name in spec.targets
    }


def shapes(config: Config, spec: Spec) -> dict[str, Any]:
    """Return the tree of ShapeDtypeStructs that `init` would fill; float32."""
    sizes = _sizes(config)

    def make(axes):
        shape = tuple(spec.rank if axis is None else sizes[axis] for axis in axes)
        return jax.ShapeDtypeStruct((config.layers, *shape), jnp.float32)

    return _tree(config, spec, make)


def logical_axes(config: Config, spec: Spec) -> dict[str, Any]:
    """Return the tree of `init`, each leaf its axes' names; the rank's is None."""
    return _tree(config, spec, lambda axes: ("layers", *axes))


def param_count(config: Config, spec: Spec) -> int:
    """Count the adapter's parameters without making them."""
    return sum(prod(leaf.shape) for leaf in jax.tree.leaves(shapes(config, spec)))


def init(key: jax.Array, config: Config, spec: Spec) -> dict[str, Any]:
    """Draw an adapter, float32: A normal with deviation in**-0.5, B zero.

    It changes nothing until it is trained.
    """
    sizes, adapter = _sizes(config), shapes(config, spec)
    keys = jax.random.split(key, len(READS))
    for (name, axes), a_key in zip(READS.items(), keys, strict=True):
        if name in adapter:
            a, b = adapter[name]["a"], adapter[name]["b"]
            deviation = prod(sizes[axis] for axis in axes) ** -0.5
            drawn = deviation * jax.random.normal(a_key, a.shape, a.dtype)
            adapter[name] = {"a": drawn, "b": jnp.zeros(b.shape, b.dtype)}
    return adapter


def attach(params: Any, adapter: Any, spec: Spec) -> dict[str, Any]:
    """Return params with which every function of `models.qwen3` adds the adapter.

    Differentiable in both; the weights are the same arrays, not copies.
    """
    scaled = {n: {"a": m["a"], "b": m["b"] * spec.scale} for n, m in adapter.items()}
    return {**detach(params), KEY: scaled}


def detach(params: Any) -> dict[str, Any]:
    """Return the params without an adapter: the same arrays, so the same bits."""
    return {name: leaf for name, leaf in params.items() if name != KEY}


def merge(params: Any, adapter: Any, spec: Spec) -> dict[str, Any]:
    """Add the adapter to the weights: W + scale A B, rounded to W's dtype.

    jit it with params donated where two copies do not fit.
    """
    return _added(params, adapter, spec.scale)


def unmerge(params: Any, adapter: Any, spec: Spec) -> dict[str, Any]:
    """Take a merged adapter out again: W - scale A B, within W's rounding."""
    return _added(params, adapter, -spec.scale)


def _added(params, adapter, scale):
    layers = dict(params["layers"])

    def one(weight, a, b):  # of a layer
        flat = a.reshape(-1, a.shape[-1]) @ b.reshape(b.shape[0], -1)
        whole = weight.astype(jnp.float32) + scale * flat.reshape(weight.shape)
        return whole.astype(weight.dtype)

    for name, m in adapter.items():
        # One layer after the other, so that float32 exists of one layer only.
        layers[name] = jax.lax.map(
            lambda leaf: one(*leaf), (layers[name], m["a"], m["b"])
        )
    return {**params, "layers": layers}


def check(adapter: Any, config: Config, spec: Spec, where: Any = "adapter") -> None:
    """Raise ValueError where an adapter is not one for this model; names the matrix."""
    for name, wanted in shapes(config, spec).items():
        for part, leaf in wanted.items():
            found = adapter.get(name, {}).get(part)
            shape = None if found is None else tuple(found.shape)
            if shape != leaf.shape:
                raise ValueError(
                    f"{where}: {name}/{part}: shape {shape}, want {leaf.shape}; it is "
                    "an adapter of another model"
                )
    extra = sorted(adapter.keys() - set(spec.targets))
    if extra:
        raise ValueError(f"{where}: matrices for {extra}, targets are {spec.targets}")
