"""Ragged training rows into rectangles, and back.

    rows (tokens + floats per token) -> pack -> Batch [W, L] -> batches -> [accum, W, L]

Several rows share a packed one as segments 1, 2, ...; positions restart in each, so a
model that attends within segments computes what it would on each row alone. Rows are
placed longest first, each into the first packed row with room for it (first-fit
decreasing). Nothing is cut: a row that is too long is an error. Host side, numpy; the
same rows always give the same packing.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from evoharness_jax.types import Batch, Turns

FLOATS = ("weight", "advantage", "old_logp", "ref_logp", "sampler_logp")


class Packed(NamedTuple):
    """Packed rows and the way back."""

    batch: Batch  # numpy, [W, L]
    index: np.ndarray  # int32[rows, 3] packed row, first column, length; as given
    fill: float  # share of [W, L] that holds tokens, rows of padding included


def pack(
    rows: Mapping[str, Sequence[np.ndarray]],
    length: int,
    max_rows: int | None = None,
    multiple: int = 1,
) -> Packed:
    """Pack ragged rows into [W, length] by first-fit decreasing.

    Args:
        rows: field name -> one array per row. "tokens" (int) must be there, and any of
            `FLOATS`, each value as long as its row's tokens; the others are 0.
        length: L.
        max_rows: the most packed rows that there may be.
        multiple: W is rounded up to it with empty rows, so that shapes stay few and
            the rows divide over devices.

    Returns:
        Packed. The first token of a segment has weight 0: nothing predicts it.

    Raises:
        ValueError: a row that is empty or longer than `length`, a field that does not
            fit its tokens, an unknown field, or more than `max_rows` packed rows.
    """
    tokens = rows["tokens"]
    _check(rows, length)
    index = _place([len(row) for row in tokens], length)
    count = int(index[:, 0].max(initial=-1)) + 1
    wanted = -(-count // multiple) * multiple
    if max_rows is not None and wanted > max_rows:
        raise ValueError(
            f"{len(tokens)} rows need {wanted} packed rows: {max_rows=} {length=}"
        )
    batch = _empty(wanted, length)
    segments = np.zeros(wanted, np.int32)
    for i, (row, start, size) in enumerate(index):
        at = (row, slice(start, start + size))
        segments[row] += 1
        batch.tokens[at] = tokens[i]
        batch.positions[at] = np.arange(size)
        batch.segment_ids[at] = segments[row]
        for name in FLOATS:
            if name in rows:
                getattr(batch, name)[at] = rows[name][i]
        batch.weight[row, start] = 0.0
    return Packed(batch, index, float(index[:, 2].sum()) / max(1, wanted * length))


def unpack(array: np.ndarray, index: np.ndarray) -> list[np.ndarray]:
    """Cut [W, L] values back into one array per row, in the order given to `pack`."""
    array = np.asarray(array)
    return [array[row, start : start + size] for row, start, size in index]


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


def from_turns(turns: Turns, advantage: np.ndarray | None = None) -> dict[str, list]:
    """Turn rollout rows into fields for `pack`: weight 1 on what the policy wrote.

    Args:
        turns: rows of one rollout.
        advantage: f32[B], by episode; every token of every turn gets its episode's.
    """
    fields = {
        "tokens": list(turns.tokens),
        "weight": [mask.astype(np.float32) for mask in turns.response_mask],
        "sampler_logp": list(turns.logp),
    }
    if advantage is not None:
        values = np.asarray(advantage, np.float32)[turns.episode]
        fields["advantage"] = [v * m for v, m in zip(values, fields["weight"])]
    return fields


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
    """Choose where each row goes: int32[rows, 3] packed row, first column, length."""
    index = np.zeros((len(sizes), 3), np.int32)
    room = np.full(len(sizes), length, np.int32)  # one packed row each would do
    for i in np.argsort(-np.asarray(sizes, np.int32), kind="stable"):
        row = int(np.argmax(room >= sizes[i]))
        index[i] = row, length - room[row], sizes[i]
        room[row] -= sizes[i]
    return index


def _empty(rows, length):
    ints = (np.zeros((rows, length), np.int32) for _ in range(3))
    floats = (np.zeros((rows, length), np.float32) for _ in FLOATS)
    return Batch(*ints, *floats)
