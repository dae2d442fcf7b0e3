"""Causal grouped-query attention, chosen by name; rope, and the key/value cache.

Axis legend of the model files:

    B rows   T queries   S keys   H query heads   K key/value heads
    G = H / K query heads that share a key/value head   E entries of a head

Heads stand before positions everywhere, q[B, H, T, E] and k, v[B, K, S, E]: that is
the cache's own order, so a cache is read without a transpose, and what fused kernels
expect. What may be seen is described (`Mask`), not materialised, because a fused
kernel wants segments and order, and only the plain one wants a [T, S] matrix.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

# Logical axes of Cache.k and Cache.v, for `mesh.shardings`.
CACHE_AXES = ("layers", "batch", "kv_heads", "length", "head_dim")


@struct.dataclass
class Cache:
    """Keys and values of every layer, in the order that generation loops keep in place.

    Slots at or past a row's length hold anything; nothing reads them.
    """

    k: jax.Array  # [layers, B, K, S, E] in the compute dtype, rope applied
    v: jax.Array  # [layers, B, K, S, E]


class Mask(NamedTuple):
    """Query t sees key s iff q_order[t] >= kv_order[s] and their segments agree.

    Order is the place in the row (or in the cache), not the rope position: packed
    rows restart their positions but not their order. Segments None: one segment.
    Segment 0 is padding, which sees and is seen by padding only.
    """

    q_order: jax.Array  # int32[B, T] or [1, T]
    kv_order: jax.Array  # int32[B, S] or [1, S]
    q_segments: jax.Array | None = None  # int32[B, T]
    kv_segments: jax.Array | None = None  # int32[B, S]


def attend(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    mask: Mask,
    implementation: str = "xla",
) -> jax.Array:
    """Attend from every query to the keys that `mask` lets it see.

    Args:
        q: [B, H, T, E], not yet scaled; scores are divided by sqrt(E).
        k, v: [B, K, S, E], K divides H; heads h*G .. h*G+G-1 share key head h.
        mask: which keys a query sees. Where it sees none (a query before the first
            key) the result is finite and means nothing.
        implementation: a name in `IMPLEMENTATIONS`.

    Returns:
        [B, H, T, E] in q's dtype.

    Raises:
        ValueError: an unknown implementation, or heads that do not divide.
    """
    if implementation not in IMPLEMENTATIONS:
        raise ValueError(f"{implementation=} is not one of {sorted(IMPLEMENTATIONS)}")
    if q.shape[1] % k.shape[1]:
        raise ValueError(
            f"key heads must divide query heads: {k.shape[1]=} {q.shape[1]=}"
        )
    return IMPLEMENTATIONS[implementation](q, k, v, mask)


def angles(
    positions: jax.Array, head_dim: int, theta: float
) -> tuple[jax.Array, jax.Array]:
    """Return cos and sin, float32[B, 1, L, E/2], of the rope angles in radians."""
    exponent = jnp.arange(0, head_dim, 2, dtype=jnp.float32) / head_dim
    angle = positions[:, None, :, None] * (theta**-exponent)
    return jnp.cos(angle), jnp.sin(angle)


def rope(x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
    """Rotate x[B, H, L, E] in float32; entry i turns with entry i + E/2."""
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    turned = (first * cos - second * sin, second * cos + first * sin)
    return jnp.concatenate(turned, axis=-1).astype(x.dtype)


def write(
    cache: jax.Array, layer: jax.Array, slots: jax.Array, new: jax.Array
) -> jax.Array:
    """Scatter new[B, K, T, E] to cache[layer, b, :, slots[b, t]].

    A slot at or past the end is dropped. Never dynamic_update_slice: near the end that
    moves its start back and overwrites what the row remembers.
    """
    rows = jnp.arange(slots.shape[0], dtype=jnp.int32)[:, None]
    new = new.swapaxes(1, 2).astype(cache.dtype)
    return cache.at[layer, rows, :, slots].set(new, mode="drop")


def visible(mask: Mask) -> jax.Array:
    """Write the mask out as bool[B or 1, T, S]."""
    seen = mask.q_order[:, :, None] >= mask.kv_order[:, None, :]
    if mask.q_segments is not None:
        seen &= mask.q_segments[:, :, None] == mask.kv_segments[:, None, :]
    return seen


def _xla(q, k, v, mask):
    """Plain einsum attention; scores and softmax in float32."""
    B, H, T, E = q.shape
    K = k.shape[1]
    q = q.reshape(B, K, H // K, T, E)
    scores = jnp.einsum("BKGTE,BKSE->BKGTS", q, k, preferred_element_type=jnp.float32)
    # A finite floor, not -inf: a row that sees nothing must not become NaN, which
    # would reach every weight through the backward pass.
    scores = jnp.where(
        visible(mask)[:, None, None], scores * E**-0.5, jnp.finfo(jnp.float32).min
    )
    weights = jax.nn.softmax(scores, axis=-1).astype(v.dtype)
    return jnp.einsum("BKGTS,BKSE->BKGTE", weights, v).reshape(B, H, T, E)


IMPLEMENTATIONS = {"xla": _xla}
