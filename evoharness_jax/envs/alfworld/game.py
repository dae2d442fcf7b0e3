"""Games: `game.tw-pddl` files, compiled once and kept.

A game file holds three texts: the ALFRED domain (the same rules for every game), a
grammar (the words of its data release) and a problem (one household, one goal). What
cannot be read or played is a `GameError` with a reason; a set of games is loaded with
the rest counted by reason. Compiled games are kept on disk by content.
"""

import hashlib
import json
import os
import tempfile
from collections import Counter
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path

from flax import serialization

from evoharness_jax.envs.alfworld import grammar as words
from evoharness_jax.envs.alfworld.ground import compile_game
from evoharness_jax.envs.alfworld.tables import Game, State, Tables

__all__ = [
    "Game",
    "GameError",
    "State",
    "Tables",
    "compile_game",
    "compile_text",
    "load",
    "load_cached",
    "load_set",
    "pack",
    "unpack",
]
FORMAT = b"1"  # raise when what is compiled or stored changes


class GameError(ValueError):
    """A game that cannot be played here: `path` and `reason`."""

    def __init__(self, path: str, reason: str):
        super().__init__(f"{path}: {reason}")
        self.path, self.reason = path, reason


def load(path: str, *, unsolvable: bool = False) -> Game:
    """Compile the game file at `path`.

    Raises GameError where it cannot be read or played, and, unless `unsolvable`, where
    it is not marked as solvable.
    """
    return compile_text(read_bytes(path), str(path), unsolvable=unsolvable)


def load_cached(path: str, cache_dir: str) -> Game:
    """Give what `load` gives, compiled once for every process that shares `cache_dir`.

    A compiled game is named by the hash of the file it came from and of this format,
    and put in place by an atomic rename: many writers at once write the same bytes.
    """
    content = read_bytes(path)
    stored = Path(cache_dir) / f"{_hash(content)}.game"
    try:
        return unpack(stored.read_bytes())
    except (OSError, ValueError, KeyError, TypeError):
        pass  # not there, not ours to read, cut short or foreign
    game = compile_text(content, str(path))
    _store(stored, pack(game))
    return game


def _store(path: Path, content: bytes) -> None:
    """Put a file in place at once; a disk that refuses costs time, not games."""
    written = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            written = file.name
            file.write(content)
        os.replace(written, path)
    except OSError:
        if written:
            Path(written).unlink(missing_ok=True)


def load_set(
    paths: Iterable[str], cache_dir: str | None = None
) -> tuple[list[Game], Counter]:
    """Load all games that can be played: (games, how many were skipped, by reason)."""
    games, skipped = [], Counter()
    for path in paths:
        try:
            games.append(load_cached(path, cache_dir) if cache_dir else load(path))
        except GameError as error:
            skipped[error.reason] += 1
    return games, skipped


def read_bytes(path: str) -> bytes:
    """Read a game file; GameError where it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise GameError(str(path), f"cannot be read: {error.strerror}") from None


def compile_text(content: bytes, path: str = "", *, unsolvable: bool = False) -> Game:
    """Compile the content of a game file; `path` only names it in errors."""
    try:
        data = json.loads(content)
    except ValueError:
        raise GameError(path, "not JSON") from None
    if not isinstance(data, dict):
        raise GameError(path, "not a game: no JSON object")
    for key in ("pddl_domain", "grammar", "pddl_problem"):
        if not isinstance(data.get(key), str):
            raise GameError(path, f"not a game: no {key!r}")
    if not unsolvable and data.get("solvable") is not True:
        kept = "marked unsolvable" if "solvable" in data else "not marked solvable"
        raise GameError(path, kept)
    try:
        return compile_game(data, _hash(content))
    except ValueError as error:
        raise GameError(path, str(error)) from None


def pack(game: Game) -> bytes:
    """Write a compiled game as bytes that `unpack` reads."""
    words_of = {
        "id": game.id,
        "task": game.task,
        "task_type": game.task_type,
        "walkthrough": list(game.walkthrough),
        "commands": "\n".join(game.commands),
        "names": {kind: list(names) for kind, names in game.names.items()},
        "classes": list(game.classes),
        "intro": game.intro,
        "grammar": words.pack(game.grammar),
        "static": game.static,
    }
    arrays = {
        part: {f.name: getattr(getattr(game, part), f.name) for f in fields(kind)}
        for part, kind in (("tables", Tables), ("initial", State))
    }
    return serialization.msgpack_serialize({**words_of, **arrays})


def unpack(content: bytes) -> Game:
    """Read what `pack` wrote. Raises ValueError, KeyError or TypeError on else."""
    stored = serialization.msgpack_restore(content)
    return Game(
        id=stored["id"],
        task=stored["task"],
        task_type=stored["task_type"],
        walkthrough=tuple(stored["walkthrough"]),
        commands=tuple(stored["commands"].split("\n")),
        names={kind: tuple(names) for kind, names in stored["names"].items()},
        classes=tuple(stored["classes"]),
        intro=stored["intro"],
        grammar=words.unpack(stored["grammar"]),
        static=stored["static"],
        tables=Tables(**stored["tables"]),
        initial=State(**stored["initial"]),
    )


def _hash(content: bytes) -> str:
    return hashlib.sha256(FORMAT + content).hexdigest()
