"""Homes made from a seed, in the form of ALFWorld's own game files.

    python -m evoharness_jax.envs.alfworld.households DIR --games N [--split SPLIT]

A home is drawn from what the training games were counted to hold (`survey`): a room,
its receptacles, its things and where they lie, and a task that such games ask for.
Every game is compiled and solved before it is given out: its goal does not hold at
the start, and the plan it carries has been played to the win. It loads in TextWorld.

Knobs, all off by default:

    size    times as many receptacles
    rarity  0: what the task needs lies where such things mostly lie; 0.5: anywhere
            alike; 1: mostly where they hardly ever lie
    shift   share of all things that lie where such things hardly ever lie

Seeds belong to splits, and so do pairs (thing, place) of tasks: what one split asks
for, no other does.
"""

import argparse
import functools
import hashlib
import json
import logging
import os
import random
import sys
from collections import defaultdict
from collections.abc import Iterable
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from evoharness_jax.envs.alfworld import plan, survey
from evoharness_jax.envs.alfworld.data import TASK_TYPES
from evoharness_jax.envs.alfworld.game import load
from evoharness_jax.envs.alfworld.ground import compile_game

SPLITS = ("train", "valid_seen", "valid_unseen")
SPAN = 10_000_000  # seeds per split
TRIES = 100

SENTENCES = {
    TASK_TYPES[0]: ("put a {thing} in {place}.", "put some {thing} on {place}."),
    TASK_TYPES[1]: (
        "look at {thing} under the {place}.",
        "examine the {thing} with the {place}.",
    ),
    TASK_TYPES[2]: (
        "put a clean {thing} in {place}.",
        "clean some {thing} and put it in {place}.",
    ),
    TASK_TYPES[3]: (
        "put a hot {thing} in {place}.",
        "heat some {thing} and put it in {place}.",
    ),
    TASK_TYPES[4]: (
        "put a cool {thing} in {place}.",
        "cool some {thing} and put it in {place}.",
    ),
    TASK_TYPES[5]: (
        "put two {thing} in {place}.",
        "find two {thing} and put them in {place}.",
    ),
}
_PLACED = """(and (exists (?r - receptacle) (exists (?o - object) (and {more}
    (objectType ?o {thing}Type) (receptacleType ?r {place}Type)
    (inReceptacle ?o ?r)))))"""
_TWO = """(and (exists (?r - receptacle) (exists (?o1 - object) (and
    (objectType ?o1 {thing}Type) (receptacleType ?r {place}Type) (inReceptacle ?o1 ?r)
    (exists (?o2 - object) (and (not (= ?o1 ?o2)) (objectType ?o2 {thing}Type)
        (receptacleType ?r {place}Type) (inReceptacle ?o2 ?r)))))))"""
_LOOK = """(and (exists (?t - object ?r - receptacle ?a - agent ?l - location) (and
    (objectType ?t {place}Type) (toggleable ?t) (isToggled ?t)
    (receptacleAtLocation ?r ?l) (atLocation ?a ?l) (inReceptacle ?t ?r)))
  (exists (?o - object ?a - agent) (and (objectType ?o {thing}Type) (holds ?a ?o))))"""
_DONE = {
    TASK_TYPES[0]: ("", ""),
    TASK_TYPES[2]: ("(cleanable ?o) (isClean ?o)", "SinkBasin"),
    TASK_TYPES[3]: ("(heatable ?o) (isHot ?o)", "Microwave"),
    TASK_TYPES[4]: ("(coolable ?o) (isCool ?o)", "Fridge"),
}


class Wish(NamedTuple):
    """What a game asks for, and in which room."""

    task: str
    thing: str  # class
    place: str  # class of the receptacle, or of the lamp
    room: str


def seeds(split: str, count: int, first: int = 0) -> range:
    """Give `count` seeds of a split, from its `first` on."""
    if split not in SPLITS or not 0 <= first <= first + count <= SPAN:
        raise ValueError(f"no such seeds: {split=} {first=} {count=}")
    start = SPLITS.index(split) * SPAN + first
    return range(start, start + count)


