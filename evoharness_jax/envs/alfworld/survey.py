"""What the homes of real games are like, counted; `households` draws from the counts.

    python -m evoharness_jax.envs.alfworld.survey DIR > homes.json

`survey` reads a folder of games into a table: per room how many receptacles and things
of each class there are and where the things lie, per class what can be done with it,
per task what is asked for. `describe` sums up a set of compiled games in the figures
that tell whether two sets are alike.
"""

import json
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from statistics import fmean

from evoharness_jax.envs.alfworld import pddl, plan
from evoharness_jax.envs.alfworld.data import TASK_TYPES
from evoharness_jax.envs.alfworld.tables import Game

ROOMS = ("kitchen", "livingroom", "bedroom", "bathroom")
PROPERTIES = (
    "pickupable",
    "isreceptacleobject",
    "toggleable",
    "sliceable",
    "cleanable",
    "heatable",
    "coolable",
)
_CLASS = re.compile(r"\b([A-Za-z]+)Type\b")


def survey(files: Iterable[tuple[str, Mapping]]) -> dict:
    """Count what the games `(number of the scene, fields)` hold.

    Scenes 1-99 are kitchens, then by hundreds: 200 living rooms, 300 bedrooms, 400
    bathrooms.
    """
    classes: dict[str, str] = {}
    able = defaultdict(Counter)
    seen, opens, shares = Counter(), defaultdict(Counter), defaultdict(list)
    places, things, where = (
        defaultdict(lambda: defaultdict(Counter)) for _ in range(3)
    )
    fits, goals, cool, rooms = (
        defaultdict(set),
        defaultdict(Counter),
        Counter(),
        Counter(),
    )
    for scene, fields in files:
        room = ROOMS[max(0, int(scene) // 100 - 1)]
        rooms[room] += 1
        text = fields["pddl_problem"]
        classes |= {name.lower() + "type": name for name in _CLASS.findall(text)}
        problem = pddl.read_problem(text)
        facts = problem.facts
        otype = {o: classes[t] for o, t in facts["objecttype"]}
        rtype = {r: classes[t] for r, t in facts["receptacletype"]}
        openable = {args[0] for args in facts["openable"]}
        at = dict(facts["receptacleatlocation"])
        shares[room].append(1 - len(set(at.values())) / len(at))
        for place, kind in rtype.items():
            opens[kind][place in openable] += 1
        for kind, count in Counter(rtype.values()).items():
            places[room][kind][count] += 1
        inside = {o: r for o, r in facts["inreceptacle"] if o in otype}
        for kind, count in Counter(otype[o] for o in inside).items():
            things[room][kind][count] += 1
            seen[kind] += count
        has = {name: {args[0] for args in facts[name]} for name in PROPERTIES}
        cold = {args[0] for args in facts["iscool"]}
        for thing, place in inside.items():
            where[room][otype[thing]][rtype[place]] += 1
            for name in PROPERTIES:
                able[otype[thing]][name] += thing in has[name]
            if rtype[place] == "Fridge" and thing in has["coolable"]:
                cool[thing in cold] += 1
        for place, thing in facts["cancontain"]:
            fits[classes[place]].add(classes[thing])
        goal = problem.goal
        target = classes[goal.place] if goal.place else classes[goal.lamp]
        goals[TASK_TYPES[pddl.task_number(goal)]][classes[goal.type], target, room] += 1
    return {
        "classes": sorted(set(classes.values())),
        "able": {
            kind: [name for name in PROPERTIES if able[kind][name] * 2 > seen[kind]]
            for kind in sorted(able)
        },
        "opens": {
            kind: round(count[True] / count.total(), 3)
            for kind, count in sorted(opens.items())
            if count[True]
        },
        "fits": {place: sorted(kinds) for place, kinds in sorted(fits.items())},
        "cool": round(cool[True] / max(1, cool.total()), 3),
        "rooms": {
            room: {
                "share": round(fmean(shares[room]), 3),
                "places": _counts(places[room], rooms[room]),
                "things": _counts(things[room], rooms[room]),
                "where": {
                    kind: dict(count.most_common())
                    for kind, count in sorted(where[room].items())
                },
            }
            for room in ROOMS
            if rooms[room]
        },
        "goals": {
            task: [[*key, count] for key, count in sorted(counts.items())]
            for task, counts in sorted(goals.items())
        },
    }


def _counts(by_class, games: int) -> dict[str, list[int]]:
    """Give for each class how many games have none of it, one, two, ..."""
    out = {}
    for kind, counts in sorted(by_class.items()):
        none = games - counts.total()
        out[kind] = [none] + [counts[n] for n in range(1, max(counts) + 1)]
    return out


def describe(games: Iterable[Game]) -> dict[str, dict[str, float]]:
    """Give means by task type: games, places, things, commands, length of a plan."""
    rows = defaultdict(list)
    for game in games:
        movable = {int(t) for t in game.tables.thing[game.tables.thing >= 0]}
        script = game.walkthrough or plan.solve(game)
        shape = (len(game.tables.spot), len(movable), len(game.commands), len(script))
        rows[game.task_type].append(shape)
        rows["all"].append(shape)
    names = ("places", "things", "commands", "plan")
    return {
        kind: {"games": len(shapes)}
        | {name: round(fmean(column), 1) for name, column in zip(names, zip(*shapes))}
        for kind, shapes in sorted(rows.items())
    }


def main(folder: str) -> None:
    """Write the survey of the games under `folder` to the standard output."""
    from pathlib import Path

    def files():
        for path in sorted(Path(folder).rglob("game.tw-pddl")):
            yield path.parent.parent.name.split("-")[-1], json.loads(path.read_bytes())

    json.dump(survey(files()), sys.stdout, separators=(",", ":"))


if __name__ == "__main__":
    main(sys.argv[1])
