"""The rollout engine: B rows that keep their KV, extended and continued in step.

    extend     append ids to the rows that have new ones; the others stay as they are
    generate   sample until every row has stopped, or its response is full

A row remembers the ids whose KV it holds. A prompt reuses the longest prefix that it
shares with them, whatever the regime: in `append` everything so far, in `per_turn` the
episode's head. What is computed is only what is new.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from evoharness_jax.models import qwen3, tokens
from evoharness_jax.rollout.sampling import Sampling, sample, turn_keys

SHORTEST = 256  # positions that a row has at least
BLOCKS = (16, 64, 128, 256)  # widths that new ids are fed in


class Engine(NamedTuple):
    """The jitted programs of one model and batch, and their fixed shapes."""

    config: qwen3.Config
    rows: int  # B
    context: int  # positions a row can hold
    response: int  # ids a response may have
    sampling: Sampling
    stop_ids: tuple[int, ...]


class Sampled(NamedTuple):
    ids: list[int]  # the stop id included, where there is one
    logp: np.ndarray  # f32[len(ids)]
    raw_logp: np.ndarray  # f32[len(ids)]


class Rows:
    """KV of B rows and the ids they hold: the one thing that a rollout mutates.

    It is as long as what the rows need now, in a few steps up to the context: attention
    reads all of it for every token, so half the length is near half the time.
    """

    def __init__(self, engine: Engine):
        self.engine = engine
        self.cache = qwen3.init_cache(engine.config, engine.rows, _length(engine, 1))
        self.held: list[list[int]] = [[] for _ in range(engine.rows)]
        self.computed = 0  # token positions fed to the model, padding included

    def fit(self, need: int) -> None:
        """Grow or shrink to hold `need` ids a row; what lies behind is forgotten."""
        length = _length(self.engine, need)
        if length != self.cache.k.shape[3]:
            self.cache = _resize(self.cache, length)
            self.held = [ids[:length] for ids in self.held]

    def forget(self) -> None:
        """Drop what the rows hold: after the weights have changed, it is stale."""
        self.held = [[] for _ in range(self.engine.rows)]


def _length(engine: Engine, need: int) -> int:
    """Return the smallest of 256, 384, 512, 768, 1024, ... that holds `need`."""
    length = SHORTEST
    while length < min(need, engine.context):
        length = 3 * length // 2 if length & (length - 1) == 0 else 4 * length // 3
    return min(length, engine.context)


@partial(jax.jit, static_argnums=1)
def _resize(cache: qwen3.Cache, length: int) -> qwen3.Cache:
    spare = max(0, length - cache.k.shape[3])
    room = ((0, 0), (0, 0), (0, 0), (0, spare), (0, 0))
    return jax.tree.map(lambda x: jnp.pad(x, room)[:, :, :, :length], cache)


def answer(
    engine: Engine,
    rows: Rows,
    params,
    run_key,
    prompts: dict[int, list[int]],
    episodes: dict[int, tuple[int, int]],
) -> dict[int, Sampled]:
    """Continue each prompt.

    Args:
        prompts: row -> all ids of the context so far.
        episodes: row -> (episode uid, turn), which name the random stream.

    Raises:
        ValueError: a prompt is empty, or leaves no room for a response.
    """
    for row, prompt in prompts.items():
        if not prompt:
            raise ValueError(f"the prompt of row {row} is empty: it was not encoded")
        if len(prompt) + engine.response > engine.context:
            raise ValueError(
                f"a prompt of {len(prompt)} ids and a response of {engine.response} "
                f"do not fit a context of {engine.context}"
            )
    rows.fit(max(map(len, prompts.values()), default=0) + engine.response)
    new, start = {}, np.zeros(engine.rows, np.int32)
    for row, prompt in prompts.items():
        # The last id is always fed again: its logits start the response.
        same = _shared(rows.held[row], prompt[:-1])
        new[row], start[row] = prompt[same:], same
    logits = jnp.zeros((engine.rows, engine.config.vocab_size), jnp.float32)
    while any(new.values()):
        widest = max(len(ids) for ids in new.values())
        width = tokens.bucket(min(widest, BLOCKS[-1]), BLOCKS)
        block = np.zeros((engine.rows, width), np.int32)
        count = np.zeros(engine.rows, np.int32)
        for row, ids in new.items():
            count[row] = min(len(ids), width)
            block[row, : count[row]] = ids[:width]
            new[row] = ids[width:]
        rows.cache, fresh = extend(engine, params, rows.cache, block, start, count)
        logits = jnp.where((count > 0)[:, None], fresh, logits)
        start = start + count
        rows.computed += engine.rows * width
    live = np.zeros(engine.rows, bool)
    uid, turn = np.zeros(engine.rows, np.int32), np.zeros(engine.rows, np.int32)
    for row in prompts:
        live[row] = True
        uid[row], turn[row] = episodes[row]
    rows.cache, ids, logp, raw, count, steps = generate(
        engine, params, rows.cache, logits, start, live, run_key, uid, turn
    )
    ids, logp, raw, count = jax.device_get((ids, logp, raw, count))
    rows.computed += engine.rows * int(steps)
    result = {}
    for row, prompt in prompts.items():
        n = int(count[row])
        said = ids[row, :n].tolist()
        rows.held[row] = prompt + said[:-1]  # the last id was never fed
        result[row] = Sampled(said, logp[row, :n], raw[row, :n])
    return result


def _shared(held: list[int], prompt: list[int]) -> int:
    limit = min(len(held), len(prompt))
    if held[:limit] == prompt[:limit]:
        return limit
    return next(i for i in range(limit) if held[i] != prompt[i])


@partial(jax.jit, static_argnums=0, donate_argnums=2)
def extend(engine: Engine, params, cache, block, start, count):
    """Append block int32[B, T]: `qwen3.extend`, jitted; the cache is donated."""
    return qwen3.extend(params, engine.config, cache, block, start, count)


@partial(jax.jit, static_argnums=0, donate_argnums=2)
def generate(engine: Engine, params, cache, logits, start, live, run_key, uid, turn):
    """Sample until every row has stopped, or its response is full.

    Args:
        cache: slots 0 .. start[b] - 1 are written; donated.
        logits: f32[B, V] of the first token.
        start: int32[B]. live: bool[B], rows that want a response.
        run_key: key. uid, turn: int32[B], see `turn_keys`.

    Returns:
        cache, ids int32[B, response], logp and raw_logp f32[B, response], how many of
        them each row has int32[B], steps taken int32[].
    """
    keys = turn_keys(run_key, uid, turn)
    rows, most = engine.rows, engine.response
    stops = jnp.array(engine.stop_ids, jnp.int32)

    def more(carry):
        i, done = carry[0], carry[1]
        return (i < most) & ~done.all()

    def one(carry):
        i, done, count, cache, logits, ids, logp, raw = carry
        token, token_logp, token_raw = sample(engine.sampling, logits, keys, i)
        here = (jnp.arange(most) == i) & ~done[:, None]
        ids = jnp.where(here, token[:, None], ids)
        logp = jnp.where(here, token_logp[:, None], logp)
        raw = jnp.where(here, token_raw[:, None], raw)
        count = count + ~done
        stopped = (token[:, None] == stops).any(axis=1)
        done = done | stopped | (i + 1 >= most)
        cache, logits = qwen3.extend(
            params,
            engine.config,
            cache,
            token[:, None],
            start + i,
            (~done).astype(jnp.int32),
        )
        return i + 1, done, count, cache, logits, ids, logp, raw

    empty = jnp.zeros((rows, most), jnp.float32)
    carry = (
        jnp.zeros((), jnp.int32),
        ~live,
        jnp.zeros(rows, jnp.int32),
        cache,
        logits,
        jnp.zeros((rows, most), jnp.int32),
        empty,
        empty,
    )
    steps, _, count, cache, _, ids, logp, raw = jax.lax.while_loop(more, one, carry)
    return cache, ids, logp, raw, count, steps
