"""The compiler: one household and one grammar, grounded into tables and words.

The domain's actions are grounded over the household as far as facts that never change
allow them. Nothing is guessed from paths: an action, a goal or a sentence that is not
known is a ValueError that names it.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from evoharness_jax.envs.alfworld import grammar as words
from evoharness_jax.envs.alfworld import pddl, text
from evoharness_jax.envs.alfworld.data import TASK_TYPES
from evoharness_jax.envs.alfworld.tables import (
    CLEAN,
    CLOSE,
    COOL,
    EXAMINE_PLACE,
    EXAMINE_THING,
    GO,
    HEAT,
    HELP,
    INVENTORY,
    KINDS,
    LOOK,
    MOST,
    MOVE,
    OPEN,
    SLICE,
    TAKE,
    USE,
    Game,
    State,
    Tables,
)
from evoharness_jax.types import NONE

_CODES = (("_bar_", "|"), ("_minus_", "-"), ("_plus_", "+"), ("_dot_", "."))


def compile_game(data: Mapping[str, Any], name: str = "") -> Game:
    """Compile the fields of a game file. Raises ValueError naming what is unknown."""
    actions, sinks = pddl.read_domain(data["pddl_domain"])
    release, task = words.split_goal(data["grammar"])
    grammar = words.parse(release, actions)
    home = _household(pddl.read_problem(data["pddl_problem"]))
    ground = _ground(home, actions, sinks)
    order, commands = _spell(ground, grammar, home)
    kind = np.array([ground[i][0] for i in order], np.int8)

    def column(ids, at):
        return np.array([ids.get(ground[i][at], NONE) for i in order], np.int8)

    tables = Tables(
        kind=kind,
        thing=column(home.things, 1),
        place=column(home.places, 2),
        tool=column(home.things, 3),
        spot=np.array(
            [home.spots.get(home.at.get(p), NONE) for p in home.places], np.int8
        ),
        openable=_members(home.places, home.having("openable")),
        **_goal_tables(home),
    )
    game = Game(
        id=name,
        task=task,
        task_type=TASK_TYPES[pddl.task_number(home.problem.goal)],
        walkthrough=tuple(str(command) for command in data.get("walkthrough") or ()),
        commands=commands,
        names={
            "object": tuple(home.titles[n] for n in home.things),
            "receptacle": tuple(home.titles[n] for n in home.places),
            "location": tuple(home.titles[n] for n in home.spots),
            "agent": (home.titles[home.agent],),
        },
        classes=tuple(home.otype.get(n, "") for n in home.things),
        intro="",
        grammar=grammar,
        static=_static(home),
        tables=tables,
        initial=_initial(home),
    )
    return replace(game, intro=text.intro(game, game.initial))


@dataclass(frozen=True)
class _Household:
    """A problem with its names sorted and numbered."""

    problem: pddl.Problem
    agent: str
    start: str
    things: dict[str, int]  # what can be in a place, be sliced or hold something
    places: dict[str, int]
    spots: dict[str, int]
    at: dict[str, str]  # place -> spot
    otype: dict[str, str]
    rtype: dict[str, str]
    inside: set[tuple[str, str]]
    movable: list[str]  # things that can ever be taken, sorted
    titles: dict[str, str]

    def having(self, predicate: str) -> set[str]:
        return {args[0] for args in self.problem.facts.get(predicate, ())}


def _household(problem: pddl.Problem) -> _Household:
    types, facts = problem.types, problem.facts
    if len(facts["atlocation"]) != 1 or facts["holds"] or facts["holdsany"]:
        raise ValueError("problem: one agent with empty hands was expected")
    agent, start = facts["atlocation"][0]
    at = _unique(facts["receptacleatlocation"], "location")
    inside = {(thing, place) for thing, place in facts["inreceptacle"]}
    for thing, place in inside:
        if types[thing] != "object" or types[place] != "receptacle":
            raise ValueError(f"problem: {thing!r} in {place!r}: wrong types")
    placed = {thing for thing, _ in inside}
    things = placed | {args[0] for args in facts["sliceable"]}
    things |= {name for args in facts["inreceptacleobject"] for name in args}
    used = {name for rows in facts.values() for args in rows for name in args}

    def numbered(names):
        ids = {name: i for i, name in enumerate(sorted(names))}
        if len(ids) > MOST:
            raise ValueError(f"problem: {len(ids)} things or places, at most {MOST}")
        return ids

    return _Household(
        problem=problem,
        agent=agent,
        start=start,
        things=numbered(things),
        places=numbered(name for name in used if types[name] == "receptacle"),
        spots=numbered({start, *at.values()}),
        at=at,
        otype=_unique(facts["objecttype"], "type"),
        rtype=_unique(facts["receptacletype"], "type"),
        inside=inside,
        movable=sorted({args[0] for args in facts["pickupable"]} & placed),
        titles=_titles(used),
    )


def _ground(home: _Household, actions, sinks) -> list[tuple]:
    """List the commands (kind, thing, place, tool) that the static facts allow."""
    there = [p for p in home.places if p in home.at]
    openable = home.having("openable")
    fits = {tuple(args) for args in home.problem.facts.get("cancontain", ())}
    ground = [(k, None, None, None) for k in (LOOK, INVENTORY)]
    if "help" in actions:
        ground.append((HELP, None, None, None))
    for kind in (GO, EXAMINE_PLACE):
        ground += [(kind, None, p, None) for p in there]
    for kind in (OPEN, CLOSE):
        ground += [(kind, None, p, None) for p in there if p in openable]
    lamps = home.having("toggleable") & {thing for thing, _ in home.inside}
    ground += [(USE, t, None, None) for t in home.things if t in lamps]
    ground += [(EXAMINE_THING, t, None, None) for t in home.movable]
    for thing in home.movable:
        for place in there:
            allowed = (home.rtype.get(place), home.otype.get(thing)) in fits
            if allowed:
                ground.append((MOVE, thing, place, None))
            if allowed or (thing, place) in home.inside:
                ground.append((TAKE, thing, place, None))
    for kind, able, where in (
        (CLEAN, "cleanable", sinks),
        (HEAT, "heatable", ("microwavetype",)),
        (COOL, "coolable", ("fridgetype",)),
    ):
        machines = [p for p in there if home.rtype.get(p) in where]
        able = home.having(able)
        ground += [
            (kind, t, p, None) for t in home.movable if t in able for p in machines
        ]
    knives = ("knifetype", "butterknifetype")
    tools = [t for t in home.movable if home.otype.get(t) in knives]
    soft = [t for t in home.things if t in home.having("sliceable")]
    ground += [(SLICE, t, None, k) for t in soft for k in tools]
    return ground


def _spell(ground, grammar, home) -> tuple[list[int], tuple[str, ...]]:
    """Word the commands: (their order by text, the texts in that order)."""
    said = {"a": home.titles[home.agent], "l": "", "lstart": "", "lend": ""}
    texts = []
    for kind, thing, place, tool in ground:
        said["r"] = home.titles.get(place, "")
        said["o"] = said["co"] = home.titles.get(thing, "")
        said["ko"] = home.titles.get(tool, "")
        texts.append(grammar.templates[KINDS[kind]].format_map(said))
    order = sorted(range(len(texts)), key=texts.__getitem__)
    commands = tuple(texts[i] for i in order)
    if len(set(commands)) != len(commands):
        raise ValueError("problem: two commands have the same words")
    return order, commands


def _goal_tables(home: _Household) -> dict[str, np.ndarray]:
    goal = home.problem.goal

    def of_type(names, types, kind):
        return {name for name in names if types.get(name) == kind}

    chosen = of_type(home.things, home.otype, goal.type)
    for predicate in goal.able:
        chosen &= home.having(predicate)
    lamps = of_type(home.things, home.otype, goal.lamp) & home.having("toggleable")
    return {
        "goal_thing": _members(home.things, chosen),
        "goal_place": _members(
            home.places, of_type(home.places, home.rtype, goal.place)
        ),
        "goal_count": np.int8(goal.count),
        "goal_flags": _members(words.FLAGS, goal.flags),
        "goal_look": np.bool_(goal.lamp != ""),
        "goal_lamp": _members(home.things, lamps),
    }


def _static(home: _Household) -> dict[str, np.ndarray]:
    kept = ("isreceptacleobject", "sliceable", "toggleable")
    static = {name: _members(home.things, home.having(name)) for name in kept}
    pairs = home.problem.facts.get("inreceptacleobject", ())
    apart = [pair for pair in pairs if pair[0] != pair[1]]
    static["inreceptacleobject"] = _relation(home.things, home.things, apart)
    return static


def _initial(home: _Household) -> State:
    located = home.problem.facts.get("objectatlocation", ())
    flags = [_members(home.things, home.having(flag)) for flag in words.FLAGS]
    return State(
        agent=np.int8(home.spots[home.start]),
        held=np.int8(NONE),
        opened=_members(home.places, home.having("opened")),
        inside=_relation(home.things, home.places, home.inside),
        left=np.packbits(_relation(home.things, home.places, ()), axis=1),
        near=np.packbits(_relation(home.things, home.spots, located), axis=1),
        flags=np.stack(flags, -1),
        steps=np.int32(0),
        limit=np.int32(0),
    )


def _members(names, chosen) -> np.ndarray:
    return np.array([name in chosen for name in names], bool)


def _relation(rows, columns, pairs) -> np.ndarray:
    """Make bool[rows, columns] of name pairs; what has no row or column is left out."""
    out = np.zeros((len(rows), len(columns)), bool)
    for row, column in pairs:
        if row in rows and column in columns:
            out[rows[row], columns[column]] = True
    return out


def _unique(pairs, what) -> dict[str, str]:
    one = dict(pairs)
    if len(one) != len({tuple(pair) for pair in pairs}):
        raise ValueError(f"problem: something has more than one {what}")
    return one


def _titles(ids: set[str]) -> dict[str, str]:
    """Name every id by class and number, as ALFWorld's AlfredDemangler does.

    Numbers of a class are given from the highest down, in the order of the ids.
    """
    split = {}
    for name in sorted(ids):
        text = name
        for code, sign in (*_CODES, ("_comma_", ",")):
            text = text.replace(code, sign)
        kind, bar, _ = text.partition("|")
        split[name] = kind + "basin" * ("basin" in name) if bar else None
    left = Counter(kind for kind in split.values() if kind is not None)
    titles = {}
    for name, kind in split.items():
        if kind is None:
            titles[name] = f"{name} "
        else:
            titles[name] = f"{kind} {left[kind]}"
            left[kind] -= 1
    return titles
