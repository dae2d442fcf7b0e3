"""What an ALFWorld objective asks for, read from its words.

There are two wordings for each task type. An objective in other words is not guessed
at: it is an error that names it.
"""

import re
from typing import NamedTuple

from evoharness_jax.envs.alfworld.data import TASK_TYPES

PLACE, LOOK, CLEAN, HEAT, COOL, TWO = TASK_TYPES
TASK = re.compile(r"Your task is to:\s*(.*?)\.?\s*$", re.DOTALL)
STATES = {"clean": "clean", "hot": "hot", "cool": "cold"}  # as Belief words them
MADE_BY = {"clean": "clean", "heat": "hot", "cool": "cold"}
TYPE_OF = {"clean": CLEAN, "hot": HEAT, "cold": COOL, "": PLACE}

LOOK_AT = re.compile(
    r"(?:look at|examine) (?:the |an? )?(\w+) (?:under|with) the (\w+)"
)
PUT_TWO = re.compile(r"put two (\w+) (?:in|on) (\w+)")
FIND_TWO = re.compile(r"find two (\w+) and put them (?:in|on) (\w+)")
MAKE = re.compile(r"(clean|heat|cool) (?:some|an?) (\w+) and put it (?:in|on) (\w+)")
PUT_MADE = re.compile(r"put an? (clean|hot|cool) (\w+) (?:in|on) (\w+)")
PUT = re.compile(r"put (?:some|an?) (\w+) (?:in|on) (\w+)")


class Goal(NamedTuple):
    type: str  # one of data.TASK_TYPES
    thing: str  # type of the object
    place: str  # type of the receptacle; look: type of the lamp
    state: str  # "", "clean", "hot" or "cold": what the object must be
    count: int  # how many objects


def objective_of(text: str) -> str:
    """Return the objective in an opening feedback, without its final period."""
    found = TASK.search(text)
    return found.group(1) if found else ""


def goal(objective: str) -> Goal:
    """Read an objective."""
    words = " ".join(objective.lower().split()).rstrip(".")
    if found := LOOK_AT.fullmatch(words):
        return Goal(LOOK, found[1], found[2], "", 1)
    if found := PUT_TWO.fullmatch(words) or FIND_TWO.fullmatch(words):
        return Goal(TWO, found[1], found[2], "", 2)
    if found := MAKE.fullmatch(words):
        state = MADE_BY[found[1]]
        return Goal(TYPE_OF[state], found[2], found[3], state, 1)
    if found := PUT_MADE.fullmatch(words):
        state = STATES[found[1]]
        return Goal(TYPE_OF[state], found[2], found[3], state, 1)
    if found := PUT.fullmatch(words):
        return Goal(PLACE, found[1], found[2], "", 1)
    raise ValueError(f"not an objective of ALFWorld: {objective!r}")
