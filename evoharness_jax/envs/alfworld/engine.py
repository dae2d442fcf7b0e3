"""The engine: a household steps by a pure function of arrays.

    admissible(xp, tables, state)          -> mask over the game's commands
    transition(xp, tables, state, action)  -> state after command number `action`
    is_won(xp, tables, state)              -> whether the goal holds

These three are written once over `xp`, for one episode: numpy plays a single game,
jax.numpy under `jit(vmap(.))` a batch of them (`batch`). `reset` and `step` put words
around them. An episode that has ended still takes commands, as the real engine does.

Invariant: the same text, commands, score and end as TextWorld's PDDL engine, step for
step (`bench.parity` compares them).
"""

from bisect import bisect_left

import numpy as np

from evoharness_jax.envs.alfworld import grammar, text
from evoharness_jax.envs.alfworld.tables import (
    CLEAN,
    CLOSE,
    COOL,
    EMPTY,
    FORBID,
    GO,
    HEAT,
    HELD,
    INSIDE,
    KINDS,
    MOVE,
    NEAR,
    NEED,
    OPEN,
    OPENED,
    POWERED,
    REACHED,
    SLICE,
    TAKE,
    THERE,
    TOOL,
    USE,
    Game,
    State,
    Tables,
)
from evoharness_jax.envs.domain import Observation
from evoharness_jax.types import NONE

REFUSED = "Nothing happens."

# What each kind of command does to a thing's flags (clean, hot, cool, sliced, toggled).
_SETS = np.zeros((len(KINDS) + 1, 5), bool)
_CLEARS = np.zeros((len(KINDS) + 1, 5), bool)
_SETS[[CLEAN, HEAT, COOL, SLICE, USE], [0, 1, 2, 3, 4]] = True
_CLEARS[[HEAT, COOL], [2, 1]] = True


def admissible(xp, tables: Tables, state: State):
    """Give bool[C]: which commands the game accepts in this state."""
    return allowed(xp, tables, state, slice(None))


def transition(xp, tables: Tables, state: State, action) -> State:
    """Give the state after command `action`, an int[] index, NONE for no command.

    A command that is not admissible changes nothing but the count of steps.
    """
    row = xp.maximum(action, 0)
    done = (action >= 0) & allowed(xp, tables, state, row)
    kind, thing, place = tables.kind[row], tables.thing[row], tables.place[row]
    takes, moves = done & (kind == TAKE), done & (kind == MOVE)
    the_thing = (xp.arange(state.inside.shape[0]) == thing)[:, None]
    the_place = xp.arange(state.inside.shape[1]) == place
    pair = the_thing & the_place
    pair_bits = xp.where(the_thing, xp.packbits(the_place), np.uint8(0))
    spot_bits = xp.where(the_thing, _spot_bits(xp, state), np.uint8(0))
    sets, clears = xp.asarray(_SETS)[kind] & done, xp.asarray(_CLEARS)[kind] & done
    return state.replace(
        agent=xp.where(done & (kind == GO), tables.spot[place], state.agent),
        held=xp.where(takes, thing, xp.where(moves, np.int8(NONE), state.held)),
        opened=(state.opened | (the_place & (done & (kind == OPEN))))
        & ~(the_place & (done & (kind == CLOSE))),
        inside=(state.inside | (pair & moves)) & ~(pair & takes),
        left=(state.left | (pair_bits * takes)) & ~(pair_bits * moves),
        near=(state.near | (spot_bits * moves)) & ~(spot_bits * takes),
        flags=(state.flags | (the_thing & sets)) & ~(the_thing & clears),
        steps=state.steps + np.int32(1),
    )


def is_won(xp, tables: Tables, state: State):
    """Give bool[]: whether the goal holds."""
    fit = tables.goal_thing & (state.flags | ~tables.goal_flags).all(-1)
    count = (state.inside & fit[:, None]).sum(0)
    placed = (tables.goal_place & (count >= tables.goal_count)).any()
    toggled = state.flags[:, grammar.FLAGS.index("istoggled")]
    lit = (tables.goal_lamp & toggled & _beside(tables, state)).any()
    holds = (fit & (xp.arange(fit.shape[0]) == state.held)).any()
    return xp.where(tables.goal_look, lit & holds, placed)


