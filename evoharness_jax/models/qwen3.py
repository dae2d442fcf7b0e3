"""Qwen3 as pure functions over a plain nested dict of arrays.

    init(key, config) -> params          shapes, logical_axes, param_count: no memory
    hidden, forward, logprobs            whole rows, packed by segment ids
    init_cache, extend                   rows that grow; T = 1 is a decoding step

The decoder itself is `models.decoder`. Axis legend: B rows, L (in `extend` T) tokens,
S cache positions, D width, V vocabulary. Logits and log-probabilities are float32
whatever the compute dtype. Functions here are not jitted: jit them where they are
called, with `config` static.
"""

from math import prod
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from evoharness_jax.mesh import constrain
from evoharness_jax.models import lora, narrow, scores
from evoharness_jax.models.attention import CACHE_AXES, Cache, Mask
from evoharness_jax.models.decoder import CONFIGS, Config, Decoder

__all__ = [
    "CACHE_AXES",
    "CONFIGS",
    "Cache",
    "Config",
    "extend",
    "forward",
    "hidden",
    "init",
    "init_cache",
    "logical_axes",
    "logprobs",
    "param_count",
    "shapes",
]


def _boxed(key, config):
    # No rows: whatever mesh is ambient, nothing is left that it could not divide.
    tokens = jnp.zeros((0, 1), jnp.int32)
    return Decoder(config).init(key, tokens, tokens, Mask())["params"]


def _is_box(x):
    return isinstance(x, nn.meta.AxisMetadata)


def init(key: jax.Array, config: Config) -> dict[str, Any]:
    """Draw parameters: a plain nested dict of arrays in `config.param_dtype`.

    Weights are normal with deviation 0.02 (o and down: 0.02 / sqrt(2 layers)), norm
    scales one. jit it with `out_shardings` to make a large model in place.
    """
    return jax.tree.map(lambda b: b.value, _boxed(key, config), is_leaf=_is_box)


def _abstract(config):
    return jax.eval_shape(lambda: _boxed(jax.random.key(0), config))


def shapes(config: Config) -> dict[str, Any]:
    """Return the tree of ShapeDtypeStructs that `init` would fill; no memory."""
    return jax.tree.map(lambda b: b.value, _abstract(config), is_leaf=_is_box)


def logical_axes(config: Config) -> dict[str, Any]:
    """Return the tree of `init`, each leaf the tuple of its logical axis names."""
    return jax.tree.map(lambda b: tuple(b.names), _abstract(config), is_leaf=_is_box)


def param_count(config: Config) -> int:
    """Count parameters without making them; a tied head counts once."""
    return sum(prod(leaf.shape) for leaf in jax.tree.leaves(shapes(config)))


def _variables(params):
    """Split params into Flax's collections: the weights, and what lies beside them."""
    beside = (lora.KEY, narrow.KEY)
    found = {name: {"layers": params[name]} for name in beside if name in params}
    weights = {name: leaf for name, leaf in params.items() if name not in beside}
    return {"params": weights, **found}


def _derived(tokens, positions, segment_ids, parents):
    """Fill in positions that restart at 0 in every segment, and the row's mask."""
    if parents is not None and (positions is None or segment_ids is None):
        raise ValueError("parents want segment_ids, and positions that go on from them")
    if positions is None:
        places = jnp.arange(tokens.shape[1], dtype=jnp.int32)
        positions = jnp.broadcast_to(places, tokens.shape)
        if segment_ids is not None:
            starts = jnp.where(_continues(segment_ids), 0, positions)
            positions = positions - jax.lax.cummax(starts, axis=1)
    return positions, Mask(
        q_segments=segment_ids, kv_segments=segment_ids, q_parents=parents
    )


def _continues(segment_ids):
    """Say where a token follows another one of its segment: bool[B, L]."""
    same = segment_ids[:, 1:] == segment_ids[:, :-1]
    return jnp.pad(same, ((0, 0), (1, 0)))


def _logits(params, config, h):
    head = params["embed" if config.tie_embeddings else "head"].astype(config.dtype)
    logits = jnp.einsum("...D,VD->...V", h, head, preferred_element_type=jnp.float32)
    return constrain(logits, ("batch", *(None,) * (h.ndim - 2), "vocab"))


