"""Splash attention: JAX's block-sparse flash kernel for TPU, for whole rows.

It walks the blocks under the diagonal and keeps no [T, S] matrix, forward or backward.
A TPU runs the kernel; a CPU interprets it, block by block, to be compared with: right,
and slow. Other devices are refused when the program is lowered.

Mosaic kernels cannot be partitioned by the compiler, so `models.attention` calls this
inside a `shard_map`: everything here is about the rows and heads of one device.
"""

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu.splash_attention import (
    splash_attention_kernel as kernels,
)
from jax.experimental.pallas.ops.tpu.splash_attention import (
    splash_attention_mask as masks,
)

LANES = 128  # a block of keys is a multiple of it
BLOCK = 512  # the largest block; its float32 scores are 1 MiB of the chip's VMEM


def whole_rows(
    q: jax.Array, k: jax.Array, v: jax.Array, segments: jax.Array | None
) -> jax.Array:
    """Attend causally inside every segment.

    Args:
        q: [B, H, T, E], not yet scaled.
        k, v: [B, K, T, E], K divides H.
        segments: int32[B, T]; None: one segment.

    Returns:
        [B, H, T, E] in q's dtype.
    """
    length = q.shape[2]
    q = (q.astype(jnp.float32) * q.shape[-1] ** -0.5).astype(q.dtype)
    # Places that fill the last block stand behind every query, so no query sees them.
    room = -length % LANES
    q, k, v = (jnp.pad(x, ((0, 0), (0, 0), (0, room), (0, 0))) for x in (q, k, v))
    arrays = (q, k, v)
    if segments is not None:
        arrays += (jnp.pad(segments, ((0, 0), (0, room))),)

    def run(interpret):
        return lambda *arrays: _rows(*arrays, interpret=interpret)

    out = jax.lax.platform_dependent(*arrays, cpu=run(True), tpu=run(False))
    return out[:, :, :length]


def _rows(q, k, v, segments=None, *, interpret):
    heads, length = q.shape[1:3]
    block = next(b for b in (BLOCK, 256, LANES) if length % b == 0)
    kernel = kernels.make_splash_mha(
        masks.MultiHeadMask([masks.CausalMask((length, length))] * heads),
        block_sizes=kernels.BlockSizes(
            block_q=block,
            block_kv=block,
            block_q_dkv=block,
            block_kv_dkv=block,
            block_q_dq=block,
            block_kv_dq=block,
        ),
        head_shards=1,
        q_seq_shards=1,
        interpret=interpret,
    )
    if segments is None:
        return jax.vmap(kernel)(q, k, v)
    return jax.vmap(lambda q, k, v, ids: kernel(q, k, v, kernels.SegmentIds(ids, ids)))(
        q, k, v, segments
    )
