"""The bank on disk: immutable versions, named by their content.

    FOLDER/<hash>.jsonl    line 1: {"parent": hash or null, "step": int}; then entries
    FOLDER/HEAD            the hash of the current version

A version is written to a temporary file and renamed; HEAD is replaced the same way, so
a reader sees a whole version, old or new. Writing against a parent that is no longer
HEAD is refused; writers on one machine take turns (a lock that dies with its holder).
"""

import fcntl
import hashlib
import json
import os
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np

from evoharness_jax.bpe.experience import SECTIONS, Bank
from evoharness_jax.bpe.lexicon import BankText, index_bank
from evoharness_jax.envs.domain import Lesson


class Entry(NamedTuple):
    """One lesson. `source` says where it comes from."""

    section: int  # bpe.experience.SKILL, MISTAKE, HINT or INSIGHT
    task_type: str  # "" for every type
    text: str
    uses: int  # episodes in which it was recalled
    wins: int  # how many of those were won
    updated_at: int  # training step of the last change
    source: dict  # split, task, step, policy


class Version(NamedTuple):
    name: str  # content hash, "" for the empty bank before the first write
    entries: tuple[Entry, ...]


EMPTY = Version("", ())


class StaleParent(ValueError):
    """HEAD has moved since the version that an edit started from."""


def from_lessons(lessons: tuple[Lesson, ...]) -> tuple[Entry, ...]:
    """Return the entries that an environment brings along."""
    source = {"policy": "manual"}
    return tuple(Entry(*lesson, 0, 0, 0, source) for lesson in lessons)


def write(folder: str | Path, entries, parent: str, step: int) -> Version:
    """Write a version and make it HEAD.

    Raises:
        StaleParent: HEAD is not `parent`.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"parent": parent or None, "step": step}, sort_keys=True)]
    for entry in entries:
        fields = entry._asdict() | {"section": SECTIONS[entry.section]}
        lines.append(json.dumps(fields, sort_keys=True, ensure_ascii=False))
    content = "\n".join(lines) + "\n"
    name = hashlib.sha256(content.encode()).hexdigest()[:16]
    with _locked(folder):
        head = head_name(folder)
        if head != parent:
            raise StaleParent(
                f"{folder}: HEAD is {head!r}, the edit started from {parent!r}"
            )
        _replace(folder / f"{name}.jsonl", content)
        _replace(folder / "HEAD", name + "\n")
    return Version(name, tuple(entries))


def reset_head(folder: str | Path, name: str) -> None:
    """Make an earlier version HEAD again: a rollback, or a run resumed before HEAD."""
    folder = Path(folder)
    if name:
        read(folder, name)
    if not folder.is_dir():
        return
    with _locked(folder):
        if name:
            _replace(folder / "HEAD", name + "\n")
        else:
            (folder / "HEAD").unlink(missing_ok=True)


def head_name(folder: str | Path) -> str:
    """Return the name of the current version, "" where there is none."""
    head = Path(folder) / "HEAD"
    return head.read_text().strip() if head.exists() else ""


def read(folder: str | Path, name: str | None = None) -> Version:
    """Read a version, HEAD by default; the empty bank where nothing was written.

    Raises:
        ValueError: the version is missing, cut, or not what its name says.
    """
    folder = Path(folder)
    name = head_name(folder) if name is None else name
    if not name:
        return EMPTY
    path = folder / f"{name}.jsonl"
    if not path.exists():
        raise ValueError(f"{folder} has no bank version {name!r}")
    content = path.read_bytes().decode(errors="replace")
    found = hashlib.sha256(content.encode()).hexdigest()[:16]
    if found != name:
        raise ValueError(f"{path} is damaged: its content hashes to {found}")
    entries = []
    # Not splitlines: a note may hold one of the rarer line breaks of Unicode.
    for line in content.split("\n")[1:-1]:
        fields = json.loads(line)
        fields["section"] = SECTIONS.index(fields["section"])
        entries.append(Entry(**fields))
    return Version(name, tuple(entries))


def arrays(entries: tuple[Entry, ...], capacity: int) -> tuple[Bank, BankText]:
    """Return the bank as a rollout reads it: arrays of X = `capacity` slots, words.

    Raises:
        ValueError: more entries than slots.
    """
    if len(entries) > capacity:
        raise ValueError(f"bank: {len(entries)} entries, but {capacity=} slots")
    pad = capacity - len(entries)

    def column(values, dtype):
        return np.array([*values, *[0] * pad], dtype)

    bank = Bank(
        alive=np.arange(capacity) < len(entries),
        section=column([e.section for e in entries], np.int8),
        uses=column([e.uses for e in entries], np.int32),
        wins=column([e.wins for e in entries], np.int32),
    )
    words = index_bank(
        tuple(e.text for e in entries) + ("",) * pad,
        tuple(e.task_type for e in entries) + ("",) * pad,
    )
    return bank, words


@contextmanager
def _locked(folder: Path):
    """Keep other writers of this machine out of a folder."""
    with open(folder / ".lock", "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _replace(path: Path, content: str) -> None:
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".new-")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError:
        Path(temporary).unlink(missing_ok=True)
        raise
