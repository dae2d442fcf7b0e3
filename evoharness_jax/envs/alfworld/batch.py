"""Many episodes at once: `jit(vmap(engine))` on the host's processor.

    batch, states, observations = start(games)
    states, observations = step(batch, states, commands)
    batch, states, observation = replace(batch, states, row, game)

Games of different homes are padded to common sizes; what pads is never admissible, in
no place, and fulfils no goal. Words are made per row, from numpy views of the arrays.
Everything stays on the CPU backend, so that a step never waits for an accelerator.
"""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from evoharness_jax.envs.alfworld import engine
from evoharness_jax.envs.alfworld.tables import NONSENSE, Game, State, Tables
from evoharness_jax.envs.domain import Observation
from evoharness_jax.types import NONE


class Sizes(NamedTuple):
    """Padded sizes that the games of a batch share."""

    commands: int
    things: int
    places: int
    spots: int


class Batch(NamedTuple):
    """B episodes that step as one call, each a game of its own."""

    games: tuple[Game, ...]  # [B]
    sizes: Sizes
    tables: Tables  # [B, ...] padded


def sizes_of(games: Sequence[Game]) -> Sizes:
    """Give the least sizes that hold all `games`, rounded up to few steps."""
    needed = np.max([_shape(game) for game in games], axis=0)
    return Sizes(
        *(int(-(-n // unit) * unit) for n, unit in zip(needed, (256, 8, 8, 8)))
    )


def start(
    games: Sequence[Game], limit: int = 0, sizes: Sizes | None = None
) -> tuple[Batch, State, list[Observation]]:
    """Start one episode per game: (batch, states [B, ...], observations [B]).

    `sizes` leave room for other games (`replace`); None: just what these need.
    """
    sizes = sizes or sizes_of(games)
    rows = [_padded(game, sizes, limit) for game in games]
    tables, states = jax.tree.map(lambda *leaves: np.stack(leaves), *rows)
    observations = [engine.reset(game, limit)[1] for game in games]
    device = jax.local_devices(backend="cpu")[0]
    tables, states = jax.device_put((tables, states), device)
    return Batch(tuple(games), sizes, tables), states, observations


def replace(
    batch: Batch, states: State, row: int, game: Game, limit: int = 0
) -> tuple[Batch, State, Observation]:
    """Put a new episode of `game` into one row; the other rows stay as they are.

    Raises ValueError where the game is larger than the batch's sizes.
    """
    new = _padded(game, batch.sizes, limit)
    tables, states = _write((batch.tables, states), new, np.int32(row))
    games = batch.games[:row] + (game,) + batch.games[row + 1 :]
    return Batch(games, batch.sizes, tables), states, engine.reset(game, limit)[1]


def step(
    batch: Batch, states: State, commands: Sequence[str | None]
) -> tuple[State, list[Observation | None]]:
    """Give one command to each episode, None to leave it as it is.

    Returns the states and an observation per row, None for a row left alone.
    """
    if len(commands) != len(batch.games):
        raise ValueError(f"{len(commands)} commands for {len(batch.games)} episodes")
    actions = [
        NONE if command is None else engine.find(game, command)
        for game, command in zip(batch.games, commands)
    ]
    acts = np.array([command is not None for command in commands])
    states, accepted, masks, won = _step_all(
        batch.tables, states, np.array(actions, np.int32), acts
    )
    accepted, masks, won = map(np.asarray, (accepted, masks, won))
    leaves = {f.name: np.asarray(getattr(states, f.name)) for f in fields(State)}
    observations: list[Observation | None] = []
    for row, game in enumerate(batch.games):
        if not acts[row]:
            observations.append(None)
            continue
        state = State(**{name: leaf[row] for name, leaf in leaves.items()})
        text = (
            engine.feedback(game, state, actions[row])
            if accepted[row]
            else engine.REFUSED
        )
        observations.append(
            engine.observe(
                game, state, text, masks[row], bool(won[row]), bool(accepted[row])
            )
        )
    return states, observations


@jax.jit
def _step_all(tables, states, actions, acts):
    def one(tables, state, action, acts):
        before = engine.allowed(jnp, tables, state, jnp.maximum(action, 0))
        after = engine.transition(jnp, tables, state, action)
        state = jax.tree.map(lambda new, old: jnp.where(acts, new, old), after, state)
        mask, won = (
            engine.admissible(jnp, tables, state),
            engine.is_won(jnp, tables, state),
        )
        return state, acts & (action >= 0) & before, mask, won

    return jax.vmap(one)(tables, states, actions, acts)


@jax.jit
def _write(rows, new, row):
    return jax.tree.map(lambda all_, one: all_.at[row].set(one), rows, new)


def _shape(game: Game) -> Sizes:
    things, places = game.initial.inside.shape
    return Sizes(len(game.commands), things, places, len(game.names["location"]))


# How far each axis of a leaf is padded, and with what.
_TABLE_AXES: dict[str, tuple[tuple[str, ...], Any]] = {
    "kind": (("commands",), NONSENSE),
    "thing": (("commands",), NONE),
    "place": (("commands",), NONE),
    "tool": (("commands",), NONE),
    "spot": (("places",), NONE),
    "openable": (("places",), False),
    "goal_thing": (("things",), False),
    "goal_place": (("places",), False),
    "goal_lamp": (("things",), False),
}
_STATE_AXES: dict[str, tuple[tuple[str, ...], Any]] = {
    "opened": (("places",), False),
    "inside": (("things", "places"), False),
    "left": (("things", "places"), 0),
    "near": (("things", "spots"), 0),
    "flags": (("things", ""), False),
}


def _padded(game: Game, sizes: Sizes, limit: int) -> tuple[Tables, State]:
    """Pad one game's tables and first state to `sizes`."""
    if any(have > room for have, room in zip(_shape(game), sizes)):
        raise ValueError(f"game larger than the batch: {_shape(game)} > {sizes}")

    def pad(value, axes, fill):
        wanted = [getattr(sizes, axis, 0) for axis in axes]
        if value.dtype == np.uint8:  # packed
            wanted[1] = -(-wanted[1] // 8)
        widths = [(0, max(0, n - size)) for n, size in zip(wanted, value.shape)]
        return np.pad(value, widths, constant_values=fill)

    def pad_all(part, axes):
        grown = {name: pad(getattr(part, name), *how) for name, how in axes.items()}
        return part.replace(**grown)

    state = game.initial.replace(limit=np.int32(limit))
    return pad_all(game.tables, _TABLE_AXES), pad_all(state, _STATE_AXES)
