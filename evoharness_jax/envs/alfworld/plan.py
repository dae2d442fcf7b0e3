"""Plans made with full knowledge of a compiled game: the next step, and a way to win.

`toward` gives the next command on the way to some command that is not admissible yet:
walk there, open what is closed, empty the hand, fetch what is missing. `solve` tries
every way to reach the goal that such steps can build, plays each in the engine, and
keeps the shortest that wins. What it returns has been played to the win.
"""

from collections.abc import Iterator
from itertools import combinations, product

import numpy as np

from evoharness_jax.envs.alfworld import engine
from evoharness_jax.envs.alfworld.tables import (
    CLEAN,
    COOL,
    GO,
    HEAT,
    MOVE,
    OPEN,
    SLICE,
    TAKE,
    USE,
    Game,
    State,
)
from evoharness_jax.types import NONE

_FLAG_KINDS = (CLEAN, HEAT, COOL, SLICE)  # in the order of a state's flags
_MOST = 400  # ways tried before a game is given up


def number(game: Game, kind: int, thing=NONE, place=NONE, tool=NONE) -> int:
    """Give the command with these parts, NONE where the game has none such."""
    t = game.tables
    same = (t.kind == kind) & (t.thing == thing) & (t.place == place) & (t.tool == tool)
    found = np.flatnonzero(same)
    return int(found[0]) if found.size else NONE


def toward(game: Game, state: State, action: int) -> int:
    """Give the next command on the way to `action`, itself once it is admissible.

    NONE where there is no way: a thing that is nowhere, or cannot be put down.
    """
    t = game.tables
    if engine.admissible(np, t, state)[action]:
        return action
    kind, thing, place, tool = (
        int(column[action]) for column in (t.kind, t.thing, t.place, t.tool)
    )
    if kind == SLICE:
        if state.held != tool:
            return _fetch(game, state, tool)
        spots = np.flatnonzero(np.unpackbits(state.near[thing]))
        there = np.flatnonzero(np.isin(t.spot, spots))
        return number(game, GO, place=int(there[0])) if there.size else NONE
    if kind == USE:
        there = np.flatnonzero(state.inside[thing])
        return number(game, GO, place=int(there[0])) if there.size else NONE
    if kind == TAKE:
        if not state.inside[thing, place]:
            return NONE
        if state.held != NONE:
            return _put_down(game, state)
    elif thing != NONE and state.held != thing:
        return _fetch(game, state, thing)
    return _reach(game, state, place)


def solve(game: Game) -> tuple[str, ...]:
    """Give a shortest plan of the kind above that wins, () where none does.

    A game whose goal holds at the start has no plan, as for the real planner.
    """
    if engine.is_won(np, game.tables, game.initial):
        return ()
    best: tuple[str, ...] = ()
    for tried, errands in enumerate(_ways(game)):
        if tried == _MOST:
            break
        plan = _play(game, errands, len(best) - 1 if best else 60)
        if plan and (not best or len(plan) < len(best)):
            best = plan
    return best


def _play(game: Game, errands: list[int], most: int) -> tuple[str, ...]:
    state, plan = game.initial, []
    for errand in errands:
        done = False
        while not done:
            action = toward(game, state, errand)
            if action == NONE or len(plan) >= most:
                return ()
            state = engine.transition(np, game.tables, state, np.int32(action))
            plan.append(game.commands[action])
            if engine.is_won(np, game.tables, state):
                return tuple(plan)
            done = action == errand
    return ()


def _ways(game: Game) -> Iterator[list[int]]:
    """Give lists of commands that reach the goal when each is worked towards."""
    t, inside = game.tables, game.initial.inside
    things = [int(i) for i in np.flatnonzero(t.goal_thing)]
    if t.goal_look:
        lamps = [number(game, USE, int(i)) for i in np.flatnonzero(t.goal_lamp)]
        for thing, lamp in product(things, lamps):
            for place in np.flatnonzero(inside[thing]):
                take = number(game, TAKE, thing, int(place))
                if NONE not in (take, lamp):
                    yield [take, lamp]
        return
    flags = [k for k, wanted in zip(_FLAG_KINDS, t.goal_flags) if wanted]
    places = [int(i) for i in np.flatnonzero(t.goal_place)]
    for place, chosen in product(places, combinations(things, int(t.goal_count))):
        errands = []
        for thing in chosen:
            if inside[thing, place] and not flags:
                continue
            errands += [_first(game, kind, thing) for kind in flags]
            errands.append(number(game, MOVE, thing, place))
        if errands and NONE not in errands:
            yield errands


def _first(game: Game, kind: int, thing: int) -> int:
    t = game.tables
    found = np.flatnonzero((t.kind == kind) & (t.thing == thing))
    return int(found[0]) if found.size else NONE


def _fetch(game: Game, state: State, thing: int) -> int:
    """Give the next step to have `thing` in the hand."""
    for place in np.flatnonzero(state.inside[thing]):
        take = number(game, TAKE, thing, int(place))
        if take != NONE:
            return toward(game, state, take)
    return NONE


def _put_down(game: Game, state: State) -> int:
    """Give the next step to empty the hand, at the nearest place that takes it."""
    t = game.tables
    moves = np.flatnonzero((t.kind == MOVE) & (t.thing == state.held))
    if not moves.size:
        return NONE
    far = (t.spot[t.place[moves]] != state.agent).astype(int) * 2
    shut = t.openable[t.place[moves]] & ~state.opened[t.place[moves]]
    return toward(game, state, int(moves[np.argmin(far + shut)]))


def _reach(game: Game, state: State, place: int) -> int:
    """Give the next step to stand at `place` with its content within reach."""
    if place == NONE or game.tables.spot[place] == NONE:
        return NONE
    if game.tables.spot[place] != state.agent:
        return number(game, GO, place=place)
    if game.tables.openable[place] and not state.opened[place]:
        return number(game, OPEN, place=place)
    return NONE
