"""Which engine plays an episode: ours, the real one, or both side by side.

    native      a pure function; state is a value, and an episode costs a few kilobytes
    textworld   TextWorld in worker processes: official figures
    both        the same commands to both; an episode in which they differ in a word, a
                command or an outcome ends as an error that says where

All three take an action whatever its case and spaces, spell it as the game does, and
refuse what is not admissible without asking the game.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from evoharness_jax.envs.alfworld import engine as native_
from evoharness_jax.envs.alfworld import game as game_
from evoharness_jax.envs.alfworld.textworld import Pool, failed, refused, spelled
from evoharness_jax.envs.domain import Observation, Task

COMPARED = ("text", "commands", "objective", "done", "won", "score", "valid")
MANY = 1 << 16  # episodes that our engine may keep alive: as many as memory holds


class Engine(NamedTuple):
    """How episodes are begun, stepped and left; see `envs.domain.Domain`."""

    reset: Callable[[Task], tuple[Any, Observation]]
    step: Callable[[Any, str], tuple[Any, Observation]]
    close: Callable[[Any], None]
    capacity: int
    workers: int


def make(name: str, workers: int, timeout: float, cache_dir: str | None) -> Engine:
    """Return an engine by name; the arguments are those of `domain.make`."""
    if name == "native":
        return native(cache_dir)
    if name == "textworld":
        return textworld(workers, timeout, cache_dir)
    if name == "both":
        return both(native(cache_dir), textworld(workers, timeout, cache_dir))
    raise ValueError(f"unknown engine: {name!r}, not one of native, textworld, both")


def textworld(workers: int, timeout: float, cache_dir: str | None) -> Engine:
    """Return the real engine: at most `workers` episodes at once, one process each."""
    pool = Pool(workers, timeout, cache_dir)
    return Engine(pool.reset, pool.step, pool.release, workers, workers)


def native(cache_dir: str | None) -> Engine:
    """Return our engine; compiled games are kept under `cache_dir`, if given."""
    load = game_.load
    if cache_dir:
        load = partial(game_.load_cached, cache_dir=str(Path(cache_dir) / "games"))

    def reset(task: Task):
        try:
            game = load(task.spec)
        except game_.GameError as error:
            return None, failed(str(error))
        state, seen = native_.reset(game)
        return (game, state, seen), seen

    def step(held, action: str):
        if held is None:
            return None, failed("the game could not be loaded")
        game, state, seen = held
        command = spelled(action, seen.commands)
        if command is None:
            return held, refused(seen)
        state, seen = native_.step(game, state, command)
        return (game, state, seen), seen

    return Engine(reset, step, lambda held: None, MANY, 1)


def both(ours: Engine, real: Engine) -> Engine:
    """Return two engines as one that compares all they say; ours is what is seen."""

    def reset(task: Task):
        one, seen = ours.reset(task)
        two, expected = real.reset(task)
        return (one, two), _compared(seen, expected, "at the start")

    def step(state, action: str):
        one, seen = ours.step(state[0], action)
        two, expected = real.step(state[1], action)
        return (one, two), _compared(seen, expected, f"after {action!r}")

    return Engine(reset, step, lambda s: real.close(s[1]), real.capacity, real.workers)


def _compared(seen: Observation, expected: Observation, when: str) -> Observation:
    if "error" in expected.info or "error" in seen.info:
        return expected if "error" in expected.info else seen
    for field in COMPARED:
        one, two = getattr(seen, field), getattr(expected, field)
        if one != two:
            return failed(
                f"the engines differ {when} in {field}: ours {one!r}, real {two!r}",
                seen.objective,
            )
    return seen
