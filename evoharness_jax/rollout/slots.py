"""Who holds what: B rows of KV, the ids in them, and the responses under way.

A row remembers the ids whose KV it holds, and a prompt computes only what is new to it:
in `append` what came since, in `per_turn` the turn's tail. What an episode begins with
is computed once for all that begin with it: its rows copy it from the row that has it,
or wait for the one that computes it.

    put     prompts of some rows; those of others go on meanwhile
    take    wait for enough responses; which they are changes nothing but the order
"""

from math import ceil
from typing import NamedTuple

import jax
import numpy as np

from evoharness_jax.models import qwen3, tokens
from evoharness_jax.rollout import engine as engine_
from evoharness_jax.rollout.engine import WIDTHS, Engine

WORTH_COPYING = 16  # ids; below that a row computes them itself


class Asked(NamedTuple):
    """A prompt for one row."""

    row: int
    ids: list[int]  # of the whole context so far
    uid: int
    turn: int
    head: int = 0  # ids at its beginning that other rows may have too


class Sampled(NamedTuple):
    """A response."""

    ids: list[int]  # the stop id included, where there is one
    logp: np.ndarray  # f32[len(ids)]
    raw_logp: np.ndarray  # f32[len(ids)]


class Rows:
    """KV of B rows and the ids they hold: the one thing that a rollout mutates.

    It is as long as what the rows need now, in a few steps up to the context: attention
    reads all of it for every token, so half the length is near half the time.
    """

    def __init__(self, engine: Engine):
        length = engine_.lengths(engine)[0]
        self.engine = engine
        self.cache = qwen3.init_cache(engine.config, engine.rows, length)
        self.answers = engine_.no_answers(engine)
        self.held: list[list[int]] = [[] for _ in range(engine.rows)]
        self.busy: dict[int, Asked] = {}
        self.ahead: list[jax.Array] = []  # steps taken that are not counted yet
        self.compiled = False  # all programs, before the first prompt
        self.computed = 0  # token positions fed to the model, padding included

    def fit(self, need: int) -> None:
        """Grow to hold `need` ids a row; shrink where no response is under way."""
        length = next(n for n in engine_.lengths(self.engine) if n >= need)
        now = self.cache.k.shape[3]
        if length > now or (length < now and not self.busy):
            self.cache = engine_.resize(self.cache, length)
            self.held = [ids[:length] for ids in self.held]

    def forget(self) -> None:
        """Drop what the rows hold: after the weights have changed, it is stale."""
        self.held = [[] for _ in range(self.engine.rows)]
        self.busy, self.ahead = {}, []
        self.answers = engine_.no_answers(self.engine)


def put(rows: Rows, params, asked: list[Asked]) -> None:
    """Read prompts, so that `take` answers them. Returns before it is computed.

    Raises:
        ValueError: a prompt is empty, leaves no room for a response, or is for a row
            that has one under way.
    """
    engine = rows.engine
    for one in asked:
        _check(rows, one)
    rows.fit(max((len(one.ids) for one in asked), default=0) + engine.response)
    waiting = list(asked)
    while waiting:
        copies, now, later = _round(rows, waiting)
        _copy(rows, copies)
        _extend(rows, params, now)
        for one, _ in now:
            rows.held[one.row] = one.ids
        waiting = later
    row, has = np.zeros((3, engine.rows), np.int32), np.zeros(engine.rows, bool)
    for one in asked:
        row[:, one.row], has[one.row] = (len(one.ids), one.uid, one.turn), True
        rows.busy[one.row] = one
    rows.answers = engine_.ask(rows.answers, has, *row)


def take(
    rows: Rows, params, run_key, wait: float = 1.0, ahead: int = 0
) -> dict[int, Sampled]:
    """Wait for responses; return those that are whole, by row.

    Args:
        wait: share of those under way that must be whole; at least one is.
        ahead: ids that the others may sample meanwhile, while the caller is busy.
    """
    if not rows.busy:
        return {}
    enough = max(1, ceil(wait * len(rows.busy)))
    _generate(rows, params, run_key, enough, rows.engine.response)
    now = rows.answers
    ids, logp, raw, count, done, steps = jax.device_get(
        (now.ids, now.logp, now.raw_logp, now.count, now.done, rows.ahead)
    )
    rows.computed += rows.engine.rows * int(sum(steps))
    rows.ahead = []
    found = {}
    for row in [row for row in rows.busy if done[row]]:
        n = int(count[row])
        said = ids[row, :n].tolist()
        # The last id was never fed.
        rows.held[row] = rows.busy.pop(row).ids + said[:-1]
        found[row] = Sampled(said, logp[row, :n], raw[row, :n])
    if ahead and rows.busy:
        _generate(rows, params, run_key, len(rows.busy), ahead)
    return found


def answer(
    rows: Rows, params, run_key, asked: list[Asked], wait: float = 1.0
) -> dict[int, Sampled]:
    """Continue prompts, all of them: `put`, and `take` until nothing is left."""
    put(rows, params, asked)
    found: dict[int, Sampled] = {}
    while rows.busy:
        found |= take(rows, params, run_key, wait)
    return found


def _check(rows: Rows, one: Asked) -> None:
    engine = rows.engine
    if not one.ids:
        raise ValueError(f"the prompt of row {one.row} is empty: it was not encoded")
    if one.row in rows.busy:
        raise ValueError(f"row {one.row} has a response under way")
    if len(one.ids) + engine.response > engine.context:
        raise ValueError(
            f"a prompt of {len(one.ids)} ids and a response of {engine.response} "
            f"do not fit a context of {engine.context}"
        )


