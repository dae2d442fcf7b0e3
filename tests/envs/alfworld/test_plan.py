"""Plans: the way to a command, and the shortest way to win."""

import numpy as np
import pytest

import kitchen
from evoharness_jax.envs.alfworld import engine, plan
from evoharness_jax.envs.alfworld.game import compile_game, load_set
from evoharness_jax.envs.alfworld.tables import TAKE
from evoharness_jax.types import NONE


def follow(game, wanted, *before):
    """Give the commands on the way to `wanted`, itself included."""
    state, _ = engine.reset(game)
    for command in before:
        state, _ = engine.step(game, state, command)
    action, said = engine.find(game, wanted), []
    for _ in range(20):
        step = plan.toward(game, state, action)
        if step == NONE:
            return said + [None]
        said.append(game.commands[step])
        state = engine.transition(np, game.tables, state, np.int32(step))
        if step == action:
            return said
    raise AssertionError(said)


def test_toward():
    game = compile_game(kitchen.game())
    assert follow(game, "look") == ["look"]
    assert follow(game, "move egg 1 to microwave 1") == [
        "go to fridge 1",
        "open fridge 1",
        "take egg 1 from fridge 1",
        "go to microwave 1",
        "open microwave 1",
        "move egg 1 to microwave 1",
    ]
    assert follow(game, "slice egg 1 with knife 1") == [
        "go to countertop 1",
        "take knife 1 from countertop 1",
        "go to fridge 1",
        "slice egg 1 with knife 1",
    ]
    assert follow(
        game,
        "take egg 1 from fridge 1",
        "go to countertop 1",
        "take knife 1 from countertop 1",
    ) == [
        "move knife 1 to countertop 1",  # the hand has to be empty
        "go to fridge 1",
        "open fridge 1",
        "take egg 1 from fridge 1",
    ]
    assert follow(game, "take egg 1 from countertop 1") == [None]  # it is not there
    assert plan.number(game, TAKE, 0, 4) != NONE
    assert plan.number(game, TAKE, 3, 4) == NONE  # nobody takes the lamp


def test_solve():
    game = compile_game(kitchen.game())
    assert plan.solve(game) == (
        "go to countertop 1",
        "take apple 1 from countertop 1",
        "go to microwave 1",
        "heat apple 1 with microwave 1",
        "go to countertop 1",
        "move apple 1 to countertop 1",
    )


@pytest.mark.parametrize(
    "thing, place",
    [
        ("AppleType", "CounterTopType"),
        ("AppleType", "DeskType"),
        ("MugType", "DeskType"),
    ],
)
def test_no_plan_where_it_is_done_or_cannot_be(thing, place):
    goal = kitchen.PLACE.format(thing=thing, place=place, more="")
    assert plan.solve(compile_game(kitchen.game(goal))) == ()


@pytest.mark.alfworld
def test_every_game_is_solved_about_as_fast_as_its_own_plan(alfworld_data):
    paths = sorted(map(str, alfworld_data.rglob("game.tw-pddl")))[:60]
    for game in load_set(paths)[0]:
        script = plan.solve(game)
        assert script
        if game.walkthrough:
            assert len(script) <= len(game.walkthrough) + 3
