"""Log-probability and entropy of tokens, without the logits of a whole row.

    logp[t] = z[t, token] - log sum exp z[t]      z = h @ head.T / temperature

Logits exist for a chunk of places at a time, and are made again in the backward pass.
On one device a chunk is `chunk` places of every row. On a mesh every device holds its
part of the vocabulary, and reads that chunk of all rows:

    head [V, D] -> [V / devices, D] once;  per chunk: gather h, logits of my words,
    sums over devices; backward: dh is summed in float32, the head's gradient never
    leaves its part of the vocabulary until the chunks are through

so neither the head nor its gradient is ever whole on a device. Axis legend: B rows,
L places, D width, V vocabulary, v words of one device.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero
from jax.sharding import AxisType, PartitionSpec

UNSEEN = -1e30  # logit of a word that only fills the last device's part


def scores(
    h: jax.Array,
    head: jax.Array,
    target: jax.Array,
    chunk: int,
    temperature: float = 1.0,
) -> tuple[jax.Array, jax.Array]:
    """Score every target under the distribution that its state gives.

    Args:
        h: [B, L, D] in the compute dtype; chunk divides L.
        head: [V, D] of any float dtype; it is cast to h's.
        target: int32[B, L].
        chunk: places of a row per step.
        temperature: logits are divided by it.

    Returns:
        logp float32[B, L] and entropy float32[B, L], in nats.
    """
    mesh = jax.sharding.get_abstract_mesh()
    auto = all(kind == AxisType.Auto for kind in mesh.axis_types)
    if mesh.empty or mesh.size == 1 or not auto:
        return _alone(h, head, target, chunk, temperature)
    return _shared(h, head, target, chunk, temperature)


def _alone(h, head, target, chunk, temperature):
    @jax.checkpoint
    def score(h, target):
        # The head is cast in here: its gradient then sums over chunks in its own dtype.
        z = _product("BLD,VD->BLV", h, head.astype(h.dtype)) / temperature
        table = jax.nn.log_softmax(z, axis=-1)
        # A masked sum, not a gather: its gradient is a select instead of a scatter.
        hit = jnp.arange(z.shape[-1], dtype=jnp.int32) == target[..., None]
        chosen = jnp.sum(jnp.where(hit, table, 0.0), axis=-1)
        return chosen, -jnp.sum(jnp.exp(table) * table, axis=-1)

    parts = jax.lax.map(lambda xs: score(*xs), (_cut(h, chunk), _cut(target, chunk)))
    return tuple(_joined(x) for x in parts)


def _cut(x, chunk):
    """[B, L, ...] -> [L / chunk, B, chunk, ...]."""
    B, L = x.shape[:2]
    return x.reshape(B, L // chunk, chunk, *x.shape[2:]).swapaxes(0, 1)


def _joined(x):
    """[L / chunk, B, chunk, ...] -> [B, L, ...]."""
    x = x.swapaxes(0, 1)
    return x.reshape(x.shape[0], -1, *x.shape[3:])


# What follows is about a mesh (fsdp, tp) whose axes are Auto: rows lie over fsdp, the
# vocabulary over both.
BOTH = ("fsdp", "tp")
ROWS, WORDS = PartitionSpec("fsdp"), PartitionSpec(BOTH)


@partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def _shared(h, head, target, chunk, temperature):
    read = partial(_read, chunk=chunk, temperature=temperature, count=head.shape[0])
    return jax.shard_map(
        read, in_specs=(ROWS, WORDS, ROWS), out_specs=(ROWS, ROWS), check_vma=False
    )(h, _parted(head, h.dtype), target)


def _shared_forward(h, head, target, chunk, temperature):
    # A frozen head (the base under an adapter) is marked, so that nothing of its
    # gradient is computed.
    arrays = h.value, head.value, target.value
    return _shared(*arrays, chunk, temperature), (arrays, head.perturbed or None)


def _shared_backward(chunk, temperature, kept, g):
    (h, head, target), trained = kept
    zeros = jnp.zeros(target.shape, jnp.float32)
    g = [zeros if isinstance(x, SymbolicZero) else x for x in g]
    write = partial(
        _write,
        chunk=chunk,
        temperature=temperature,
        count=head.shape[0],
        trained=trained is not None,
    )
    dh, dhead = jax.shard_map(
        write,
        in_specs=(ROWS, WORDS, ROWS, ROWS, ROWS),
        out_specs=(ROWS, WORDS),
        check_vma=False,
    )(h, _parted(head, h.dtype), target, *g)
    if trained is None:
        return dh, None, None
    return dh, dhead[: head.shape[0]].astype(head.dtype), None


_shared.defvjp(_shared_forward, _shared_backward, symbolic_zeros=True)


def _parted(head, dtype):
    """Cast a head, fill it up with zeros, and cut it along the vocabulary."""
    room = -head.shape[0] % jax.sharding.get_abstract_mesh().size
    head = jnp.pad(head.astype(dtype), ((0, room), (0, 0)))
    return jax.lax.with_sharding_constraint(head, WORDS)


def _read(h, head, target, *, chunk, temperature, count):
    """One device's forward pass: logp and entropy f32[B, L] of its own rows."""
    first = jax.lax.axis_index("fsdp") * h.shape[0]

    def one(xs):
        h, target = map(_gathered, xs)
        e, z, total, mean, hit = _table(h, head, target, temperature, count)
        chosen = jax.lax.psum(jnp.where(hit, z, 0.0).sum(axis=-1), BOTH)
        both = chosen - jnp.log(total), jnp.log(total) - mean
        return [jax.lax.dynamic_slice_in_dim(x, first, xs[0].shape[0]) for x in both]

    parts = jax.lax.map(one, (_cut(h, chunk), _cut(target, chunk)))
    return tuple(map(_joined, parts))


