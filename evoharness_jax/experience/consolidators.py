"""Consolidators: evidence -> proposed edits of the bank.

`rules` needs no model. A note of the form `<thing>: <place>` counts towards the hint
about that thing; any other note from a won episode becomes an insight, once.
"""

import re
from collections import Counter
from typing import NamedTuple

from evoharness_jax.bpe.experience import HINT, INSIGHT
from evoharness_jax.bpe.lexicon import normalise
from evoharness_jax.experience.bank import Entry

WHERE = re.compile(r"\s*([a-z][a-z ]*?)\s*:\s*([a-z][a-z ]*?)\s*", re.IGNORECASE)
SHOWN_PLACES = 4  # of one hint; the most frequent ones
MAX_NOTE = 200  # characters


class EpisodeEvidence(NamedTuple):
    """What one episode leaves for consolidation."""

    task: str
    task_type: str
    split: str
    won: bool
    notes: tuple[str, ...]
    uses: tuple[int, ...]  # bank slots recalled
    policy: str


class Edit(NamedTuple):
    """A proposal: `slot` None adds an entry, otherwise replaces that one."""

    slot: int | None
    entry: Entry


def rules(
    entries: tuple[Entry, ...], evidence: list[EpisodeEvidence], step: int
) -> list[Edit]:
    """Propose hints and insights from notes, in a fixed order."""
    edits = []
    by_text = {(e.section, normalise(e.text)): i for i, e in enumerate(entries)}
    hints = {e.text.partition(":")[0]: i for i, e in enumerate(entries) if _counted(e)}
    counts: dict[str, Counter] = {}
    for episode in evidence:
        for note in episode.notes:
            where = WHERE.fullmatch(note)
            if where:
                thing, place = (g.lower() for g in where.groups())
                counts.setdefault(thing, Counter())[place] += 1
            elif episode.won and len(note) <= MAX_NOTE:
                key = (INSIGHT, normalise(note))
                if key not in by_text:
                    by_text[key] = -1
                    source = _source(episode, step)
                    new = Entry(INSIGHT, episode.task_type, note, 0, 0, step, source)
                    edits.append(Edit(None, new))
    for thing in sorted(counts):
        slot = hints.get(thing)
        old = entries[slot] if slot is not None else None
        total = Counter(old.source.get("counts", {})) if old else Counter()
        total.update(counts[thing])
        ranked = sorted(total.items(), key=lambda item: (-item[1], item[0]))
        places = ", ".join(place for place, _ in ranked[:SHOWN_PLACES])
        source = {"policy": "rules", "split": evidence[0].split, "step": step}
        source["counts"] = dict(ranked)
        uses, wins = (old.uses, old.wins) if old else (0, 0)
        edits.append(
            Edit(slot, Entry(HINT, "", f"{thing}: {places}", uses, wins, step, source))
        )
    return edits


def _counted(entry: Entry) -> bool:
    """A hint that these rules made; one from a manual is not theirs to change."""
    return entry.section == HINT and "counts" in entry.source


def _source(episode: EpisodeEvidence, step: int) -> dict:
    return {
        "policy": episode.policy,
        "split": episode.split,
        "task": episode.task,
        "step": step,
    }
