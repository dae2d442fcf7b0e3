"""The rollout engine's programs: B rows that keep their KV, extended and continued.

    extend     append ids to some of the rows; the others stay as they are
    copy       give rows the KV of others that begin with the same ids
    generate   sample until enough rows have stopped, or their responses are full

They know shapes and nothing of episodes; who holds which ids is `rollout.slots`. Every
shape is one of a few (`lengths`, `WIDTHS`, `Engine.subsets`), so that a run compiles a
known list of programs and then none.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from evoharness_jax.models import qwen3
from evoharness_jax.rollout.sampling import Sampling, sample, turn_keys

SHORTEST = 256  # positions that a row has at least
WIDTHS = (16, 64, 128, 256)  # of the blocks that new ids are fed in


class Engine(NamedTuple):
    """What the programs of one model and batch are compiled for."""

    config: qwen3.Config
    rows: int  # B
    context: int  # positions a row can hold
    response: int  # ids a response may have
    sampling: Sampling
    stop_ids: tuple[int, ...]
    # How many rows `extend` may take at once, ascending, the last one all of them.
    # (): always all, and nothing is copied between rows: they lie on several devices.
    subsets: tuple[int, ...] = ()


@struct.dataclass
class Answers:
    """Responses under way, one a row."""

    logits: jax.Array  # f32[B, V] of the next id
    start: jax.Array  # int32[B] its position in the row
    ids: jax.Array  # int32[B, response]
    logp: jax.Array  # f32[B, response] under the distribution sampled from
    raw_logp: jax.Array  # f32[B, response] at temperature 1, nothing filtered
    count: jax.Array  # int32[B] ids so far
    done: jax.Array  # bool[B] nothing to do: stopped, full, or not asked
    uid: jax.Array  # int32[B] of the episode; with the turn it names the random stream
    turn: jax.Array  # int32[B]


def no_answers(engine: Engine) -> Answers:
    """Make the Answers of B rows that have not been asked."""

    # Buffers of their own, each: they are donated.
    def zeros(*shape, dtype=jnp.int32):
        return jnp.zeros((engine.rows, *shape), dtype)

    return Answers(
        logits=zeros(engine.config.vocab_size, dtype=jnp.float32),
        start=zeros(),
        ids=zeros(engine.response),
        logp=zeros(engine.response, dtype=jnp.float32),
        raw_logp=zeros(engine.response, dtype=jnp.float32),
        count=zeros(),
        done=jnp.ones(engine.rows, bool),
        uid=zeros(),
        turn=zeros(),
    )


def lengths(engine: Engine) -> tuple[int, ...]:
    """Return the lengths that a cache may have: 256, 384, 512, 768, ... the context."""
    found, length = [], SHORTEST
    while length < engine.context:
        found.append(length)
        length = 3 * length // 2 if length & (length - 1) == 0 else 4 * length // 3
    return (*found, engine.context)


@partial(jax.jit, static_argnums=1)
def resize(cache: qwen3.Cache, length: int) -> qwen3.Cache:
    """Copy a cache to another length; what lies behind it is lost."""
    spare = max(0, length - cache.k.shape[3])
    room = ((0, 0), (0, 0), (0, 0), (0, spare), (0, 0))
    return jax.tree.map(lambda x: jnp.pad(x, room)[:, :, :, :length], cache)


@partial(jax.jit, static_argnums=0, donate_argnums=(2, 3))
def extend(engine: Engine, params, cache, logits, block, start, count, rows=None):
    """Append ids to rows of the cache: `qwen3.extend` on all rows or on some.

    Args:
        cache, logits: donated; logits f32[B, V] are replaced where ids were appended.
        block: int32[R, T]. start, count: int32[R].
        rows: int32[R], the rows that these are; B or more: none, with count 0. None:
            all, in order.

    Returns:
        cache, logits.
    """
    if rows is None:
        cache, new = qwen3.extend(params, engine.config, cache, block, start, count)
        return cache, jnp.where((count > 0)[:, None], new, logits)
    part = jax.tree.map(lambda x: x.at[:, rows].get(mode="clip"), cache)
    part, new = qwen3.extend(params, engine.config, part, block, start, count)
    cache = jax.tree.map(lambda x, y: x.at[:, rows].set(y, mode="drop"), cache, part)
    rows = jnp.where(count > 0, rows, engine.rows)
    return cache, logits.at[rows].set(new, mode="drop")


@partial(jax.jit, donate_argnums=0)
def copy(cache: qwen3.Cache, source, target) -> qwen3.Cache:
    """Copy whole rows, from source int32[R] to target int32[R]; B or more: none."""
    return jax.tree.map(
        lambda x: x.at[:, target].set(x.at[:, source].get(mode="clip"), mode="drop"),
        cache,
    )


@partial(jax.jit, donate_argnums=0)
def ask(answers: Answers, asked, start, uid, turn) -> Answers:
    """Begin responses in the rows of asked bool[B]; the others int32[B]."""
    return answers.replace(
        start=jnp.where(asked, start, answers.start),
        count=jnp.where(asked, 0, answers.count),
        done=answers.done & ~asked,
        uid=jnp.where(asked, uid, answers.uid),
        turn=jnp.where(asked, turn, answers.turn),
    )


@partial(jax.jit, static_argnums=0, donate_argnums=(2, 3))
def generate(engine: Engine, params, cache, answers, run_key, live, enough, most):
    """Sample until `enough` of the live rows are done, at most `most` ids a row.

    Args:
        cache: slots 0 .. start[b] + count[b] - 1 are written; donated.
        answers: donated.
        run_key: key. live: bool[B], rows whose responses are waited for.
        enough, most: int32[].

    Returns:
        cache, answers, steps taken int32[].
    """
    keys = turn_keys(run_key, answers.uid, answers.turn)
    stops = jnp.array(engine.stop_ids, jnp.int32)
    places = jnp.arange(engine.response)

    def more(carry):
        i, _, now = carry
        return (i < most) & ((now.done & live).sum() < enough)

    def one(carry):
        i, cache, now = carry
        token, logp, raw = sample(engine.sampling, now.logits, keys, now.count)
        here = (places == now.count[:, None]) & ~now.done[:, None]
        count = now.count + ~now.done
        stopped = (token[:, None] == stops).any(axis=1) | (count >= engine.response)
        done = now.done | stopped
        cache, logits = qwen3.extend(
            params,
            engine.config,
            cache,
            token[:, None],
            now.start + now.count,
            (~done).astype(jnp.int32),
        )
        now = now.replace(
            logits=logits,
            ids=jnp.where(here, token[:, None], now.ids),
            logp=jnp.where(here, logp[:, None], now.logp),
            raw_logp=jnp.where(here, raw[:, None], now.raw_logp),
            count=count,
            done=done,
        )
        return i + 1, cache, now

    carry = (jnp.zeros((), jnp.int32), cache, answers)
    steps, cache, answers = jax.lax.while_loop(more, one, carry)
    return cache, answers, steps


PROGRAMS = (resize, extend, copy, ask, generate)


def compilations() -> int:
    """Count the programs that this process has compiled so far."""
    return sum(program._cache_size() for program in PROGRAMS)
