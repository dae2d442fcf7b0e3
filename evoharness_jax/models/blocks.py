"""Attention over pairs of blocks, softmax and gradient online; what CPUs train with.

A pair of 64 queries and 64 keys is computed if something in it may be seen, so packed
rows cost what their segments cost. On CPU a [B, H, T, S] matrix costs more to allocate
(the kernel zeroes its pages at every step) than to fill, and packed rows hardly look at
it. Letters are those of `models.attention`.
"""

from functools import partial

import jax
import jax.numpy as jnp

BLOCK = 64  # queries, and keys, of one step: a step's scores stay in the L2 cache
FLOOR = jnp.finfo(jnp.float32).min  # score of what is not seen; finite, as in `xla`


def pairwise(q, k, v, q_order, kv_order, q_segments, kv_segments, q_parents):
    """Cut everything into blocks, walk the live pairs, put the blocks together.

    Args:
        q: [B, H, T, E], not yet scaled.
        k, v: [B, K, S, E], K divides H.
        q_order, q_segments, q_parents: int32[B, T]; kv_order, kv_segments: int32[B, S];
            query t sees key s iff q_order[t] >= kv_order[s] and the key's segment is
            that of the query, or its parent.

    Returns:
        [B, H, T, E] in q's dtype.
    """
    B, H, T, E = q.shape
    K = k.shape[1]
    # A place that fills the last block sees nothing as a query, is not seen as a key.
    last = jnp.iinfo(jnp.int32).max
    q_side = _cut(q_order, -1), _cut(q_segments, 0), _cut(q_parents, 0)
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

    def meet(x, y):
        (x_low, x_high), (y_low, y_high) = segments(x), segments(y)
        below = x_low[:, :, None] <= y_high[:, None, :]
        return below & (y_low[:, None, :] <= x_high[:, :, None])

    live = ends(q_side[0])[1][:, :, None] >= ends(kv_side[0])[0][:, None, :]
    live &= meet(q_side[1], kv_side[1]) | meet(q_side[2], kv_side[1])
    pairs = jnp.nonzero(live, size=live.size, fill_value=0)
    return jnp.stack(pairs, axis=-1).astype(jnp.int32), jnp.sum(live)


def _scores(q, k, q_side, kv_side, b, t, s):
    """Scores f32[K, G * BLOCK, BLOCK] of query block t and key block s of row b."""
    keys = kv_side[1][b, s][None]
    seen = q_side[1][b, t][:, None] == keys
    seen |= q_side[2][b, t][:, None] == keys
    seen &= q_side[0][b, t][:, None] >= kv_side[0][b, s][None]
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
