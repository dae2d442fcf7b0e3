"""Experience: what a recall returns, and what an episode leaves."""

import jax
import numpy as np
import pytest

from evoharness_jax.bpe import experience
from evoharness_jax.bpe.experience import HINT, Bank
from evoharness_jax.types import NONE, K, M

recall = jax.jit(experience.recall, static_argnums=2)
note = jax.jit(experience.note)


def bank(*entries):
    """Entries are (uses, wins), or None for an empty slot."""
    filled = [e or (0, 0) for e in entries]
    return Bank(
        alive=np.array([e is not None for e in entries]),
        section=np.full(len(entries), HINT, np.int8),
        uses=np.array([uses for uses, _ in filled], np.int32),
        wins=np.array([wins for _, wins in filled], np.int32),
    )


def recalled(bank, overlap, top_k=4):
    slots = recall(bank, np.array(overlap, np.float32), top_k)
    assert slots.shape == (K,) and slots.dtype == np.int16
    kept = [int(s) for s in slots if s != NONE]
    assert slots.tolist() == kept + [NONE] * (K - len(kept))
    return kept


NEW = (0, 0)


@pytest.mark.parametrize(
    "entries, overlap, top_k, want",
    [
        ([NEW, NEW, NEW], [1.0, 3.0, 2.0], 4, [1, 2, 0]),  # the best fit first
        ([NEW, NEW, NEW], [1.0, 3.0, 2.0], 2, [1, 2]),
        ([NEW, NEW, NEW], [0.0, 3.0, 0.0], 4, [1]),  # no fit, no entry
        ([NEW, NEW], [0.0, 0.0], 4, []),
        ([NEW, None, NEW], [1.0, 9.0, 1.0], 4, [0, 2]),  # empty slots never
        ([NEW] * 3, [2.0, 2.0, 2.0], 4, [0, 1, 2]),  # ties: the lower slot
        ([NEW] * 12, [1.0] * 12, 12, list(range(8))),  # never more than K
        ([], [], 4, []),
        # Equal fits by worth: (wins + 1) / (uses + 2) = 1/4, 3/4, 1/2.
        ([(2, 0), (2, 2), NEW], [1.0, 1.0, 1.0], 4, [1, 2, 0]),
        # Twice the fit outweighs half the worth only just: 2 * 1/4 = 1 * 1/2.
        ([(2, 0), NEW], [2.25, 1.0], 4, [0, 1]),
        ([(2, 0), NEW], [1.75, 1.0], 4, [1, 0]),
    ],
)
def test_recall(entries, overlap, top_k, want):
    assert recalled(bank(*entries), overlap, top_k) == want


def test_an_empty_bank_recalls_nothing():
    assert recalled(experience.empty_bank(5), [1.0] * 5) == []


def slots(*ids):
    return np.array([*ids, *[NONE] * (K - len(ids))], np.int16)


def test_use_marks_an_entry_once_an_episode():
    evidence = experience.empty_evidence(4)
    for shown in (slots(2, 0), slots(2), slots()):
        evidence = experience.use(evidence, shown)
    assert evidence.uses.tolist() == [1, 0, 1, 0]


def test_no_slot_does_not_mark_the_last_entry():
    evidence = experience.use(experience.empty_evidence(4), slots())
    assert evidence.uses.tolist() == [0, 0, 0, 0]


def test_a_win_credits_what_was_used():
    evidence = experience.use(experience.empty_evidence(3), slots(1))
    assert experience.settle(evidence, np.bool_(False)).wins.tolist() == [0, 0, 0]
    assert experience.settle(evidence, np.bool_(True)).wins.tolist() == [0, 1, 0]


def noted(*texts):
    evidence, lost = experience.empty_evidence(0), 0
    for text in texts:
        evidence, more = note(evidence, text)
        lost += int(more)
    kept = int(evidence.num_notes)
    assert evidence.notes.tolist()[kept:] == [NONE] * (M - kept)
    return evidence.notes.tolist()[:kept], lost


def test_notes_are_kept_once_in_order():
    assert noted() == ([], 0)
    assert noted(5, 3, 5) == ([5, 3], 0)


def test_notes_beyond_the_capacity_are_counted():
    many = list(range(M))
    assert noted(*many) == (many, 0)
    assert noted(*many, M, M + 1) == (many, 2)
    assert noted(*many, 0) == (many, 0)  # kept already: nothing is lost
