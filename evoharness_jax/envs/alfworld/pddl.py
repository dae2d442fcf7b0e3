"""The reader of a game's two PDDL texts: the rules and the household.

The rules of ALFRED are the same in every game, so they are recognised, not
interpreted: each action is known by a hash of its words, and one that is not is
refused by name. The problem is read for what it is: typed names, facts, and a goal
of one of the six kinds of task.
"""

import functools
import hashlib
import re
from collections import defaultdict
from typing import NamedTuple

# sha256 of an action's words without remarks. Note the stray comma in examineObject's
# `?l - location, ?r`: no location has that type, so only what is held is examined.
_RULES = {
    ":types": {"a56efe699d62"},
    "look": {"6e7bb1b38b83"},
    "inventory": {"59a5e9e207c4"},
    "help": {"aa2f8e54f31d"},
    "examinereceptacle": {"9b40d37f8d40"},
    "examineobject": {"a771a77ce188"},
    "gotolocation": {"dd0dd2a56c32"},
    "openobject": {"dd0fde414a55"},
    "closeobject": {"67570af6ce69"},
    "pickupobject": {"31f0a7f87d75"},
    "putobject": {"01c6ab9bdb2d"},
    "cleanobject": {"6a8a73de194f", "a05897002515"},
    "heatobject": {"d87d98147384"},
    "coolobject": {"a9efc8e0c80a"},
    "toggleobject": {"004b357daaea"},
    "sliceobject": {"3c0004992334"},
}
_SINKS = {"6a8a73de194f": ("sinktype", "sinkbasintype")}  # else only the basin cleans
_OPTIONAL = {"help"}
_TOKEN = re.compile(r"[()]|[^\s()]+")
_REMARK = re.compile(r";[^\n]*")
_ABLE = ("cleanable", "heatable", "coolable", "sliceable", "toggleable")
_FLAGS = ("isclean", "ishot", "iscool", "issliced")
_SHAPE = "goal: not one of the six kinds of task"


class Problem(NamedTuple):
    """A household as its problem text states it."""

    types: dict[str, str]  # name -> type
    facts: dict[str, list[list[str]]]  # predicate -> its arguments, in file order
    goal: "Goal"


class Goal(NamedTuple):
    """What has to be true: things of a kind in one place, or held under a lamp."""

    type: str  # type of the things
    able: frozenset[str]  # properties they must have
    flags: frozenset[str]  # states they must be in
    place: str  # type of the place, "": in the hand, under a lamp
    count: int
    lamp: str  # type of the lamp, "": no lamp needed


