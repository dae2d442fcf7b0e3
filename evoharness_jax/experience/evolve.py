"""Evolve: the evidence of one rollout -> the next version of the bank.

Usage and outcomes are counted first, then the consolidator's edits are checked and
applied in order; a full bank evicts its least useful entry. Deterministic: the same
bank and evidence give the same version, so a resumed run is the same run.
"""

from typing import NamedTuple

from evoharness_jax.experience.bank import Entry
from evoharness_jax.experience.consolidators import EpisodeEvidence, rules

EVALUATION_SPLITS = ("valid_seen", "valid_unseen", "test")


class Changes(NamedTuple):
    """How many edits were proposed and what became of them."""

    added: int = 0
    updated: int = 0
    evicted: int = 0


def evolve(
    entries: tuple[Entry, ...],
    evidence: list[EpisodeEvidence],
    step: int,
    capacity: int,
) -> tuple[tuple[Entry, ...], Changes]:
    """Return the entries after one consolidation, and what changed.

    Raises:
        ValueError: evidence from an evaluation split.
    """
    for episode in evidence:
        if episode.split in EVALUATION_SPLITS:
            raise ValueError(
                f"the bank never learns from an evaluation split: task "
                f"{episode.task!r} of {episode.split!r}"
            )
    current = list(count_outcomes(entries, evidence))
    added = updated = evicted = 0
    for edit in rules(tuple(current), evidence, step):
        if edit.slot is not None:
            updated += current[edit.slot].text != edit.entry.text
            current[edit.slot] = edit.entry
            continue
        current.append(edit.entry)
        added += 1
    # Evict at the end, so that the slots that edits name stay what they were.
    while len(current) > capacity:
        current.pop(min(range(len(current)), key=lambda i: _worth(current[i], i)))
        evicted += 1
    return tuple(current), Changes(added, updated, evicted)


def count_outcomes(
    entries: tuple[Entry, ...], evidence: list[EpisodeEvidence]
) -> tuple[Entry, ...]:
    """Add each episode's recalls, and its win, to the entries that it was shown."""
    uses, wins = [0] * len(entries), [0] * len(entries)
    for episode in evidence:
        for slot in episode.uses:
            uses[slot] += 1
            wins[slot] += episode.won
    return tuple(
        e._replace(uses=e.uses + u, wins=e.wins + w)
        for e, u, w in zip(entries, uses, wins, strict=True)
    )


def _worth(entry: Entry, index: int) -> tuple:
    """Mean of the Beta(1 + wins, 1 + losses) posterior; then newer; then later."""
    return (entry.wins + 1) / (entry.uses + 2), entry.updated_at, index
