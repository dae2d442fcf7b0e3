"""Sampling: logits -> a token, its log-probability under what was sampled from, and
under the plain distribution.

Keys are folded from (run, episode, turn, token), so that a sample depends on nothing
else: not on its row, its batch mates or a restart.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp


class Sampling(NamedTuple):
    """How tokens are drawn. Static under jit."""

    temperature: float = 1.0  # 0: greedy
    top_k: int = 0  # keep the k most likely; 0: all
    top_p: float = 1.0  # keep the most likely that together reach this mass

    def check(self) -> None:
        """Raise ValueError, naming the setting, where one is out of range."""
        if self.temperature < 0:
            raise ValueError(f"temperature must not be negative: {self.temperature}")
        if self.top_k < 0:
            raise ValueError(f"top_k must not be negative: {self.top_k}")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must lie in (0, 1]: {self.top_p}")


def turn_keys(run_key, episodes, turns):
    """Return one key a row, from episode uids int32[B] and turns int32[B]."""

    def fold(episode, turn):
        return jax.random.fold_in(jax.random.fold_in(run_key, episode), turn)

    return jax.vmap(fold)(episodes, turns)


def sample(sampling: Sampling, logits, keys, index):
    """Draw one token a row.

    Args:
        logits: f32[B, V].
        keys: key[B], one a row and turn.
        index: int32[B] position of the token in its response.

    Returns:
        ids int32[B], logp f32[B] under the distribution drawn from (0 when greedy:
        the choice was certain), raw_logp f32[B] at temperature 1, nothing filtered.
    """
    raw = jax.nn.log_softmax(logits)
    if sampling.temperature == 0:
        ids = jnp.argmax(logits, axis=-1).astype(jnp.int32)
        return ids, jnp.zeros(ids.shape, jnp.float32), _pick(raw, ids)
    kept = _filter(sampling, jax.nn.log_softmax(logits / sampling.temperature))
    drawn_from = jax.nn.log_softmax(kept)
    token_keys = jax.vmap(jax.random.fold_in)(keys, index)
    ids = jax.vmap(jax.random.categorical)(token_keys, drawn_from).astype(jnp.int32)
    return ids, _pick(drawn_from, ids), _pick(raw, ids)


def _filter(sampling: Sampling, logp):
    """Set what top-k and top-p leave out to -inf. The most likely token stays."""
    if sampling.top_k:
        best = jax.lax.top_k(logp, min(sampling.top_k, logp.shape[-1]))[0]
        logp = jnp.where(logp < best[:, -1:], -jnp.inf, logp)
    if sampling.top_p < 1:
        order = jnp.flip(jnp.sort(logp, axis=-1), axis=-1)
        before = jnp.cumsum(jnp.exp(order), axis=-1) - jnp.exp(order)
        total = jnp.exp(order).sum(axis=-1, keepdims=True)
        inside = before < sampling.top_p * total
        last = jnp.min(jnp.where(inside, order, jnp.inf), axis=-1, keepdims=True)
        logp = jnp.where(logp < last, -jnp.inf, logp)
    return logp


def _pick(logp, ids):
    return jnp.take_along_axis(logp, ids[:, None], axis=-1)[:, 0]
