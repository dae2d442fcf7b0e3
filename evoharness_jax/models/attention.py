"""Causal grouped-query attention, chosen by name; rope, and the key/value cache.

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
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from evoharness_jax import mesh as meshes

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
    # As a roll: two halves cut apart and put together cost CPU training 5 % of a step.
    cos = jnp.concatenate([cos, cos], axis=-1)
    sin = jnp.concatenate([-sin, sin], axis=-1)
    y = x.astype(jnp.float32)
    return (y * cos + jnp.roll(y, y.shape[-1] // 2, axis=-1) * sin).astype(x.dtype)


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


BLOCK = 64  # queries, and keys, of one step: a step's scores stay in the L2 cache
FLOOR = jnp.finfo(jnp.float32).min  # score of what is not seen; finite, as in `_xla`


def _blocks(q, k, v, mask):
    """Attention over the live pairs of blocks, softmax and its gradient online.

    On CPU a [B, H, T, S] matrix costs more to allocate (the kernel zeroes its pages at
    every step) than to fill, and packed rows hardly look at it. Rows and heads are
    shared out by `RULES`; every device walks its own pairs.
    """
    (B, T), S = (q.shape[0], q.shape[2]), k.shape[2]
    if T < BLOCK:  # decoding: there is nothing to skip
        return _xla(q, k, v, mask)
    orders = (mask.q_order, mask.kv_order)
    segments = (mask.q_segments, mask.kv_segments)
    if mask.q_segments is None:
        segments = (jnp.zeros((1, T), jnp.int32), jnp.zeros((1, S), jnp.int32))
    sides = [jnp.broadcast_to(x, (B, x.shape[1])) for x in (*orders, *segments)]
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.size == 1:
        return _pairwise(q, k, v, *sides)
    axes = [("batch", name) for name in ("heads", "kv_heads", "kv_heads")]
    heads = [meshes.spec(names) for names in axes]
    rows = [meshes.spec(("batch",))] * len(sides)
    return jax.shard_map(
        _pairwise, in_specs=(*heads, *rows), out_specs=heads[0], check_vma=False
    )(q, k, v, *sides)


def _pairwise(q, k, v, q_order, kv_order, q_segments, kv_segments):
    """Cut everything into blocks, walk the live pairs, put the blocks together."""
    B, H, T, E = q.shape
    K = k.shape[1]
    # A place that fills the last block sees nothing as a query, is not seen as a key.
    last = jnp.iinfo(jnp.int32).max
    q_side = _cut(q_order, -1), _cut(q_segments, 0)
    kv_side = _cut(kv_order, last), _cut(kv_segments, 0)
    q, k, v = _cut_heads(q, K), _cut_heads(k, K), _cut_heads(v, K)
    out = _walk(q, k, v, q_side, kv_side, _live(q_side, kv_side))
    # [B, blocks, K, G * BLOCK, E] -> [B, K, G, blocks, BLOCK, E] -> [B, H, T, E]
    out = out.reshape(B, -1, K, H // K, BLOCK, E).transpose(0, 2, 3, 1, 4, 5)
    return out.reshape(B, H, -1, E)[:, :, :T]


def _cut(x, fill):
    """[B, T] -> [B, blocks, BLOCK]."""
    room = ((0, 0), (0, -x.shape[1] % BLOCK))
    return jnp.pad(x, room, constant_values=fill).reshape(x.shape[0], -1, BLOCK)


def _cut_heads(x, K):
    """[B, heads, T, E] -> [B, blocks, K, heads / K * BLOCK, E]: one matrix per K."""
    B, heads, T, E = x.shape
    x = jnp.pad(x, ((0, 0), (0, 0), (0, -T % BLOCK), (0, 0)))
    x = x.reshape(B, K, heads // K, -1, BLOCK, E).transpose(0, 3, 1, 2, 4, 5)
    return x.reshape(B, x.shape[1], K, -1, E)


def _live(q_side, kv_side):
    """List the pairs (row, query block, key block) in which something may be seen.

    Judged by the ends of orders and segments: exact where segments are contiguous,
    never too few. Padding stands behind the last segment, so it counts as one more.
    Returns int32[pairs, 3], ordered, and how many of them there are.
    """

    def ends(x):
        return x.min(axis=-1), x.max(axis=-1)

    def segments(x):
        return ends(jnp.where(x == 0, jnp.iinfo(jnp.int32).max, x))

    (q_low, q_high), (k_low, k_high) = segments(q_side[1]), segments(kv_side[1])
    live = ends(q_side[0])[1][:, :, None] >= ends(kv_side[0])[0][:, None, :]
    live &= q_low[:, :, None] <= k_high[:, None, :]
    live &= k_low[:, None, :] <= q_high[:, :, None]
    pairs = jnp.nonzero(live, size=live.size, fill_value=0)
    return jnp.stack(pairs, axis=-1).astype(jnp.int32), jnp.sum(live)


def _scores(q, k, q_side, kv_side, b, t, s):
    """Scores f32[K, G * BLOCK, BLOCK] of query block t and key block s of row b."""
    seen = q_side[0][b, t][:, None] >= kv_side[0][b, s][None]
    seen &= q_side[1][b, t][:, None] == kv_side[1][b, s][None]
    x = _dot("KTE,KSE->KTS", q[b, t], k[b, s]) * q.shape[-1] ** -0.5
    return jnp.where(jnp.tile(seen, (q.shape[3] // BLOCK, 1)), x, FLOOR)


_dot = partial(jnp.einsum, preferred_element_type=jnp.float32)


def _softmax(q, k, v, q_side, kv_side, live):
    """Return the attended values f32, and log sum exp of every query's scores."""
    pairs, count = live

    def step(i, carry):
        out, top, total = carry
        b, t, s = pairs[i]
        x = _scores(q, k, q_side, kv_side, b, t, s)
        was, now = top[b, t], jnp.maximum(top[b, t], x.max(axis=-1))
        # What a query summed up before it saw its first key is forgotten here.
        kept = jnp.exp(was - now)
        weights = jnp.exp(x - now[..., None])
        y = _dot("KTS,KSE->KTE", weights.astype(v.dtype), v[b, s])
        return (
            out.at[b, t].set(out[b, t] * kept[..., None] + y),
            top.at[b, t].set(now),
            total.at[b, t].set(total[b, t] * kept + weights.sum(axis=-1)),
        )

    zeros = jnp.zeros(q.shape, jnp.float32)
    first = (zeros, jnp.full(q.shape[:-1], FLOOR), zeros[..., 0])
    out, top, total = jax.lax.fori_loop(0, count, step, first)
    total = jnp.where(total > 0, total, 1.0)  # queries that no pair has: 0, not NaN
    return out / total[..., None], top + jnp.log(total)


