"""Ragged training rows into rectangles, and back.

    rows (tokens + floats per token) -> pack -> Batch [W, L] -> batches -> [accum, W, L]

Several rows share a packed one as segments 1, 2, ...; positions restart in each, so a
model that attends within segments computes what it would on each row alone. Rows that
begin alike, as the turns of an episode do, can share that head: it is written once, as
the parent of the segments that hold their tails.

    head 1 1 1 1 | tail 2 2 2 | tail 3 3 3 3        segment_ids
         1 1 1 1 |      1 1 1 |      1 1 1 1        parents
         0 1 2 3 |      4 5 6 |      4 5 6 7        positions

Rows, or heads with as many tails as fit, are placed longest first, each into the first
packed row with room for it (first-fit decreasing). Nothing is cut: a row that is too
long is an error. Host side, numpy; the same rows always give the same packing.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from evoharness_jax.types import Batch, Turns

FLOATS = ("weight", "advantage", "old_logp", "ref_logp", "sampler_logp")


class Heads(NamedTuple):
    """Which rows begin alike, and for how long."""

    group: np.ndarray  # int32[rows] rows of a group share their head
    size: np.ndarray  # int32[rows] its tokens, the same in a group; 0: none


class Packed(NamedTuple):
    """Packed rows and the way back."""

    batch: Batch  # numpy, [W, L]
    index: np.ndarray  # int32[rows, 5] packed row; column and length of head, of tail
    fill: float  # share of [W, L] that holds tokens, rows of padding included
    reuse: float  # tokens given for each token packed; above 1 where heads are shared


class _Item(NamedTuple):
    """What is placed in one piece: a head and its tails, or a row of its own."""

    head: int  # tokens, 0: none
    rows: list[int]
    size: int  # tokens in all


def pack(
    rows: Mapping[str, Sequence[np.ndarray]],
    length: int,
    max_rows: int | None = None,
    multiple: int = 1,
    heads: Heads | None = None,
) -> Packed:
    """Pack ragged rows into [W, length] by first-fit decreasing.

    Args:
        rows: field name -> one array per row. "tokens" (int) must be there, and any of
            `FLOATS`, each value as long as its row's tokens; the others are 0.
        length: L.
        max_rows: the most packed rows that there may be.
        multiple: W is rounded up to it with empty rows, so that shapes stay few and
            the rows divide over devices.
        heads: what rows share, as `shared_heads` finds it; None: nothing.

    Returns:
        Packed. The first token of a segment has weight 0: nothing predicts it.

    Raises:
        ValueError: a row that is empty or longer than `length`, a field that does not
            fit its tokens, an unknown field, more than `max_rows` packed rows, or a
            head whose tokens or fields differ within its group.
    """
    tokens = rows["tokens"]
    _check(rows, length)
    if heads is not None:
        _check_heads(rows, heads)
    sizes = [len(row) for row in tokens]
    items = _items(sizes, heads, length)
    places = _place([item.size for item in items], length)
    count = int(places[:, 0].max(initial=-1)) + 1
    wanted = -(-count // multiple) * multiple
    if max_rows is not None and wanted > max_rows:
        raise ValueError(
            f"{len(tokens)} rows need {wanted} packed rows: {max_rows=} {length=}"
        )
    batch = _empty(wanted, length)
    index = np.zeros((len(tokens), 5), np.int32)
    segments = np.zeros(wanted, np.int32)
    # In their order, so that the segments of a row are numbered from left to right.
    for at in np.lexsort(places.T[::-1]):
        item, (row, start) = items[at], places[at]
        segments[row] += 1
        parent, column = segments[row], start
        if item.head:
            one = item.rows[0]
            _put(batch, (row, start), rows, one, (0, item.head), parent, parent)
            column += item.head
        for i in item.rows:
            segments[row] += bool(item.head)
            own = segments[row]
            _put(batch, (row, column), rows, i, (item.head, sizes[i]), own, parent)
            batch.weight[row, column] = 0.0
            tail = sizes[i] - item.head
            index[i] = row, start, item.head, column, tail
            column += tail
    packed = sum(item.size for item in items)
    fill, reuse = (
        packed / max(1, wanted * length),
        sum(sizes) / packed if packed else 1.0,
    )
    return Packed(batch, index, float(fill), float(reuse))


def _put(batch, at, rows, i, cut, segment, parent):
    """Write tokens cut[0] .. cut[1] - 1 of row i to batch[at[0], at[1] ...]."""
    first, last = cut
    there = (at[0], slice(at[1], at[1] + last - first))
    batch.tokens[there] = rows["tokens"][i][first:last]
    batch.positions[there] = np.arange(first, last)
    batch.segment_ids[there] = segment
    batch.parents[there] = parent
    for name in FLOATS:
        if name in rows:
            getattr(batch, name)[there] = rows[name][i][first:last]


def unpack(array: np.ndarray, index: np.ndarray) -> list[np.ndarray]:
    """Cut [W, L] values back into one array per row, in the order given to `pack`."""
    array = np.asarray(array)
    return [
        np.concatenate((array[row, a : a + head], array[row, b : b + tail]))
        for row, a, head, b, tail in index
    ]


def pad(batch: Batch, rows: int) -> Batch:
    """Append empty rows, so that [W, L] becomes [rows, L]."""
    count, length = batch.tokens.shape
    if count > rows:
        raise ValueError(f"a batch of {count} rows does not fit {rows=}")
    empty = _empty(rows - count, length)
    return Batch(*(np.concatenate(pair) for pair in zip(batch, empty)))


def batches(batch: Batch, rows: int, accum: int | None = None) -> list[Batch]:
    """Split packed rows into updates of one fixed shape [accum, rows, L].

    Packed rows are dealt out like cards: they come sorted by the length of what they
    hold, and an update should see long and short ones. Empty rows fill the last ones.

    Args:
        batch: [W, L].
        rows: rows of a microbatch; the fsdp axis must divide it.
        accum: microbatches per update; None: as many as make it ONE update.

    Returns:
        As many updates as it takes, at least one row in each.
    """
    count, length = batch.tokens.shape
    needed = -(-count // rows)
    accum = accum or max(1, needed)
    updates = max(1, -(-needed // accum))
    full = pad(batch, updates * accum * rows)
    order = np.arange(updates * accum * rows).reshape(-1, updates)
    return [
        Batch(*(field[order[:, i]].reshape(accum, rows, length) for field in full))
        for i in range(updates)
    ]


def few_shapes(count: int) -> int:
    """Round a number of microbatches up to 1, 2, 3, 4, 6, 8, 12, ...

    Every number is a compilation of its own; at most a third of the work is padding.
    """
    power = 1
    while power < count:
        power *= 2
    return 3 * power // 4 if power >= 4 and 3 * power // 4 >= count else power


def from_turns(
    turns: Turns, advantage: np.ndarray | None = None, average: str = "tokens"
) -> dict[str, list]:
    """Turn rollout rows into fields for `pack`: weights on what the policy wrote.

    Args:
        turns: rows of one rollout.
        advantage: f32[B], by episode: every token of every turn gets its episode's; or
            f32[B, T], by turn of the episode: every token of a row gets its turn's.
        average: "sequences": the weights of a row add up to 1, so that a mean over
            weight counts each row alike; any other: the weight of a token is 1.

    Raises:
        ValueError: an advantage of another shape.
    """
    masks = [mask.astype(np.float32) for mask in turns.response_mask]
    fields = {
        "tokens": list(turns.tokens),
        "weight": masks,
        "sampler_logp": list(turns.logp),
    }
    if average == "sequences":
        fields["weight"] = [m / max(m.sum(), np.float32(1)) for m in masks]
    if advantage is not None:
        advantage = np.asarray(advantage, np.float32)
        if advantage.ndim not in (1, 2):
            raise ValueError(f"advantage must be [B] or [B, T]: {advantage.shape}")
        by = (turns.episode, turns.turn)[: advantage.ndim]
        fields["advantage"] = [v * m for v, m in zip(advantage[by], masks)]
    return fields


def gather(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Lay values of the updates that `batches` made, [accum, rows, L] each, as [W, L].

    W counts the empty rows behind the last one too; `unpack` does not read them.
    """
    flat = [np.asarray(part).reshape(-1, part.shape[-1]) for part in parts]
    return np.stack(flat, axis=1).reshape(-1, flat[0].shape[-1])


