"""What a Sight tells the teacher, by name, and the questions it asks of that."""

from typing import NamedTuple

import numpy as np

from evoharness_jax.envs.alfworld.goals import LOOK, TWO, Goal, goal
from evoharness_jax.envs.alfworld.read import ATTRIBUTES
from evoharness_jax.envs.domain import Sight
from evoharness_jax.types import AGENT, HELD, NONE, PLACE

COLUMN = {true: column for column, (true, _) in enumerate(ATTRIBUTES)}


class Mind(NamedTuple):
    """All that one decision rests on."""

    goal: Goal
    objective: str
    commands: tuple[str, ...]
    places: dict[str, str]  # name of every place known -> its kind
    things: dict[str, str]  # name of every thing known -> its kind
    at: dict[str, str]  # thing -> the place it is believed to be at
    unexplored: frozenset[str]
    age: dict[str, int]  # name -> observations since it was last seen
    so: frozenset[str]  # names in the state that the goal asks for
    here: str  # "" unknown
    held: str  # "" nothing
    past: tuple[tuple[str, int, int], ...]  # (action, verb, tag) of every turn
    hints: list[str]  # recalled
    notes: list[str]  # noted in this episode


def mind_of(sight: Sight) -> Mind:
    """Read a Sight. Of the bank, only what was recalled."""
    names, texts = sight.lexicon.names, sight.lexicon.texts
    episode, workspace = sight.episode, sight.episode.workspace
    belief, evidence = workspace.belief, workspace.evidence
    wanted = goal(sight.objective)
    column = COLUMN.get(wanted.state, NONE)
    known = [int(i) for i in np.flatnonzero(belief.known) if i != AGENT]
    places = [i for i in known if belief.role[i] == PLACE]
    things = [i for i in known if belief.role[i] != PLACE]
    lying = [i for i in things if belief.place[i] not in (NONE, AGENT)]
    held = [i for i in things if belief.relation[i] == HELD]
    here = int(belief.place[AGENT])
    turns = range(int(episode.turn))
    actions = [texts[i] if i != NONE else "" for i in episode.actions.tolist()]
    return Mind(
        goal=wanted,
        objective=sight.objective,
        commands=sight.commands,
        places={names[i]: kind_of(names[i]) for i in places},
        things={names[i]: kind_of(names[i]) for i in things},
        at={names[i]: names[int(belief.place[i])] for i in lying},
        unexplored=frozenset(names[i] for i in places if not belief.explored[i]),
        age={names[i]: int(belief.clock - 1 - belief.last_seen[i]) for i in known},
        so=frozenset(
            names[i] for i in known if column == NONE or belief.attr[i, column] == 1
        ),
        here=names[here] if here != NONE else "",
        held=names[held[0]] if held else "",
        past=tuple(
            (actions[t], int(episode.verbs[t]), int(episode.tags[t])) for t in turns
        ),
        hints=[sight.bank_text[int(s)] for s in workspace.hints if s != NONE],
        notes=[texts[int(i)] for i in evidence.notes[: int(evidence.num_notes)]],
    )


def kind_of(name: str) -> str:
    """Return "apple" for "apple 1"."""
    return name.rpartition(" ")[0] or name


def number_of(name: str) -> int:
    """Return 1 for "apple 1", 0 for a name without a number."""
    tail = name.rpartition(" ")[2]
    return int(tail) if tail.isdigit() else 0


def candidates(mind: Mind) -> list[str]:
    """Return things to take, the best first."""
    found = [
        thing
        for thing, kind in mind.things.items()
        if kind == mind.goal.thing and thing in mind.at and not settled(mind, thing)
    ]

    def first(thing):
        elsewhere, raw = mind.at[thing] != mind.here, thing not in mind.so
        return elsewhere, raw, mind.age[thing], number_of(thing)

    return sorted((t for t in found if mind.held or not _stuck(mind, t)), key=first)


def _stuck(mind: Mind, thing: str) -> bool:
    """Say whether a thing is here, in the open, and yet cannot be taken."""
    place = mind.at[thing]
    near = f"examine {place}" in mind.commands and f"open {place}" not in mind.commands
    return near and f"take {thing} from {place}" not in mind.commands


def lamps(mind: Mind) -> list[str]:
    """Return lamps of the right kind, the nearest first."""
    found = [t for t, kind in mind.things.items() if kind == mind.goal.place]
    found = [lamp for lamp in found if lamp in mind.at]
    return sorted(found, key=lambda lamp: (mind.at[lamp] != mind.here, lamp))


def settled(mind: Mind, thing: str) -> bool:
    """Say whether a thing is one of two that lies where both must be."""
    return mind.goal.type == TWO and mind.at.get(thing) == target(mind)


def target(mind: Mind) -> str:
    """Return the place that things are brought to; of two, where the first lies."""
    kinds = mind.things

    def first(place):
        there = [t for t, p in mind.at.items() if p == place]
        count = sum(kinds[t] == mind.goal.thing for t in there)
        both = count if mind.goal.type == TWO else 0
        return -both, place != mind.here, number_of(place)

    right = [p for p, kind in mind.places.items() if kind == mind.goal.place]
    return min(right, key=first, default="")


def sought(mind: Mind) -> str:
    """Return the kind of thing that has to be searched, or nothing."""
    if not mind.held:
        return "" if candidates(mind) else mind.goal.thing
    right = mind.things[mind.held] == mind.goal.thing
    return mind.goal.place if right and wants_lamp(mind) and not lamps(mind) else ""


def wants_lamp(mind: Mind) -> bool:
    return mind.goal.type == LOOK


def needed(mind: Mind) -> str:
    """Return the thing seen before that says where to go next, or nothing."""
    if not mind.held:
        return next(iter(candidates(mind)), "")
    if mind.things[mind.held] != mind.goal.thing:
        return ""
    if wants_lamp(mind):
        return next(iter(lamps(mind)), "")
    return next((thing for thing in mind.at if settled(mind, thing)), "")