def _beside(tables, state):
    """Give bool[O]: things that are in some place where the agent stands."""
    return (state.inside & (tables.spot == state.agent)).any(-1)


def _spot_bits(xp, state):
    """Give uint8[L/8]: the agent's spot as a bit."""
    return xp.packbits(xp.arange(state.near.shape[1] * 8) == state.agent)


def allowed(xp, tables: Tables, state: State, row):
    """Tell for the commands `row`, an index or a slice, whether they are accepted."""
    kind, tool = tables.kind[row], tables.tool[row]
    thing, place = tables.thing[row], tables.place[row]
    there = tables.spot == state.agent
    reached = there & (state.opened | ~tables.openable)
    held = xp.arange(state.inside.shape[0]) == state.held
    near = (state.near & _spot_bits(xp, state)).any(-1)

    def bit(condition, value):
        return condition * np.int16(value)

    of_place = bit(there, THERE) | bit(state.opened, OPENED) | bit(reached, REACHED)
    of_thing = bit(held, HELD) | bit(near, NEAR)
    of_thing |= bit(_beside(tables, state), POWERED)
    bits = of_place[place] | of_thing[thing] | bit(state.inside[thing, place], INSIDE)
    bits |= bit(state.held < 0, EMPTY) | bit(state.held == tool, TOOL)
    need, forbid = xp.asarray(NEED)[kind], xp.asarray(FORBID)[kind]
    return ((bits & need) == need) & ((bits & forbid) == 0)


def reset(game: Game, limit: int = 0) -> tuple[State, Observation]:
    """Start an episode; `limit` commands end it, 0: nothing but the goal does."""
    state = game.initial.replace(limit=np.int32(limit))
    mask = admissible(np, game.tables, state)
    won = bool(is_won(np, game.tables, state))
    return state, observe(game, state, game.intro, mask, won, True)


def step(game: Game, state: State, command: str) -> tuple[State, Observation]:
    """Give one command. What is not admissible is refused, and costs a step."""
    action = find(game, command)
    mask = admissible(np, game.tables, state)
    accepted = action != NONE and bool(mask[action])
    state = transition(np, game.tables, state, np.int32(action))
    mask = admissible(np, game.tables, state)
    won = bool(is_won(np, game.tables, state))
    said = feedback(game, state, action) if accepted else REFUSED
    return state, observe(game, state, said, mask, won, accepted)


def find(game: Game, command: str) -> int:
    """Give the number of a command of this game, NONE where it has none such.

    As in the real engine the match is exact, but for white space around it.
    """
    command = command.strip()
    place = bisect_left(game.commands, command)
    found = place < len(game.commands) and game.commands[place] == command
    return place if found else NONE


def feedback(game: Game, state: State, action: int) -> str:
    """Say what an accepted command did; `state` is the state after it."""
    tables = game.tables
    thing, place = int(tables.thing[action]), int(tables.place[action])
    bound = {"a": 0, "l": int(state.agent), "lend": int(state.agent)}
    bound |= {"o": thing, "co": thing} if thing >= 0 else {}
    bound |= {"r": place} if place >= 0 else {}
    bound |= {"ko": int(tables.tool[action])} if tables.tool[action] >= 0 else {}
    name = KINDS[int(tables.kind[action])]
    return text.say(game, state, game.grammar.feedback[name], bound)


def observe(game: Game, state: State, text, mask, won, valid) -> Observation:
    """Put together what an episode shows after a command."""
    commands = game.commands
    limit = int(state.limit)
    return Observation(
        text=text,
        commands=tuple([commands[i] for i in mask.nonzero()[0].tolist()]),
        objective=game.objective,
        done=won or 0 < limit <= int(state.steps),
        won=won,
        score=float(won),
        valid=valid,
        info={},
    )
