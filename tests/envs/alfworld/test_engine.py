"""The engine: rules, refusals, goals, and that arrays, batches and TextWorld agree."""

import random

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies

import kitchen
from evoharness_jax.envs.alfworld import engine, plan
from evoharness_jax.envs.alfworld.game import compile_game, load
from evoharness_jax.types import NONE

MICROWAVE_EGG = kitchen.PLACE.format(
    thing="EggType", place="MicrowaveType", more="(heatable ?o)"
)
GOALS = (
    kitchen.HOT_APPLE,
    MICROWAVE_EGG,
    kitchen.TWO.format(thing="BowlType", place="DeskType"),
    kitchen.LOOK.format(thing="AppleType"),
)


@pytest.fixture(scope="module")
def game():
    return compile_game(kitchen.game())


def run(game, *commands):
    state, observation = engine.reset(game)
    for command in commands:
        state, observation = engine.step(game, state, command)
        assert observation.valid, command
    return state, observation


def assert_same(a, b):
    jax.tree.map(np.testing.assert_array_equal, a, b)


def test_reset(game):
    state, observation = engine.reset(game)
    assert observation.commands == (
        "go to countertop 1",
        "go to desk 1",
        "go to fridge 1",
        "go to microwave 1",
        "go to sinkbasin 1",
        "help",
        "inventory",
        "look",
    )
    assert observation.objective == "heat some apple"
    assert observation[3:] == (False, False, 0.0, True, {})
    assert state.steps == 0


def test_what_can_be_done_at_the_countertop(game):
    state, observation = run(game, "go to countertop 1")
    assert observation.commands == (
        "examine countertop 1",
        "examine sinkbasin 1",
        "go to desk 1",
        "go to fridge 1",
        "go to microwave 1",
        "help",
        "inventory",
        "look",
        "take apple 1 from countertop 1",
        "take bowl 2 from countertop 1",
        "take knife 1 from countertop 1",
    )
    _, observation = engine.step(game, state, "take apple 1 from countertop 1")
    assert observation.commands == (
        "clean apple 1 with sinkbasin 1",
        "examine apple 1",
        "examine countertop 1",
        "examine sinkbasin 1",
        "go to desk 1",
        "go to fridge 1",
        "go to microwave 1",
        "help",
        "inventory",
        "look",
        "move apple 1 to countertop 1",
        "move apple 1 to sinkbasin 1",
    )


def test_heat_and_cold_undo_each_other(game):
    fetch = ("go to countertop 1", "take apple 1 from countertop 1")
    heat = ("go to microwave 1", "heat apple 1 with microwave 1")
    cool = ("go to fridge 1", "cool apple 1 with fridge 1")
    state, _ = run(game, *fetch, *heat)
    assert state.flags[0].tolist() == [False, True, False, False, False]
    state, _ = run(game, *fetch, *heat, *cool)
    assert state.flags[0].tolist() == [False, False, True, False, False]
    state, _ = run(game, *fetch, *cool, *heat)
    assert state.flags[0].tolist() == [False, True, False, False, False]


REFUSED = (
    "",
    "   ",
    "Look",
    "go to the desk 1",
    "go to desk 2",
    "go to  desk 1",
    "take apple 1 from countertop 1",  # not there
    "open desk 1",
    "close fridge 1",
    "\x00\x1b[31mlook",
    "\u6253\u5f00 fridge 1",
    "x" * 10_000,
)


@pytest.mark.parametrize("command", REFUSED)
def test_refused(game, command):
    before, first = engine.reset(game)
    state, observation = engine.step(game, before, command)
    assert observation.text == "Nothing happens."
    assert not observation.valid
    assert observation.commands == first.commands
    assert_same(state.replace(steps=before.steps), before)
    assert state.steps == 1


@hypothesis.given(strategies.text())
def test_no_words_break_it(game, command):
    state, observation = engine.reset(game)
    accepted = command.strip() in observation.commands
    _, observation = engine.step(game, state, command)
    assert observation.valid == accepted
    assert (observation.text == "Nothing happens.") == (not accepted)


def test_white_space_around_a_command_does_not_matter(game):
    state, _ = engine.reset(game)
    assert engine.step(game, state, " \t look\x1f\n")[1].valid


def test_the_limit_ends_an_episode(game):
    state, observation = engine.reset(game, limit=2)
    state, observation = engine.step(game, state, "look")
    assert not observation.done
    state, observation = engine.step(game, state, "nonsense")
    assert observation.done and not observation.won and observation.score == 0.0


@pytest.mark.parametrize("goal", GOALS)
def test_plans_win_with_their_last_command(goal):
    game = compile_game(kitchen.game(goal))
    script = plan.solve(game)
    state, _ = engine.reset(game)
    for command in script:
        state, observation = engine.step(game, state, command)
        assert observation.won == (command == script[-1])
    assert observation.done and observation.score == 1.0


def test_winning_can_be_undone():
    game = compile_game(kitchen.game(MICROWAVE_EGG))
    script = plan.solve(game)
    state, observation = run(game, *script)
    assert observation.won
    state, observation = engine.step(game, state, "take egg 1 from microwave 1")
    assert observation.valid and not observation.won and not observation.done


def test_a_lamp_counts_only_where_the_agent_stands():
    game = compile_game(kitchen.game(kitchen.LOOK.format(thing="AppleType")))
    lit = ("go to desk 1", "use desklamp 1")
    fetch = ("go to countertop 1", "take apple 1 from countertop 1")
    assert not run(game, *lit, *fetch)[1].won
    assert run(game, *lit, *fetch, "go to desk 1")[1].won


def actions(game, rng, count):
    """Give numbers of commands, most of them admissible, as (state, action)."""
    state, _ = engine.reset(game)
    for _ in range(count):
        mask = engine.admissible(np, game.tables, state)
        action = rng.choice(np.flatnonzero(mask).tolist())
        if rng.random() < 0.2:
            action = rng.randrange(-1, len(game.commands))
        yield state, np.int32(action)
        state = engine.transition(np, game.tables, state, np.int32(action))


@pytest.mark.parametrize("goal", GOALS)
def test_numpy_and_jax_agree(goal):
    game = compile_game(kitchen.game(goal))

    @jax.jit
    def both(tables, state, action):
        state = engine.transition(jnp, tables, state, action)
        mask = engine.admissible(jnp, tables, state)
        return state, mask, engine.is_won(jnp, tables, state)

    for state, action in actions(game, random.Random(goal), 60):
        after = engine.transition(np, game.tables, state, action)
        mask = engine.admissible(np, game.tables, after)
        won = engine.is_won(np, game.tables, after)
        found = both(game.tables, state, action)
        assert_same(found, (after, mask, won))
        dtypes = jax.tree.map(lambda a, b: a.dtype == b.dtype, found[0], after)
        assert all(jax.tree.leaves(dtypes))


def test_the_absent_command_is_refused_in_arrays(game):
    state = engine.transition(np, game.tables, game.initial, np.int32(NONE))
    assert_same(state.replace(steps=np.int32(0)), game.initial)


@pytest.mark.alfworld
def test_parity_with_textworld(alfworld_data):
    from evoharness_jax.bench import parity

    releases = [
        sorted(map(str, f.rglob("game.tw-pddl"))) for f in alfworld_data.iterdir()
    ]
    env, steps = parity.real_engine(), 0
    for paths in releases:
        chosen, _ = parity.choose(paths, 4, seed=1)
        for path in chosen:
            result = parity.compare(env, path, load(path), walks=1, seed=0)
            assert result["differences"] == []
            steps += result["steps"]
    assert steps > 100