def _write(h, head, target, g_logp, g_entropy, *, chunk, temperature, count, trained):
    """One device's backward pass: dh [B, L, D] of its rows, dhead f32[v, D].

    dlogp = hit - p and dentropy = -p (log p + entropy), both with respect to z.
    """

    def one(dhead, xs):
        h, target, g_logp, g_entropy = map(_gathered, xs)
        e, z, total, mean, hit = _table(h, head, target, temperature, count)
        p = e / total[..., None]
        # log p + entropy = z - mean: the log of the total falls out.
        dz = jnp.where(hit, g_logp[..., None], 0.0) - p * (
            g_logp[..., None] + g_entropy[..., None] * (z - mean[..., None])
        )
        dz = (dz / temperature).astype(h.dtype)
        dh = _product("BLV,VD->BLD", dz, head)
        dh = jax.lax.psum_scatter(dh, "fsdp", scatter_dimension=0, tiled=True)
        if trained:
            dhead += _product("BLV,BLD->VD", dz, h)
        return dhead, jax.lax.psum(dh, "tp").astype(h.dtype)

    # Not trained: a gradient of no width, which costs nothing.
    shape = head.shape if trained else (head.shape[0], 0)
    xs = [_cut(x, chunk) for x in (h, target, g_logp, g_entropy)]
    dhead, dh = jax.lax.scan(one, jnp.zeros(shape, jnp.float32), tuple(xs))
    return _joined(dh), dhead


def _gathered(x):
    """Put the rows of all devices together."""
    return jax.lax.all_gather(x, "fsdp", axis=0, tiled=True)


def _table(h, head, target, temperature, count):
    """Return what both passes need of a chunk: all rows, the words of this device.

    z f32[B, L, v], less its maximum over the whole vocabulary; e = exp(z); over the
    whole vocabulary the sum of e and the mean of z, f32[B, L]; and where a word is the
    target.
    """
    part = jax.lax.axis_index("fsdp") * jax.lax.axis_size("tp")
    part += jax.lax.axis_index("tp")
    words = part * head.shape[0] + jnp.arange(head.shape[0], dtype=jnp.int32)
    z = _product("BLD,VD->BLV", h, head) / temperature
    z = jnp.where(words < count, z, UNSEEN)
    z -= jax.lax.pmax(z.max(axis=-1), BOTH)[..., None]
    e = jnp.exp(z)
    total = jax.lax.psum(e.sum(axis=-1), BOTH)
    mean = jax.lax.psum((e * z).sum(axis=-1), BOTH) / total
    return e, z, total, mean, words == target[..., None]


_product = partial(jnp.einsum, preferred_element_type=jnp.float32)