def _round(rows: Rows, waiting: list[Asked]):
    """Say what can be computed now without computing anything twice.

    Returns:
        copies (from row, to row); (prompt, how many ids its row has by then) to compute
        now; prompts that wait for what those begin with.
    """
    copies, now, later = [], [], []
    for one in waiting:
        # The last id is always fed again: its logits start the response.
        least = one.ids[:-1]
        have = shared(rows.held[one.row], least)
        if rows.engine.subsets and have < one.head:
            ahead = max((shared(o.ids, least) for o, _ in now if o.head), default=0)
            source, most = _best(rows, least, have)
            if min(ahead, one.head) > max(have, most) + WORTH_COPYING:
                later.append(one)
                continue
            if most > have + WORTH_COPYING:
                copies.append((source, one.row))
                have = most
        now.append((one, have))
    return copies, now, later


def _best(rows: Rows, ids: list[int], have: int) -> tuple[int, int]:
    """Return the row that holds the longest beginning of these ids, and how long."""
    best, most = -1, have
    for row, held in enumerate(rows.held):
        # What differs where the best one ends is no better.
        if len(held) > most and held[most : most + 1] == ids[most : most + 1]:
            same = shared(held, ids)
            if same > most:
                best, most = row, same
    return best, most


def shared(one: list[int], other: list[int]) -> int:
    """Count the ids that two lists begin with alike."""
    low, high = 0, min(len(one), len(other))
    if one[:high] == other[:high]:
        return high
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _subset(engine: Engine, count: int) -> int:
    """Return how many rows a program takes that is to take `count`."""
    return next((n for n in engine.subsets if n >= count), engine.rows)


def _copy(rows: Rows, copies: list[tuple[int, int]]) -> None:
    if not copies:
        return
    size = _subset(rows.engine, len(copies))
    pairs = np.full((2, size), rows.engine.rows, np.int32)
    pairs[:, : len(copies)] = np.array(copies, np.int32).T
    rows.cache = engine_.copy(rows.cache, *pairs)


def _extend(rows: Rows, params, now: list[tuple[Asked, int]]) -> None:
    """Feed what is new of each prompt, in blocks, to no more rows than need be."""
    left = now
    while left:
        more = []
        for width, some in _blocks(rows.engine, left).items():
            _feed(rows, params, width, some)
            more += [(one, have + width) for one, have in some]
        left = [(one, have) for one, have in more if have < len(one.ids)]


def _blocks(engine: Engine, left: list[tuple[Asked, int]]) -> dict[int, list]:
    """Say which rows are fed together, and how wide: whatever computes less."""
    alike: dict[int, list] = {}
    for one, have in left:
        width = tokens.bucket(min(len(one.ids) - have, WIDTHS[-1]), WIDTHS)
        alike.setdefault(width, []).append((one, have))
    apart = sum(_subset(engine, len(some)) * width for width, some in alike.items())
    together = _subset(engine, len(left)) * max(alike)
    return alike if apart < together else {max(alike): left}


def _feed(rows: Rows, params, width: int, some: list[tuple[Asked, int]]) -> None:
    engine = rows.engine
    size = _subset(engine, len(some))
    block = np.zeros((size, width), np.int32)
    start, count = np.zeros((2, size), np.int32)
    where = np.full(size, engine.rows, np.int32)
    for at, (one, have) in enumerate(some):
        new = one.ids[have : have + width]
        at = one.row if size == engine.rows else at
        block[at, : len(new)] = new
        start[at], count[at], where[at] = have, len(new), one.row
    rows.cache, logits = engine_.extend(
        engine, params, rows.cache, rows.answers.logits, block, start, count,
        None if size == engine.rows else where,
    )  # fmt: skip
    rows.answers = rows.answers.replace(logits=logits)
    rows.computed += size * width


def _generate(rows: Rows, params, run_key, enough: int, most: int) -> None:
    live = np.isin(np.arange(rows.engine.rows), list(rows.busy))
    rows.cache, rows.answers, steps = engine_.generate(
        rows.engine, params, rows.cache, rows.answers, run_key, live,
        np.int32(enough), np.int32(most),
    )  # fmt: skip
    rows.ahead.append(steps)


def compile_all(rows: Rows, params, run_key) -> None:
    """Compile every program that these rows can need, in one order.

    Hosts of a pod that compiled in different orders would wait for each other.
    """
    engine = rows.engine
    for length in engine_.lengths(engine):
        rows.cache = engine_.resize(rows.cache, length)
        for size in engine.subsets or (engine.rows,):
            nobody = np.full(size, engine.rows, np.int32)
            where = None if size == engine.rows else nobody
            for width in WIDTHS:
                rows.cache, logits = engine_.extend(
                    engine, params, rows.cache, rows.answers.logits,
                    np.zeros((size, width), np.int32), np.zeros(size, np.int32),
                    np.zeros(size, np.int32), where,
                )  # fmt: skip
                rows.answers = rows.answers.replace(logits=logits)
            if engine.subsets:
                rows.cache = engine_.copy(rows.cache, nobody, nobody)
        _generate(rows, params, run_key, 1, 0)
    row = np.zeros(engine.rows, np.int32)
    rows.answers = engine_.ask(rows.answers, row > 0, row, row, row)
    for before in engine_.lengths(engine):
        for after in engine_.lengths(engine):
            rows.cache = engine_.resize(rows.cache, before)
            rows.cache = engine_.resize(rows.cache, after)
    rows.forget()
    rows.compiled = True