@jax.custom_vjp
def _walk(q, k, v, q_side, kv_side, live):
    return _softmax(q, k, v, q_side, kv_side, live)[0].astype(q.dtype)


def _walk_forward(q, k, v, q_side, kv_side, live):
    out, log_total = _softmax(q, k, v, q_side, kv_side, live)
    out = out.astype(q.dtype)
    return out, (q, k, v, q_side, kv_side, live, out, log_total)


def _walk_backward(kept, g):
    """Scores are made again, pair by pair; gradients add up in place, in float32."""
    q, k, v, q_side, kv_side, (pairs, count), out, log_total = kept
    mean = jnp.sum(out.astype(jnp.float32) * g.astype(jnp.float32), axis=-1)

    def step(i, grads):
        dq, dk, dv = grads
        b, t, s = pairs[i]
        x = _scores(q, k, q_side, kv_side, b, t, s)
        weights = jnp.exp(x - log_total[b, t][..., None])
        dx = _dot("KTE,KSE->KTS", g[b, t], v[b, s]) - mean[b, t][..., None]
        dx = (weights * dx * q.shape[-1] ** -0.5).astype(q.dtype)
        return (
            dq.at[b, t].add(_dot("KTS,KSE->KTE", dx, k[b, s])),
            dk.at[b, s].add(_dot("KTS,KTE->KSE", dx, q[b, t])),
            dv.at[b, s].add(_dot("KTS,KTE->KSE", weights.astype(g.dtype), g[b, t])),
        )

    zeros = tuple(jnp.zeros(x.shape, jnp.float32) for x in (q, k, v))
    grads = jax.lax.fori_loop(0, count, step, zeros)
    return (*(d.astype(x.dtype) for d, x in zip(grads, (q, k, v))), None, None, None)


_walk.defvjp(_walk_forward, _walk_backward)


IMPLEMENTATIONS = {"xla": _xla, "blocks": _blocks}
