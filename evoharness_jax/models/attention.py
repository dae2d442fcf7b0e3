"""Causal grouped-query attention, chosen by name, and the key/value cache.

Axis legend of the model files:

    B rows   T queries   S keys   H query heads   K key/value heads
    G = H / K query heads that share a key/value head   E entries of a head

Heads stand before positions everywhere, q[B, H, T, E] and k, v[B, K, S, E]: that is
the cache's own order, so a cache is read without a transpose, and what fused kernels
expect. What may be seen is described (`Mask`), not materialised, because a fused
kernel wants segments and order, and only the plain one wants a [T, S] matrix.

    xla      the [T, S] matrix of every head; any size, any sharding
    blocks   only pairs of 64 queries and 64 keys that see each other, no [T, S] matrix:
             packed rows cost what their segments cost. Ten times as fast on CPU.
    splash   the same idea as a TPU kernel (`models.splash`). CPUs interpret it, slowly.

All three take every mask. `blocks` and `splash` are for whole rows, that is where they
differ from `xla`; over a cache, which a few queries read, `splash` always computes what
`xla` does, and `blocks` does below one block of queries.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from evoharness_jax import mesh as meshes
from evoharness_jax.models import blocks, splash

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
    """Query t sees key s iff q_order[t] >= kv_order[s] and s lies in t's segment
    or in the parent of it.

    Order is the place in the row (or in the cache), not the rope position: packed
    rows restart their positions but not their order. Orders None: whole rows, the
    queries and the keys are the same places. Segments None: one segment. Segment 0 is
    padding, which sees and is seen by padding only. The parent is a segment that
    several others continue, such as the head of an episode's turns.
    """

    q_order: jax.Array | None = None  # int32[B, T] or [1, T]
    kv_order: jax.Array | None = None  # int32[B, S] or [1, S]
    q_segments: jax.Array | None = None  # int32[B, T]
    kv_segments: jax.Array | None = None  # int32[B, S]
    q_parents: jax.Array | None = None  # int32[B, T]; None: no segment has a parent


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
        ValueError: an unknown implementation, heads that do not divide, or a mask
            without orders where queries and keys are not the same places.
    """
    if implementation not in IMPLEMENTATIONS:
        raise ValueError(f"{implementation=} is not one of {sorted(IMPLEMENTATIONS)}")
    if q.shape[1] % k.shape[1]:
        raise ValueError(
            f"key heads must divide query heads: {k.shape[1]=} {q.shape[1]=}"
        )
    if mask.q_order is None and q.shape[2] != k.shape[2]:
        raise ValueError(f"not a whole row: {q.shape[2]=} {k.shape[2]=}")
    return IMPLEMENTATIONS[implementation](q, k, v, mask)


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


def _orders(mask: Mask, length: int) -> tuple[jax.Array, jax.Array]:
    """Return the orders; those of a whole row are its places, int32[1, length]."""
    if mask.q_order is not None:
        return mask.q_order, mask.kv_order
    places = jnp.arange(length, dtype=jnp.int32)[None]
    return places, places


def visible(mask: Mask, length: int) -> jax.Array:
    """Write the mask of `length` queries out as bool[B or 1, T, S]."""
    q_order, kv_order = _orders(mask, length)
    seen = q_order[:, :, None] >= kv_order[:, None, :]
    if mask.q_segments is not None:
        keys = mask.kv_segments[:, None, :]
        here = mask.q_segments[:, :, None] == keys
        if mask.q_parents is not None:
            here |= mask.q_parents[:, :, None] == keys
        seen &= here
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
        visible(mask, T)[:, None, None], scores * E**-0.5, jnp.finfo(jnp.float32).min
    )
    weights = jax.nn.softmax(scores, axis=-1).astype(v.dtype)
    return jnp.einsum("BKGTS,BKSE->BKGTE", weights, v).reshape(B, H, T, E)


def _blocks(q, k, v, mask):
    """Only the pairs of blocks that see each other; every device walks its own."""
    (B, T), S = (q.shape[0], q.shape[2]), k.shape[2]
    if T < blocks.BLOCK:  # decoding: there is nothing to skip
        return _xla(q, k, v, mask)
    orders = _orders(mask, T)
    segments = (mask.q_segments, mask.kv_segments)
    if mask.q_segments is None:
        segments = (jnp.zeros((1, T), jnp.int32), jnp.zeros((1, S), jnp.int32))
    parents = segments[0] if mask.q_parents is None else mask.q_parents
    sides = (*orders, *segments, parents)
    sides = [jnp.broadcast_to(x, (B, x.shape[1])) for x in sides]
    return _shared_out(blocks.pairwise, q, k, v, *sides)


def _shared_out(function, q, k, v, *sides):
    """Call with every device's own rows and heads; `sides` are [B, ...] or None."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.size == 1:
        return function(q, k, v, *sides)
    axes = [("batch", name) for name in ("heads", "kv_heads", "kv_heads")]
    heads = [meshes.spec(names) for names in axes]
    rows = [meshes.spec(("batch",))] * len(sides)
    return jax.shard_map(
        function, in_specs=(*heads, *rows), out_specs=heads[0], check_vma=False
    )(q, k, v, *sides)


def _splash(q, k, v, mask):
    """The TPU kernel where rows are whole; a cache is read as `_xla` reads it."""
    if mask.q_order is not None:
        return _xla(q, k, v, mask)
    if mask.q_parents is not None:
        raise ValueError("splash attention sees no parents; use xla or blocks")
    return _shared_out(splash.whole_rows, q, k, v, mask.q_segments)


IMPLEMENTATIONS = {"xla": _xla, "blocks": _blocks, "splash": _splash}
