"""The adapter contract: an environment joins by filling one `Domain`.

Observation text goes to the policy and to `read` as it is. Environment state is a
value that only the domain looks into; `close` frees what a state may hold outside of
it (a simulator process), and does nothing for an engine that is a pure function.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from evoharness_jax.bpe.episode import Episode
from evoharness_jax.bpe.lexicon import Lexicon
from evoharness_jax.types import Event


class Task(NamedTuple):
    """One thing to solve. `id` is unique within a split and sorts it."""

    id: str
    type: str
    split: str
    spec: Any  # what `reset` needs: a path, a number, a seed


class Observation(NamedTuple):
    """What the environment says after `reset` or an action."""

    text: str  # raw feedback
    commands: tuple[str, ...]  # all that it accepts now, in its own order
    objective: str
    done: bool
    won: bool
    score: float
    valid: bool  # the action was accepted; True after a reset
    info: dict[str, Any]  # "error": why the environment gave up on this episode


class Lesson(NamedTuple):
    """One entry that an environment brings along for the bank."""

    section: int  # bpe.experience.SKILL, MISTAKE, HINT or INSIGHT
    task_type: str  # "" for every type
    text: str


class Sight(NamedTuple):
    """All that an agent can know at a turn: what a teacher decides from."""

    objective: str
    observation: str  # latest feedback from the environment, as the policy sees it
    commands: tuple[str, ...]  # all commands accepted now
    lexicon: Lexicon
    episode: Episode  # numpy leaves
    bank_text: tuple[str, ...]  # [X]; only slots in `workspace.hints` may be read
    tools: frozenset[str]  # meta-verbs that exist in this mode and are switched on
    seed: int  # differs by episode and turn, for noise


class Domain(NamedTuple):
    """An environment, as functions."""

    name: str
    tasks: Callable[[str], tuple[Task, ...]]  # split -> its tasks, sorted by id
    reset: Callable[[Task], tuple[Any, Observation]]
    step: Callable[[Any, str], tuple[Any, Observation]]
    close: Callable[[Any], None]
    lexicon: Callable[[Task, Observation], Lexicon]  # an empty one, columns named
    read: Callable[[Lexicon, str, Observation], tuple[Lexicon, Event]]
    show: Callable[[str], str]  # raw feedback -> what the policy sees
    offer: Callable[[tuple[str, ...], str], tuple[str, ...]]  # (commands, style)
    prompt: Callable[[str, frozenset[str]], str]  # (mode, modules) -> system text
    task_type: Callable[[str], str]  # objective -> type
    teacher: Callable[[Sight], tuple[str, str]] | None  # -> (thought, action)
    manual: tuple[Lesson, ...]  # lessons that come with the environment
    capacity: int  # episodes that may be alive at once
    workers: int  # steps that may run at once, from threads; 1: called in line
