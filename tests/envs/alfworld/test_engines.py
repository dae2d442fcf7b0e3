"""Choosing an engine, and two of them side by side."""

import pytest

from evoharness_jax.envs.alfworld import data, engines
from evoharness_jax.envs.domain import Task


def play(engine, task, actions):
    """Give actions; return all that was seen, closing the episode at the end."""
    state, seen = engine.reset(task)
    told = [seen]
    for action in actions:
        state, seen = engine.step(state, action)
        told.append(seen)
    engine.close(state)
    return told


def test_an_unknown_engine_is_named():
    with pytest.raises(ValueError, match="'fast', not one of native, textworld, both"):
        engines.make("fast", 1, 1.0, None)


def test_a_broken_game_ends_its_own_episode(tmp_path):
    file = tmp_path / "game.tw-pddl"
    file.write_text("{")
    engine = engines.native(None)
    seen, after = play(engine, Task("t", "", "train", str(file)), ["look"])
    assert seen.done and not seen.won
    assert str(file) in seen.info["error"]
    assert after.done and after.info["error"]


@pytest.mark.alfworld
def test_native_takes_any_case_and_refuses_the_rest(alfworld_data, tmp_path):
    task = data.games("train", str(alfworld_data))[0]
    engine = engines.native(str(tmp_path))
    seen, looked, refused = play(engine, task, ["  LOOK ", "fly to the moon"])
    assert looked.valid and looked.text.startswith("You are in the middle of a room.")
    assert not refused.valid and refused.text == "Nothing happens."
    assert refused.commands == looked.commands == seen.commands
    assert list((tmp_path / "games").glob("*.game"))


@pytest.mark.alfworld
def test_both_engines_say_the_same_of_a_won_game(alfworld_data, tmp_path):
    task = data.games("train", str(alfworld_data))[5]
    engine = engines.make("both", 1, 120.0, str(tmp_path))
    walkthrough = engines.game_.load(task.spec).walkthrough
    told = play(engine, task, ["inventory", "nonsense", *walkthrough])
    assert all("error" not in seen.info for seen in told)
    assert told[-1].won and not told[-2].won


@pytest.mark.alfworld
def test_a_difference_ends_the_episode_and_says_where(alfworld_data):
    task = data.games("train", str(alfworld_data))[0]
    ours = engines.native(None)

    def altered(state, action):
        state, seen = ours.step(state, action)
        return state, seen._replace(text=seen.text.replace("room", "hall"))

    engine = engines.both(ours, ours._replace(step=altered))
    seen, looked = play(engine, task, ["look"])
    assert "error" not in seen.info
    assert looked.done and not looked.won
    assert "the engines differ after 'look' in text" in looked.info["error"]