def shared_heads(turns: Turns) -> Heads:
    """Find what the rows of an episode share: up to a token before the first response.

    That token stays in the tail, because nothing predicts the first one of a tail.
    """
    size = np.zeros(len(turns.tokens), np.int32)
    for episode in np.unique(turns.episode):
        rows = np.flatnonzero(turns.episode == episode)
        if len(rows) > 1:
            size[rows] = _common([turns.tokens[i] for i in rows])
            before = [np.argmax(turns.response_mask[i]) for i in rows]
            size[rows] = np.clip(size[rows], 0, max(0, min(before) - 1))
    return Heads(turns.episode, size)


def _common(rows):
    """Return how many leading tokens are the same in all rows."""
    shortest = min(len(row) for row in rows)
    table = np.stack([row[:shortest] for row in rows])
    differ = (table != table[0]).any(axis=0)
    return int(differ.argmax()) if differ.any() else shortest


def _items(sizes, heads, length):
    """Group rows with a common head: as many tails to a head as a packed row holds."""
    items, groups = [], {}
    for i, size in enumerate(sizes):
        if heads is not None and heads.size[i]:
            groups.setdefault(int(heads.group[i]), []).append(i)
        else:
            items.append(_Item(0, [i], size))
    for rows in groups.values():
        head = int(heads.size[rows[0]])
        tails = [sizes[i] - head for i in rows]
        bins = _place(tails, length - head)[:, 0]
        for number in range(bins.max() + 1):
            inside = [j for j, bin_ in enumerate(bins) if bin_ == number]
            size = head + sum(tails[j] for j in inside)
            items.append(_Item(head, [rows[j] for j in inside], size))
    return items


