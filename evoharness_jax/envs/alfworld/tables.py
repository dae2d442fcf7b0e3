"""What a compiled game is made of: kinds of command, tables, state, words.

    command i = (kind, thing, place, tool)   allowed when its bits of the state have
                                             all of NEED[kind], none of FORBID[kind]

`commands` are the texts of all ground commands, sorted as the real engine sorts what
it admits, so a mask over them, read from left to right, is its list. Ids of things,
places and spots count the PDDL names in sorted order, which is the order in which the
real engine lists them.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from flax import struct

from evoharness_jax.envs.alfworld.grammar import TASK, Grammar

# Kinds of command, and what they are called in the domain.
LOOK, INVENTORY, HELP, GO, OPEN, CLOSE, EXAMINE_PLACE, EXAMINE_THING = range(8)
TAKE, MOVE, CLEAN, HEAT, COOL, USE, SLICE = range(8, 15)
KINDS = (
    "look",
    "inventory",
    "help",
    "gotolocation",
    "openobject",
    "closeobject",
    "examinereceptacle",
    "examineobject",
    "pickupobject",
    "putobject",
    "cleanobject",
    "heatobject",
    "coolobject",
    "toggleobject",
    "sliceobject",
)
NONSENSE = len(KINDS)  # kind of the commands that pad a table: never allowed
# Bits of a state, as one command sees it.
THERE = 1 << 0  # the agent stands at the place
OPENED = 1 << 1  # the place is open
REACHED = 1 << 2  # the agent stands there and can reach in
INSIDE = 1 << 3  # the thing is in the place
EMPTY = 1 << 4  # the hand is empty
HELD = 1 << 5  # the thing is in the hand
TOOL = 1 << 6  # the tool is in the hand
POWERED = 1 << 7  # the thing is in some place where the agent stands
NEAR = 1 << 8  # the thing counts as being where the agent stands
NEVER = 1 << 9  # no state has it
# By kind: the bits that must be set, and those that must not.
NEED = np.array(
    [0, 0, 0, 0, THERE, THERE | OPENED, THERE, HELD, REACHED | INSIDE | EMPTY]
    + [REACHED | HELD, *[THERE | HELD] * 3, POWERED, NEAR | TOOL, NEVER],
    np.int16,
)
FORBID = np.array([0, 0, 0, THERE, OPENED, *[0] * 11], np.int16)
MOST = np.iinfo(np.int8).max  # things or places in one game


@struct.dataclass
class Tables:
    """What never changes in a game. C commands, O things, R places."""

    kind: Any  # int8[C]
    thing: Any  # int8[C] id of the thing acted on, NONE: none
    place: Any  # int8[C] id of the place acted at, NONE: none
    tool: Any  # int8[C] id of the thing acted with, NONE: none
    spot: Any  # int8[R] where the agent stands to be at the place, NONE: nowhere
    openable: Any  # bool[R]
    goal_thing: Any  # bool[O] things that may fulfil the goal
    goal_place: Any  # bool[R] places where they have to be
    goal_count: Any  # int8[] how many in one place
    goal_flags: Any  # bool[5] flags they must have
    goal_look: Any  # bool[] the goal is to hold the thing where a lamp is on
    goal_lamp: Any  # bool[O] lamps that count for it


@struct.dataclass
class State:
    """One moment of a game. O things, R places, L spots.

    Relations that few rules read are packed, eight to a byte (`numpy.packbits`).
    """

    agent: Any  # int8[] spot
    held: Any  # int8[] thing in the hand, NONE: none
    opened: Any  # bool[R]
    inside: Any  # bool[O, R] the thing is in or on the place
    left: Any  # uint8[O, R/8] bits: taken from the place and not put back since
    near: Any  # uint8[O, L/8] bits: it counts as being at the spot
    flags: Any  # bool[O, 5] clean, hot, cool, sliced, toggled
    steps: Any  # int32[] commands given
    limit: Any  # int32[] commands allowed, 0: no limit


@dataclass(frozen=True, eq=False)
class Game:
    """A compiled game: words, tables and the state it starts in."""

    id: str  # hash of what it was compiled from
    task: str  # the sentence that the intro ends with
    task_type: str
    walkthrough: tuple[str, ...]  # a plan that comes with the file, may be empty
    commands: tuple[str, ...]  # [C] sorted
    names: dict[str, tuple[str, ...]]  # by type: object, receptacle, location, agent
    classes: tuple[str, ...]  # [O] "appletype", "": none
    intro: str  # what the first observation says
    grammar: Grammar
    static: dict[str, np.ndarray]  # facts that never change, for the grammar
    tables: Tables
    initial: State

    @property
    def objective(self) -> str:
        """The goal sentence alone, without its period: "put some book on desk"."""
        return self.task.removeprefix(TASK).rstrip().removesuffix(".")
