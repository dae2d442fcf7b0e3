"""Episodes in outline: a long run has more of them than a page, or memory, holds.

Every file of records is read once, line by line; of each record stays how it went, and
where it stands, so that the few to be shown can be read whole.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from evoharness_jax.types import META_VERBS

RECORD = (
    "uid task split type won error stop turns num_turns env_steps tokens calls dropped "
    "setting opening start digest"
).split()
NUMBER = re.compile(r"(\d+)\.jsonl$")


class Outline(NamedTuple):
    """An episode without its turns, and where its record stands."""

    uid: int
    task: str
    type: str
    step: int  # training step that played it, or pass from 1; 0: an evaluation
    won: bool
    error: str
    turns: int
    tokens: int
    calls: dict[str, int]
    path: Path
    offset: int  # bytes into `path`


def files(folder: Path) -> list[tuple[Path, int]]:
    """Return (file of records, step, or pass from 1, that played them), in order."""
    if (folder / "episodes.jsonl").exists():
        return [(folder / "episodes.jsonl", 0)]
    for pattern in (
        "episodes/*.jsonl",
        "episodes-*.jsonl",
        "collect/episodes-*.jsonl",
    ):
        found = [p for p in folder.glob(pattern) if NUMBER.search(p.name)]
        if found:
            numbered = [(int(NUMBER.search(p.name)[1]), p) for p in found]
            first = 0 if pattern.startswith("episodes/") else 1
            return [(path, first + number) for number, path in sorted(numbered)]
    return []


def record(outline: Outline) -> dict[str, Any]:
    """Read an episode's record."""
    with outline.path.open("rb") as file:
        file.seek(outline.offset)
        return json.loads(file.readline())


def read(path: Path, step: int, problems: list[str], seen: dict) -> list[Outline]:
    """Read a file's outlines; name in `problems` the lines that are none.

    Args:
        seen: what was found in files that have not changed since; filled.
    """
    stat = path.stat()
    key = (path, stat.st_size, stat.st_mtime_ns)
    if key not in seen:
        found, wrong = [], []
        for number, offset, line in _numbered(path):
            try:
                found.append(_outline(json.loads(line), step, path, offset))
            except (ValueError, TypeError) as error:
                cut = not line.endswith(b"\n")
                why = "is cut short" if cut else f"is damaged: {error}"
                wrong.append(f"{path}: line {number} {why}")
        seen[key] = found, wrong
    found, wrong = seen[key]
    problems += wrong
    return found


def _numbered(path: Path) -> Iterator[tuple[int, int, bytes]]:
    """Yield (line number, its offset, line)."""
    offset = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            yield number, offset, line
            offset += len(line)


def _outline(found: Any, step: int, path: Path, offset: int) -> Outline:
    if not isinstance(found, dict):
        raise ValueError("it is no episode")
    if missing := [name for name in RECORD if name not in found]:
        raise ValueError(f"it lacks {', '.join(missing)}")
    return Outline(
        found["uid"],
        found["task"],
        found["type"],
        step,
        bool(found["won"]),
        found["error"],
        found["num_turns"],
        found["tokens"],
        {verb: found["calls"].get(verb, 0) for verb in META_VERBS},
        path,
        offset,
    )
