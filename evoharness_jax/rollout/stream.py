"""The ids of one episode as they grow, and the training rows they make."""

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from evoharness_jax.types import Turns


class Row(NamedTuple):
    """One training row, ragged."""

    tokens: np.ndarray  # int32[L]
    response_mask: np.ndarray  # bool[L]
    logp: np.ndarray  # f32[L]
    raw_logp: np.ndarray  # f32[L]
    turn: int


@dataclass
class Stream:
    """Parallel lists: ids, which of them the policy wrote, and their log-probs."""

    ids: list[int] = field(default_factory=list)
    mask: list[bool] = field(default_factory=list)
    logp: list[float] = field(default_factory=list)
    raw_logp: list[float] = field(default_factory=list)
    last: int = 0  # where the latest response begins


def read(stream: Stream, ids: list[int]) -> None:
    """Append ids that the policy did not write."""
    stream.ids += ids
    stream.mask += [False] * len(ids)
    stream.logp += [0.0] * len(ids)
    stream.raw_logp += [0.0] * len(ids)


def write(stream: Stream, ids: list[int], logp=None, raw_logp=None) -> None:
    """Append a response; without log-probs (a teacher's) they are 0."""
    stream.last = len(stream.ids)
    none = [0.0] * len(ids)
    stream.ids += ids
    stream.mask += [True] * len(ids)
    stream.logp += none if logp is None else logp.tolist()
    stream.raw_logp += none if raw_logp is None else raw_logp.tolist()


def row(stream: Stream, turn: int) -> Row:
    """Return the stream as a training row."""
    return Row(
        np.array(stream.ids, np.int32),
        np.array(stream.mask, bool),
        np.array(stream.logp, np.float32),
        np.array(stream.raw_logp, np.float32),
        turn,
    )


def turns(rows: list[list[Row]], version: int) -> Turns:
    """Return the rows of B episodes as Turns; `rows[b]` are episode b's."""
    flat = [(b, r) for b, episode in enumerate(rows) for r in episode]
    return Turns(
        tokens=[r.tokens for _, r in flat],
        response_mask=[r.response_mask for _, r in flat],
        logp=[r.logp for _, r in flat],
        raw_logp=[r.raw_logp for _, r in flat],
        episode=np.array([b for b, _ in flat], np.int32),
        turn=np.array([r.turn for _, r in flat], np.int32),
        policy_version=np.full(len(flat), version, np.int32),
    )
