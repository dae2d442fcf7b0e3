"""Batches: each row is its episode, and padding changes nothing."""

import random

import jax
import numpy as np
import pytest

import kitchen
from evoharness_jax.envs.alfworld import batch as batches
from evoharness_jax.envs.alfworld import engine
from evoharness_jax.envs.alfworld.game import compile_game

GOALS = (
    kitchen.HOT_APPLE,
    kitchen.PLACE.format(thing="EggType", place="MicrowaveType", more="(heatable ?o)"),
    kitchen.TWO.format(thing="BowlType", place="DeskType"),
    kitchen.LOOK.format(thing="AppleType"),
)


@pytest.fixture(scope="module")
def game():
    return compile_game(kitchen.game())


def test_a_batch_is_its_episodes():
    games = [compile_game(kitchen.game(goal)) for goal in GOALS]
    games.append(compile_game(kitchen.older()))
    rng = random.Random(0)
    batch, states, seen = batches.start(games, limit=50)
    alone = [engine.reset(game, 50) for game in games]
    for _ in range(40):
        assert seen == [observation for _, observation in alone]
        commands = [rng.choice((*o.commands, "nonsense", None)) for o in seen]
        states, found = batches.step(batch, states, commands)
        for row, (game, command) in enumerate(zip(games, commands)):
            if command is None:
                assert found[row] is None
            else:
                alone[row] = engine.step(game, alone[row][0], command)
                seen[row] = found[row]


def test_vmap_of_one_is_one_and_padding_changes_nothing(game):
    sizes = batches.Sizes(commands=300, things=21, places=17, spots=33)
    rng = random.Random(1)
    for padded in (batches.sizes_of([game]), sizes):
        batch, states, _ = batches.start([game], sizes=padded)
        state, _ = engine.reset(game)
        for _ in range(30):
            mask = np.asarray(engine.admissible(np, game.tables, state))
            command = game.commands[rng.choice(np.flatnonzero(mask).tolist())]
            state, observation = engine.step(game, state, command)
            states, found = batches.step(batch, states, [command])
            assert found == [observation]


def test_an_episode_is_replaced_and_the_others_stay():
    first, second = (compile_game(kitchen.game(goal)) for goal in GOALS[:2])
    batch, states, _ = batches.start([first, first])
    states, _ = batches.step(batch, states, ["go to desk 1", "go to desk 1"])
    batch, states, observation = batches.replace(batch, states, 0, second)
    assert observation == engine.reset(second)[1]
    states, seen = batches.step(batch, states, ["look", "look"])
    assert seen[0].text.startswith("You are in the middle of a room.")
    assert seen[1].text.startswith("You are facing the desk 1.")
    small = batches.sizes_of([first])._replace(things=3)
    with pytest.raises(ValueError, match="game larger than the batch"):
        batches.start([first], sizes=small)
    with pytest.raises(ValueError, match="1 commands for 2 episodes"):
        batches.step(batch, states, ["look"])


def test_an_episode_takes_little_memory(game):
    # the largest training game: 2,978 commands, 70 things, 54 places, 41 spots
    sizes = batches.Sizes(commands=3072, things=72, places=56, spots=48)
    sized = [batches.start([game] * n, sizes=sizes)[:2] for n in (1, 3)]
    one, three = (
        sum(leaf.nbytes for leaf in jax.tree.leaves((batch.tables, states)))
        for batch, states in sized
    )
    assert (three - one) / 2 < 20_000