@functools.lru_cache(maxsize=16)
def read_domain(text: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Check the rules: (action names, types of receptacle that clean).

    Raises ValueError naming the action that is missing or not known.
    """
    try:
        sections = nested(text)
    except ValueError as error:
        raise ValueError(f"domain: {error}") from None
    actions, sinks = [], ("sinkbasintype",)
    for section in sections[1:]:
        if section[0] not in (":action", ":types"):
            continue
        name = section[1] if section[0] == ":action" else ":types"
        written = " ".join(_TOKEN.findall(_written(section)))
        digest = hashlib.sha256(written.encode()).hexdigest()[:12]
        if name not in _RULES:
            raise ValueError(f"domain: unknown action {name!r}")
        if digest not in _RULES[name]:
            raise ValueError(f"domain: unknown rule for {name!r}")
        sinks = _SINKS.get(digest, sinks)
        actions.append(name)
    if missing := set(_RULES) - _OPTIONAL - set(actions):
        raise ValueError(f"domain: no {min(missing)!r}")
    return tuple(a for a in actions if a != ":types"), sinks


def read_problem(text: str) -> Problem:
    """Read a problem text. Raises ValueError naming what is broken or unknown."""
    try:
        sections = {section[0]: section[1:] for section in nested(text)[1:]}
    except (ValueError, IndexError, TypeError) as error:
        raise ValueError(f"problem: {error}") from None
    for name in (":objects", ":init", ":goal"):
        if not sections.get(name):
            raise ValueError(f"problem: no {name}")
    types, waiting, entries = {}, [], iter(sections[":objects"])
    for entry in entries:
        if not isinstance(entry, str):
            raise ValueError("problem: a list among the objects")
        if entry == "-":
            types.update(dict.fromkeys(waiting, next(entries, "")))
            waiting = []
        elif entry in types or entry in waiting:
            raise ValueError(f"problem: {entry!r} is declared twice")
        else:
            waiting.append(entry)
    facts: dict[str, list] = defaultdict(list)
    for name, *args in sections[":init"]:
        if name == "=":
            continue
        for arg in args:
            if not isinstance(arg, str) or arg not in types:
                raise ValueError(f"problem: unknown name {arg!r} in {name!r}")
        facts[name].append(args)
    try:
        return Problem(types, facts, _goal(sections[":goal"][0]))
    except (IndexError, TypeError):
        raise ValueError(_SHAPE) from None


def task_number(goal: Goal) -> int:
    """Give the number of the goal's task type in `data.TASK_TYPES`."""
    if goal.lamp:
        return 1
    if goal.count == 2:
        return 5
    for number, flag in ((2, "isclean"), (3, "ishot"), (4, "iscool")):
        if flag in goal.flags:
            return number
    return 0


def nested(text: str) -> list:
    """Read one S-expression as nested lists of lower-case words."""
    stack: list[list] = [[]]
    for token in _TOKEN.findall(_REMARK.sub("", text).lower()):
        if token == "(":
            stack.append([])
        elif token != ")":
            stack[-1].append(token)
        elif len(stack) > 1:
            done = stack.pop()
            stack[-1].append(done)
        else:
            raise ValueError("a bracket closes nothing")
    if len(stack) != 1 or len(stack[0]) != 1 or isinstance(stack[0][0], str):
        raise ValueError("brackets do not match")
    return stack[0][0]


def _written(item) -> str:
    return item if isinstance(item, str) else f"({' '.join(map(_written, item))})"


def _goal(written: list) -> Goal:
    clauses = [_atoms(c) for c in (written[1:] if written[0] == "and" else [written])]
    if len(clauses) == 1:
        return _placed(clauses[0])
    if len(clauses) == 2:
        return _lit(*sorted(clauses, key=len))
    raise ValueError(_SHAPE)


def _placed(atoms: list[tuple]) -> Goal:
    """Read: one thing, or two that differ, of a kind, in one place of a type."""
    inside = {a[1]: a[2] for a in atoms if a[0] == "inreceptacle"}
    place = [a[2] for a in set(atoms) if a[0] == "receptacletype"]
    apart = [set(a[1:]) for a in atoms if a[0] == "not="]
    about: dict[str, set] = defaultdict(set)
    for name, variable, *rest in atoms:
        if name not in ("inreceptacle", "receptacletype", "not="):
            about[variable].add((name, *rest))
    alike = len({frozenset(said) for said in about.values()}) == 1
    wanted = [] if len(inside) == 1 else [set(inside)]
    receptacles = {a[1] for a in atoms if a[0] == "receptacletype"}
    if (
        not alike
        or set(about) != set(inside)
        or len(inside) > 2
        or apart != wanted
        or len(place) != 1
        or receptacles != set(inside.values())
    ):
        raise ValueError(_SHAPE)
    kind, able, flags = _properties(about[min(about)])
    return Goal(kind, able, flags, place[0], len(inside), "")


def _lit(hold: list[tuple], lamp: list[tuple]) -> Goal:
    """Read: a lamp switched on where the agent stands, and a thing in its hand."""
    relations = {"receptacleatlocation", "atlocation", "inreceptacle", "istoggled"}
    named = {atom[0]: atom[1:] for atom in lamp}
    if not relations <= set(named) or [a[0] for a in hold].count("holds") != 1:
        raise ValueError(_SHAPE)
    light, *rest = named["istoggled"]
    receptacle, spot = named["receptacleatlocation"]
    if (
        rest
        or named["atlocation"][1:] != (spot,)
        or named["inreceptacle"] != (light, receptacle)
    ):
        raise ValueError(_SHAPE)
    lamp_type, able, flags = _properties(
        {(name, *rest) for name, _, *rest in lamp if name not in relations}
    )
    if able != {"toggleable"} or flags:
        raise ValueError(_SHAPE)
    kind, able, flags = _properties(
        {(name, *rest) for name, _, *rest in hold if name != "holds"}
    )
    return Goal(kind, able, flags, "", 1, lamp_type)


def _properties(said: set[tuple]) -> tuple[str, frozenset, frozenset]:
    """Split what is said of a thing into its type, properties and states."""
    kinds = [rest[0] for name, *rest in said if name == "objecttype"]
    able = frozenset(name for name, *rest in said if name in _ABLE and not rest)
    flags = frozenset(name for name, *rest in said if name in _FLAGS and not rest)
    if len(kinds) != 1 or len(said) != 1 + len(able) + len(flags):
        raise ValueError(_SHAPE)
    return kinds[0], able, flags


def _atoms(part: list) -> list[tuple]:
    """Flatten nested `exists` and `and` into a list of atoms."""
    if part[0] == "exists" and len(part) == 3:
        return _atoms(part[2])
    if part[0] == "and":
        return [atom for inner in part[1:] for atom in _atoms(inner)]
    if part[0] == "not" and part[1][0] == "=":
        return [("not=", *part[1][1:])]
    if part[0] in ("forall", "or", "not", "imply", "when"):
        raise ValueError(f"goal: unknown condition {part[0]!r}")
    return [tuple(part)]
