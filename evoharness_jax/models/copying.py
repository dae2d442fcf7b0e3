"""Draw a small model that can already copy: a start for training from scratch.

Most of what an agent answers are words that it has just read ("take potato 2 from
shelf 1"). A transformer copies with a pair of heads (an induction circuit, arXiv
2209.11895): one sees the word before, the other finds where the present word stood and
what followed it there. From plain random weights a model of a million parameters spends
most of its training before that pair forms. This draw begins with one, in the spirit of
mimetic initialisation (arXiv 2305.09828); all of it is trained like everything else:

    layer 0       the query heads of the first KV head look back one word, two words,
                  ...; what the first of them sees is read in one subspace and written
                  into another
    later layers  the first KV head has its queries in the one, its keys in the other:
                  it finds what followed the present word, and writes it as it was read

The rest is normal, with a deviation that suits the width.
"""

from typing import Any

import jax
import jax.numpy as jnp

from evoharness_jax.models import qwen3
from evoharness_jax.models.decoder import Config
from evoharness_jax.models.rope import frequencies

PLAIN = 0.02  # deviation of `qwen3.init`
DEVIATION = 0.68  # of weights, times sqrt(width)
SHARPNESS = 1.5  # of the norms of queries and keys: attention that can single out
SHARED = 0.7  # norm of what all embeddings have in common, over that of their rest
NOISE = 0.1  # what is left of the plain draw in queries and keys that are given
WRITTEN = 0.12, 0.25  # gain of the word before, and of the word that followed
FAST, SLOW = 0.15, 0.02  # radians a word: rope entries that tell places, or contents


def init(key: jax.Array, config: Config) -> dict[str, Any]:
    """Draw parameters as `qwen3.init` does, with heads that copy.

    Raises:
        ValueError: the shape has no room for them, or no tied embeddings to read words
            back with.
    """
    _check(config)
    width, size = config.width, config.head_dim
    queries = config.heads // config.kv_heads
    keys = jax.random.split(key, config.layers + 2)
    params = qwen3.init(keys[0], config)
    grown = DEVIATION / width**0.5 / PLAIN
    layers = {
        name: leaf * (SHARPNESS if name in ("q_norm", "k_norm") else 1)
        if "norm" in name
        else leaf * grown
        for name, leaf in params["layers"].items()
    }

    axes = jnp.linalg.qr(jax.random.normal(keys[1], (width, width)))[0]
    shared, read, kept = (
        axes[:, 0],
        axes[:, 1 : 1 + size],
        axes[:, 1 + size :][:, :size],
    )
    embed = params["embed"] * grown
    norm = jnp.mean(jnp.linalg.norm(embed, axis=1))
    embed = embed + SHARED * norm * shared

    q, k, v, o = (layers[name] for name in "qkvo")
    turns = jnp.asarray(frequencies(size, config.rope_theta, config.rope_scaling)[0])
    place = jnp.concatenate([turns > FAST, jnp.zeros_like(turns)]).astype(q.dtype)
    k = k.at[0, :, 0].set(NOISE * k[0, :, 0] + jnp.outer(shared, place))
    for head in range(queries):
        back = _turned(place, -(head + 1) * turns)
        q = q.at[0, :, head].set(NOISE * q[0, :, head] + jnp.outer(shared, back))
    v = v.at[0, :, 0].set(read)
    o = o.at[0, 0].set(WRITTEN[0] * kept.T)

    content = jnp.tile(turns < SLOW, 2)
    for layer in range(1, config.layers):
        copied = jax.random.normal(keys[1 + layer], (width, size))
        copied = jnp.linalg.qr(copied)[0]
        k = k.at[layer, :, 0].set(NOISE * k[layer, :, 0] + kept * content)
        for head in range(queries):
            noise = NOISE * q[layer, :, head]
            q = q.at[layer, :, head].set(noise + read * content)
            o = o.at[layer, head].set(WRITTEN[1] * copied.T)
        v = v.at[layer, :, 0].set(copied)
    layers |= {"q": q, "k": k, "v": v, "o": o}
    drawn = {**params, "embed": embed, "layers": layers}
    return jax.tree.map(lambda new, old: new.astype(old.dtype), drawn, params)


def _turned(x, angle):
    """Rotate x[E] as rope does."""
    first, second = jnp.split(x, 2)
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin])


def _check(config):
    if not config.tie_embeddings or not config.qk_norm:
        raise ValueError(
            "a draw that copies wants tied embeddings and norms of queries and keys: "
            f"{config.tie_embeddings=} {config.qk_norm=}"
        )
    if config.width <= 2 * config.head_dim:
        raise ValueError(
            "a draw that copies wants a width beyond two head dimensions: "
            f"{config.width=} {config.head_dim=}"
        )