def _check_heads(rows, heads):
    groups = {}
    for i, (group, size) in enumerate(zip(heads.group.tolist(), heads.size.tolist())):
        if size >= len(rows["tokens"][i]):
            raise ValueError(f"heads: row {i} has nothing behind its head")
        first, wanted = groups.setdefault(group, (i, size))
        for name in rows:
            head, other = rows[name][i][:size], rows[name][first][:wanted]
            if not np.array_equal(head, other):
                raise ValueError(
                    f"heads: row {i} does not begin as row {first} does: {name}"
                )


def _check(rows, length):
    unknown = set(rows) - {"tokens", *FLOATS}
    if unknown:
        raise ValueError(f"unknown fields {sorted(unknown)}: {FLOATS=}")
    for i, tokens in enumerate(rows["tokens"]):
        if not 1 <= len(tokens) <= length:
            raise ValueError(f"row {i} has {len(tokens)} tokens, not 1 to {length}")
    for name, values in rows.items():
        if len(values) != len(rows["tokens"]):
            raise ValueError(f"{name}: {len(values)} rows of {len(rows['tokens'])}")
        for i, (value, tokens) in enumerate(zip(values, rows["tokens"])):
            if np.shape(value) != (len(tokens),):
                raise ValueError(
                    f"{name}: row {i} is {np.shape(value)}, its tokens {len(tokens)}"
                )


def _place(sizes, length):
    """Choose where each piece goes: int32[pieces, 2] packed row, first column."""
    index = np.zeros((len(sizes), 2), np.int32)
    room = np.full(len(sizes), length, np.int32)  # one packed row each would do
    for i in np.argsort(-np.asarray(sizes, np.int32), kind="stable"):
        row = int(np.argmax(room >= sizes[i]))
        index[i] = row, length - room[row]
        room[row] -= sizes[i]
    return index


def _empty(rows, length):
    ints = (np.zeros((rows, length), np.int32) for _ in range(4))
    floats = (np.zeros((rows, length), np.float32) for _ in FLOATS)
    return Batch(*ints, *floats)