def split_of(seed: int) -> str:
    """Give the split that a seed belongs to."""
    if not 0 <= seed < SPAN * len(SPLITS):
        raise ValueError(f"seed out of range: {seed=}")
    return SPLITS[seed // SPAN]


def household(
    seed: int,
    task: str | None = None,
    *,
    size: float = 1.0,
    rarity: float = 0.0,
    shift: float = 0.0,
) -> dict[str, Any]:
    """Make the fields of a game file.

    Args:
        seed: which home; it also decides the split.
        task: task type; None: as often as the training games have it.
        size, rarity, shift: see the module.
    """
    if task not in (None, *TASK_TYPES):
        raise ValueError(f"unknown task type: {task=}")
    if not (size > 0 and 0 <= rarity <= 1 and 0 <= shift <= 1):
        raise ValueError(f"knob out of range: {size=} {rarity=} {shift=}")
    rng = random.Random(f"household {seed} {task} {size} {rarity} {shift}")
    for _ in range(TRIES):
        wish = _wish(rng, split_of(seed), task)
        home = _furnish(rng, wish, size, rarity, shift)
        if home is None:
            continue
        fields = _fields(rng, seed, wish, home)
        script = plan.solve(compile_game(fields))
        if script:
            return {**fields, "solvable": True, "walkthrough": list(script)}
    raise ValueError(f"no solvable home: {seed=} {task=} {size=} {rarity=} {shift=}")


def write(
    folder: str | Path, which: Iterable[int], task: str | None = None, **knobs: float
) -> list[str]:
    """Write games where ALFWorld's loaders look for them, and give their paths."""
    paths = []
    for seed in which:
        fields = household(seed, task, **knobs)
        wish = Wish(*fields["wish"])
        scene = _scene(wish.room, seed)
        trial = Path(folder) / "json_2.1.1" / split_of(seed)
        trial /= f"{wish.task}-{wish.thing}-None-{wish.place}-{scene}"
        trial /= f"trial_G{seed:08d}"
        trial.mkdir(parents=True, exist_ok=True)
        (trial / "game.tw-pddl").write_text(json.dumps(fields))
        (trial / "traj_data.json").write_text(json.dumps(_trajectory(wish, trial.name)))
        paths.append(str(trial / "game.tw-pddl"))
    return paths


@functools.cache
def _texts() -> tuple[str, str, dict]:
    """Give the rules, the words and the counts that come with the package."""
    folder = resources.files("evoharness_jax") / "data" / "household"
    rules, words, homes = (
        (folder / name).read_text(encoding="utf-8")
        for name in ("rules.pddl", "words.twl2", "homes.json")
    )
    return rules, words, json.loads(homes)


@functools.cache
def _wishes(split: str) -> dict[str, list[tuple[Wish, int]]]:
    """Give what the games of a split may ask for, with its weight, by task type.

    Of every ten pairs (thing, place) one is kept for each of the other splits; the
    task types that have fewest pairs choose first, so that each split has all six.
    """
    goals = _texts()[2]["goals"]
    owner: dict[tuple[str, str], str] = {}
    wishes = defaultdict(list)
    for task in sorted(goals, key=lambda task: len(goals[task])):
        pairs = {(thing, place) for thing, place, _, _ in goals[task]} - set(owner)
        ranked = sorted(
            pairs, key=lambda pair: hashlib.sha256("/".join(pair).encode()).digest()
        )
        for rank, pair in enumerate(ranked):
            owner[pair] = {3: "valid_seen", 7: "valid_unseen"}.get(rank % 10, "train")
        for thing, place, room, count in goals[task]:
            if owner[thing, place] == split:
                wishes[task].append((Wish(task, thing, place, room), count))
    return dict(wishes)


def _wish(rng: random.Random, split: str, task: str | None) -> Wish:
    goals, wishes = _texts()[2]["goals"], _wishes(split)
    if task is None:
        weights = [sum(row[-1] for row in goals[kind]) for kind in wishes]
        task = rng.choices(list(wishes), weights)[0]
    options, counts = zip(*wishes[task])
    return rng.choices(options, counts)[0]


class _Home(NamedTuple):
    places: dict[str, str]  # id -> class
    spots: dict[str, str]  # place id -> location id
    openable: list[str]
    things: dict[str, str]  # id -> class
    where: dict[str, str]  # thing id -> place id
    cool: list[str]


def _furnish(rng, wish: Wish, size, rarity, shift) -> _Home | None:
    """Draw a room; None where the task has no way in it."""
    homes = _texts()[2]
    room = homes["rooms"][wish.room]
    looks = wish.task == TASK_TYPES[1]
    needed = {_DONE[wish.task][1] if wish.task in _DONE else "", wish.place} - {""}
    ids = _Ids(rng)
    places: dict[str, str] = {}
    for kind, counts in room["places"].items():
        count = rng.choices(range(len(counts)), counts)[0]
        count = max(round(count * size), min(count, 1), kind in needed)
        places |= {ids.new(kind): kind for _ in range(count)}
    if not looks and wish.place not in room["places"]:
        places[ids.new(wish.place)] = wish.place
    spots: dict[str, str] = {}
    for place in places:
        shared = spots and rng.random() < room["share"]
        spots[place] = rng.choice(list(spots.values())) if shared else ids.new("loc")
    opens = homes["opens"]
    openable = [p for p, kind in places.items() if rng.random() < opens.get(kind, 0)]

    by_kind = defaultdict(list)
    for place, kind in places.items():
        by_kind[kind].append(place)
    least = {wish.thing: 2 if wish.task == TASK_TYPES[5] else 1}
    least |= {wish.place: 1} if looks else {}
    things, where = {}, {}
    for kind in sorted({*room["things"], *least}):
        counts = room["things"].get(kind, [1])
        count = max(rng.choices(range(len(counts)), counts)[0], least.get(kind, 0))
        for _ in range(count):
            chosen = _place(rng, wish, kind, by_kind, rarity, shift)
            if chosen:
                thing = ids.new(kind)
                things[thing], where[thing] = kind, rng.choice(by_kind[chosen])
    for kind, count in least.items():
        if list(things.values()).count(kind) < count:
            return None
    cool = [
        thing
        for thing, kind in things.items()
        if places[where[thing]] == "Fridge"
        and "coolable" in homes["able"].get(kind, ())
        and rng.random() < homes["cool"]
    ]
    return _Home(places, spots, openable, things, where, cool)


def _place(rng, wish: Wish, kind, by_kind, rarity, shift) -> str | None:
    """Draw the class of receptacle that a thing lies in, None where there is none."""
    homes = _texts()[2]
    usual = homes["rooms"][wish.room]["where"].get(kind, {})
    able = {place for place, kinds in homes["fits"].items() if kind in kinds}
    weights = {p: usual.get(p, 0) for p in sorted(able | set(usual)) if p in by_kind}
    if kind == wish.thing:  # leave something to do
        if wish.task in (TASK_TYPES[0], TASK_TYPES[5]):
            weights.pop(wish.place, None)
        if rarity:
            weights = {p: (w or 0.5) ** (1 - 2 * rarity) for p, w in weights.items()}
    if shift and rng.random() < shift:
        weights = {p: 1 / (1 + w) ** 2 for p, w in weights.items()}
    if not any(weights.values()):
        weights = dict.fromkeys(weights, 1)
    return rng.choices(list(weights), list(weights.values()))[0] if weights else None


class _Ids:
    """New names, as the games have them: a class and where the thing stands."""

    def __init__(self, rng: random.Random):
        self.rng, self.used = rng, set()

    def new(self, kind: str) -> str:
        while True:
            first = kind.removesuffix("Basin")
            parts = [first, *(self._number() for _ in range(3))]
            name = "_bar_".join(parts + [kind] * (first != kind))
            if name not in self.used:
                self.used.add(name)
                return name

    def _number(self) -> str:
        sign = self.rng.choice(("plus", "minus"))
        return f"_{sign}_{self.rng.randrange(6):02d}_dot_{self.rng.randrange(100):02d}"


def _fields(rng, seed: int, wish: Wish, home: _Home) -> dict[str, Any]:
    rules, words, homes = _texts()
    sentence = rng.choice(SENTENCES[wish.task])
    sentence = sentence.format(thing=wish.thing.lower(), place=wish.place.lower())
    facts = ["(atLocation agent1 loc_bar_start)"]
    for place, kind in home.places.items():
        facts.append(f"(receptacleType {place} {kind}Type)")
        facts.append(f"(receptacleAtLocation {place} {home.spots[place]})")
    facts += [f"(openable {place})" for place in home.openable]
    for thing, kind in home.things.items():
        facts.append(f"(objectType {thing} {kind}Type)")
        facts.append(f"(inReceptacle {thing} {home.where[thing]})")
        facts.append(f"(objectAtLocation {thing} {home.spots[home.where[thing]]})")
        facts += [f"({able} {thing})" for able in homes["able"].get(kind, ())]
    facts += [f"(isCool {thing})" for thing in home.cool]
    present = set(home.things.values())
    for place in sorted(set(home.places.values())):
        for kind in sorted(present & set(homes["fits"].get(place, ()))):
            facts.append(f"(canContain {place}Type {kind}Type)")
    rtypes = {kind for room in homes["rooms"].values() for kind in room["places"]}
    otypes = ({*homes["able"], *homes["classes"]} | {"Sink"}) - rtypes
    objects = [
        "agent1 - agent",
        *(f"{kind}Type - otype" for kind in sorted(otypes)),
        *(f"{kind}Type - rtype" for kind in sorted(rtypes)),
        *(f"{spot} - location" for spot in sorted({*home.spots.values()})),
        "loc_bar_start - location",
        *(f"{thing} - object" for thing in home.things),
        *(f"{place} - receptacle" for place in home.places),
    ]
    goal = {TASK_TYPES[1]: _LOOK, TASK_TYPES[5]: _TWO}.get(wish.task, _PLACED)
    goal = goal.format(
        thing=wish.thing, place=wish.place, more=_DONE.get(wish.task, ("",))[0]
    )
    problem = (
        f"(define (problem home_{seed})\n(:domain alfred)\n(:objects\n"
        + "\n".join(objects)
        + ")\n(:init\n"
        + "\n".join(facts)
        + f")\n(:goal {goal}))\n"
    )
    return {
        "pddl_domain": rules,
        "grammar": words.replace("UNKNOWN GOAL.", sentence),
        "pddl_problem": problem,
        "wish": list(wish),
    }


def _scene(room: str, seed: int) -> int:
    hundred = survey.ROOMS.index(room)
    return (hundred + 1 if hundred else 0) * 100 + seed % 30 + 1


def _trajectory(wish: Wish, name: str) -> dict[str, Any]:
    """Give the part of an ALFRED trajectory that ALFWorld's loaders read."""
    looks = wish.task == TASK_TYPES[1]
    return {
        "task_id": name,
        "task_type": wish.task,
        "pddl_params": {
            "object_target": wish.thing,
            "parent_target": "" if looks else wish.place,
            "toggle_target": wish.place if looks else "",
            "mrecep_target": "",
            "object_sliced": False,
        },
        "turk_annotations": {"anns": []},
    }


def main(arguments: list[str] | None = None) -> None:
    """Write games, and say how they compare with the training games, if there are."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder")
    parser.add_argument("--games", type=int, default=100)
    parser.add_argument("--split", choices=SPLITS, default="train")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--task", choices=TASK_TYPES)
    for knob, default in (("size", 1.0), ("rarity", 0.0), ("shift", 0.0)):
        parser.add_argument(f"--{knob}", type=float, default=default)
    options = parser.parse_args(arguments)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(message)s")
    paths = write(
        options.folder,
        seeds(options.split, options.games, options.first),
        options.task,
        size=options.size,
        rarity=options.rarity,
        shift=options.shift,
    )
    logging.info("made: %s", json.dumps(survey.describe(map(load, paths)), indent=1))
    real = Path(os.environ.get("ALFWORLD_DATA", ""), "json_2.1.1", "train")
    if paths and os.environ.get("ALFWORLD_DATA") and real.is_dir():
        found = sorted(map(str, real.rglob("game.tw-pddl")))
        random.Random(0).shuffle(found)
        games = map(load, found[: options.games])
        logging.info("training: %s", json.dumps(survey.describe(games), indent=1))


if __name__ == "__main__":
    try:
        main()
    except (ValueError, OSError) as error:
        sys.exit(f"error: {error}")
