"""The bank from version to version: what was added, reworded and removed.

Entries have no names. One whose section, type and words are in both versions stayed,
whatever its counts say; of the rest, those that begin alike up to a colon ("egg:
fridge", "egg: fridge, shelf") are one entry reworded.
"""

import json
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from evoharness_jax.bpe.experience import SECTIONS
from evoharness_jax.experience import bank as bank_
from evoharness_jax.experience.bank import Entry


class Change(NamedTuple):
    """What one version has that its parent has not."""

    name: str
    step: int
    entries: int
    added: tuple[str, ...]
    updated: tuple[tuple[str, str], ...]  # (words before, words after)
    removed: tuple[str, ...]


def changes(folder: Path) -> tuple[list[Change], list[str]]:
    """Follow a bank from HEAD to its first version.

    Returns:
        Its versions, oldest first, the first one with nothing changed; and what could
        not be read.
    """
    if not (folder / "HEAD").exists():
        return [], []
    chain, problems = [], []
    name = bank_.head_name(folder)
    while name:
        try:
            version = bank_.read(folder, name)
            head = json.loads((folder / f"{name}.jsonl").read_bytes().split(b"\n")[0])
        except ValueError as error:
            problems.append(f"bank: {error}; what came before is left out")
            break
        chain.append((version, head["step"]))
        name = head["parent"]
    chain.reverse()
    found = []
    for at, (version, step) in enumerate(chain):
        before = chain[at - 1][0].entries if at else version.entries
        added, updated, removed = compare(before, version.entries)
        size = len(version.entries)
        found.append(Change(version.name, step, size, added, updated, removed))
    return found, problems


def compare(before: tuple[Entry, ...], after: tuple[Entry, ...]):
    """Return (added, updated, removed) between two versions, as words."""
    old, new = Counter(map(_whole, before)), Counter(map(_whole, after))
    gone, come = list((old - new).elements()), list((new - old).elements())
    updated = []
    for one in list(come):
        like = next((g for g in gone if _head(g) == _head(one)), None)
        if like:
            gone.remove(like)
            come.remove(one)
            updated.append((_words(like), _words(one)))
    return tuple(map(_words, come)), tuple(updated), tuple(map(_words, gone))


def _whole(entry: Entry) -> tuple[int, str, str]:
    return entry.section, entry.task_type, entry.text


def _head(key: tuple[int, str, str]) -> tuple[int, str, str]:
    section, kind, text = key
    head, colon, _ = text.partition(":")
    return section, kind, head if colon else text


def _words(key: tuple[int, str, str]) -> str:
    section, kind, text = key
    return f"{SECTIONS[section]}{f' ({kind})' if kind else ''}: {text}"