def hidden(
    params: Any,
    config: Config,
    tokens: jax.Array,
    positions: jax.Array | None = None,
    segment_ids: jax.Array | None = None,
    parents: jax.Array | None = None,
) -> jax.Array:
    """Run the decoder up to and including the final norm.

    Args:
        params: as `init` makes them, of any float dtype; or `lora.attach`.
        config: the model's shape.
        tokens: int32[B, L].
        positions: int32[B, L] for rope; by default they count from 0 in every segment.
        segment_ids: int32[B, L], the segments of packed rows, each one contiguous; 0
            is padding, whose results are finite and mean nothing. None: one segment.
        parents: int32[B, L], the segment that a token's own one continues, its own
            where there is none: it must stand before, and `positions` must count on
            from its end. Turns that share the head of their episode then cost it once.

    Returns:
        [B, L, D] in the compute dtype.

    Raises:
        ValueError: parents without segment_ids and positions.
    """
    positions, mask = _derived(tokens, positions, segment_ids, parents)
    return Decoder(config).apply(_variables(params), tokens, positions, mask)[0]


def forward(
    params: Any,
    config: Config,
    tokens: jax.Array,
    positions: jax.Array | None = None,
    segment_ids: jax.Array | None = None,
    parents: jax.Array | None = None,
) -> jax.Array:
    """Return the logits float32[B, L, V] of every next token; arguments as `hidden`."""
    h = hidden(params, config, tokens, positions, segment_ids, parents)
    return _logits(params, config, h)


def logprobs(
    params: Any,
    config: Config,
    tokens: jax.Array,
    positions: jax.Array | None = None,
    segment_ids: jax.Array | None = None,
    parents: jax.Array | None = None,
    chunk: int = 256,
    temperature: float = 1.0,
) -> tuple[jax.Array, jax.Array]:
    """Score every token given what stands before it in its segment.

    Logits exist for `chunk` places of every row at a time, in the backward pass too.

    Args:
        params, config, tokens, positions, segment_ids, parents: as `hidden`.
        chunk: places per step, at least 1; it need not divide L.
        temperature: positive; logits are divided by it.

    Returns:
        logp float32[B, L], the log-probability of tokens[:, t], and entropy
        float32[B, L], in nats, of the distribution it was scored under. Both are 0.0
        at the first token of a segment and at padding.

    Raises:
        ValueError: chunk below 1.
    """
    if chunk < 1:
        raise ValueError(f"chunk must be at least 1: {chunk=}")
    h = hidden(params, config, tokens, positions, segment_ids, parents)
    B, L = tokens.shape
    chunk = min(chunk, L)
    steps = -(-L // chunk)
    # Place t is scored by the state at t - 1; what wraps around is masked below.
    pad = ((0, 0), (0, steps * chunk - L))
    before = jnp.pad(jnp.roll(h, 1, axis=1), (*pad, (0, 0)))
    target = jnp.pad(tokens, pad)

    head = params["embed" if config.tie_embeddings else "head"]
    logp, entropy = (
        x[:, :L] for x in scores.scores(before, head, target, chunk, temperature)
    )
    if segment_ids is None:
        segment_ids = jnp.ones_like(tokens)
    scored = _continues(segment_ids) & (segment_ids != 0)
    return jnp.where(scored, logp, 0.0), jnp.where(scored, entropy, 0.0)


def init_cache(config: Config, batch: int, length: int) -> Cache:
    """Make an empty cache for `batch` rows of up to `length` positions."""
    shape = (config.layers, batch, config.kv_heads, length, config.head_dim)
    zeros = jnp.zeros(shape, jnp.dtype(config.dtype))
    return Cache(k=zeros, v=jnp.zeros_like(zeros))


def extend(
    params: Any,
    config: Config,
    cache: Cache,
    tokens: jax.Array,
    start: jax.Array,
    count: jax.Array,
) -> tuple[Cache, jax.Array]:
    """Append tokens to rows of the cache; with T = 1 this is a decoding step.

    Args:
        params, config: as `hidden`.
        cache: slots 0 .. start[b] - 1 of row b are written; donate it.
        tokens: int32[B, T].
        start: int32[B], position of the row's first new token.
        count: int32[B], 0 .. T; how many of its tokens are real. Padding is never
            written, a row with count 0 stays bit for bit. Nor is anything written at
            or past the cache's length, so grow the cache first: start + count <= S.

    Returns:
        The cache, and the logits float32[B, V] at each row's last real token (rows
        with count 0: finite, meaningless).
    """
    T, S = tokens.shape[1], cache.k.shape[3]
    step = jnp.arange(T, dtype=jnp.int32)[None]
    positions = start[:, None] + step
    # Out of range is S, which the scatter drops; a negative index would wrap around.
    real = (step < count[:, None]) & (positions >= 0)
    slots = jnp.where(real, positions, S)
    mask = Mask(positions, jnp.arange(S, dtype=jnp.int32)[None])
    h, cache = Decoder(config).apply(
        _variables(params), tokens, positions, mask, cache, slots
    )
    last = jnp.maximum(count - 1, 0)[:, None, None]
    h = jnp.take_along_axis(h, last, axis=1)[:, 0]
    return cache, _logits(params, config, h)
