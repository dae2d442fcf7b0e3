"""A kitchen small enough to check by hand, as the fields of a game file.

loc 1  countertop (an apple, a bowl, a knife) and, beside it, the sink basin
loc 2  microwave: shut, empty
loc 3  fridge: shut, with a bowl and an egg that is cool from the start
loc 4  nothing: the agent starts here
loc 5  desk, with a lamp
"""

import json
from importlib import resources

TYPES = "Apple Egg Bowl Knife ButterKnife DeskLamp Sink"
PLACES = "CounterTop SinkBasin Sink Microwave Fridge Desk"
PROBLEM = """
(define (problem kitchen)
  (:domain alfred)
  (:objects
    agent1 - agent
    {otypes} - otype
    {rtypes} - rtype
    Loc_bar_1 Loc_bar_2 Loc_bar_3 Loc_bar_4 Loc_bar_5 - location
    Apple_bar_1 Egg_bar_1 Bowl_bar_1 Bowl_bar_2 Knife_bar_1 DeskLamp_bar_1 - object
    CounterTop_bar_1 Sink_bar_1_bar_SinkBasin Microwave_bar_1 Fridge_bar_1 Desk_bar_1
      - receptacle)
  (:init
    (atLocation agent1 Loc_bar_4)
    (receptacleType CounterTop_bar_1 CounterTopType)
    (receptacleType Sink_bar_1_bar_SinkBasin SinkBasinType)
    (receptacleType Microwave_bar_1 MicrowaveType)
    (receptacleType Fridge_bar_1 FridgeType)
    (receptacleType Desk_bar_1 DeskType)
    (receptacleAtLocation CounterTop_bar_1 Loc_bar_1)
    (receptacleAtLocation Sink_bar_1_bar_SinkBasin Loc_bar_1)
    (receptacleAtLocation Microwave_bar_1 Loc_bar_2)
    (receptacleAtLocation Fridge_bar_1 Loc_bar_3)
    (receptacleAtLocation Desk_bar_1 Loc_bar_5)
    (openable Microwave_bar_1) (openable Fridge_bar_1)
    (objectType Apple_bar_1 AppleType) (objectType Egg_bar_1 EggType)
    (objectType Bowl_bar_1 BowlType) (objectType Bowl_bar_2 BowlType)
    (objectType Knife_bar_1 KnifeType) (objectType DeskLamp_bar_1 DeskLampType)
    (inReceptacle Apple_bar_1 CounterTop_bar_1)
    (inReceptacle Bowl_bar_1 CounterTop_bar_1)
    (inReceptacle Knife_bar_1 CounterTop_bar_1)
    (inReceptacle Bowl_bar_2 Fridge_bar_1)
    (inReceptacle Egg_bar_1 Fridge_bar_1)
    (inReceptacle DeskLamp_bar_1 Desk_bar_1)
    (objectAtLocation Apple_bar_1 Loc_bar_1) (objectAtLocation Bowl_bar_1 Loc_bar_1)
    (objectAtLocation Knife_bar_1 Loc_bar_1) (objectAtLocation Egg_bar_1 Loc_bar_3)
    (objectAtLocation Bowl_bar_2 Loc_bar_3) (objectAtLocation DeskLamp_bar_1 Loc_bar_5)
    (pickupable Apple_bar_1) (pickupable Egg_bar_1) (pickupable Bowl_bar_1)
    (pickupable Bowl_bar_2) (pickupable Knife_bar_1)
    (isReceptacleObject Bowl_bar_1) (isReceptacleObject Bowl_bar_2)
    (toggleable DeskLamp_bar_1)
    (sliceable Apple_bar_1) (sliceable Egg_bar_1)
    (cleanable Apple_bar_1) (cleanable Bowl_bar_1) (cleanable Bowl_bar_2)
    (heatable Apple_bar_1) (heatable Egg_bar_1)
    (coolable Apple_bar_1) (coolable Egg_bar_1) (isCool Egg_bar_1)
    (canContain CounterTopType AppleType) (canContain CounterTopType BowlType)
    (canContain CounterTopType KnifeType) (canContain CounterTopType EggType)
    (canContain SinkBasinType AppleType) (canContain SinkBasinType BowlType)
    (canContain FridgeType AppleType) (canContain FridgeType EggType)
    (canContain MicrowaveType AppleType) (canContain MicrowaveType EggType)
    (canContain DeskType BowlType))
  (:goal {goal}))
"""
PLACE = """(and (exists (?r - receptacle ?o - object) (and (objectType ?o {thing})
    (receptacleType ?r {place}) (inReceptacle ?o ?r) {more})))"""
TWO = """(and (exists (?r - receptacle) (exists (?o1 - object) (and
    (objectType ?o1 {thing}) (receptacleType ?r {place}) (inReceptacle ?o1 ?r)
    (exists (?o2 - object) (and (not (= ?o1 ?o2)) (objectType ?o2 {thing})
        (receptacleType ?r {place}) (inReceptacle ?o2 ?r)))))))"""
LOOK = """(and (exists (?t - object ?r - receptacle ?a - agent ?l - location) (and
    (objectType ?t DeskLampType) (toggleable ?t) (isToggled ?t)
    (receptacleAtLocation ?r ?l) (atLocation ?a ?l) (inReceptacle ?t ?r)))
  (exists (?o - object ?a - agent) (and (objectType ?o {thing}) (holds ?a ?o))))"""
HOT_APPLE = PLACE.format(
    thing="AppleType", place="CounterTopType", more="(heatable ?o) (isHot ?o)"
)


def game(goal: str = HOT_APPLE, sentence: str = "heat some apple.", **changes) -> dict:
    """Give the fields of a game file; `changes` replace fields."""
    folder = resources.files("evoharness_jax") / "data" / "household"
    problem = PROBLEM.format(
        otypes=" ".join(f"{name}Type" for name in TYPES.split() if name != "Sink"),
        rtypes=" ".join(f"{name}Type" for name in PLACES.split()),
        goal=goal,
    )
    grammar = (folder / "words.twl2").read_text().replace("UNKNOWN GOAL.", sentence)
    return {
        "pddl_domain": (folder / "rules.pddl").read_text(),
        "grammar": grammar,
        "pddl_problem": problem,
        "solvable": True,
        **changes,
    }


def older(**options) -> dict:
    """Give the kitchen as the older data release words it: `put`, spots, no help."""
    fields = game(**options)
    words, rules = fields["grammar"], fields["pddl_domain"]
    words = words.replace("move {o} to {r}", "put {o} in/on {r}")
    words = words.replace(
        "You move the {o.name} to the", "You put the {o.name} in/on the"
    )
    words = words.replace("arrive at {r.name}", "arrive at {lend.name}")
    rules = rules[: rules.index("(:action help")] + ")"
    return {**fields, "grammar": words, "pddl_domain": rules}


def text(**options) -> bytes:
    """Give the content of a game file."""
    return json.dumps(game(**options)).encode()
