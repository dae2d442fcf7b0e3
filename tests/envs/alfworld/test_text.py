"""What the engine says, word for word. The sentences were checked in TextWorld."""

import json
import re

import pytest

import kitchen
from evoharness_jax.bench.parity import real_engine
from evoharness_jax.envs.alfworld import engine, grammar, text
from evoharness_jax.envs.alfworld.game import compile_game

ROOM = (
    "-= Welcome to TextWorld, ALFRED! =-\n\nYou are in the middle of a room. Looking "
    "quickly around you, you see a countertop 1, a desk 1, a fridge 1, a microwave 1, "
    "and a sinkbasin 1.\n\nYour task is to: heat some apple."
)
# (command, what is said): one episode, each line after the ones before it
SCRIPT = """
look | You are in the middle of a room. Looking quickly around you, you see nothing.
inventory | You are not carrying anything.
examine apple 1 | Nothing happens.
go to countertop 1 | You arrive at countertop 1. On the countertop 1, you see a \
apple 1, a bowl 2, and a knife 1.
go to sinkbasin 1 | Nothing happens.
examine sinkbasin 1 | On the sinkbasin 1, you see nothing.
look | You are facing the countertop 1, and sinkbasin 1. Next to it, you see nothing.
examine apple 1 | Nothing happens.
take apple 1 from countertop 1 | You pick up the apple 1 from the countertop 1.
inventory | You are carrying: a apple 1.
examine apple 1 | There's nothing special about apple 1.
move apple 1 to sinkbasin 1 | You move the apple 1 to the sinkbasin 1.
look | You are facing the countertop 1, and sinkbasin 1. Next to it, you see a apple 1.
take apple 1 from sinkbasin 1 | You pick up the apple 1 from the sinkbasin 1.
look | You are facing the countertop 1, and sinkbasin 1. Next to it, you see nothing.
clean apple 1 with sinkbasin 1 | You clean the apple 1 using the sinkbasin 1.
examine apple 1 | This is a clean apple 1.
go to microwave 1 | You arrive at microwave 1. The microwave 1 is closed.
heat apple 1 with microwave 1 | You heat the apple 1 using the microwave 1.
examine apple 1 | This is a hot and clean apple 1.
open microwave 1 | You open the microwave 1. The microwave 1 is open. In it, you see \
nothing.
move apple 1 to microwave 1 | You move the apple 1 to the microwave 1.
examine microwave 1 | The microwave 1 is open. In it, you see a apple 1.
close microwave 1 | You close the microwave 1.
go to fridge 1 | You arrive at fridge 1. The fridge 1 is closed.
open fridge 1 | You open the fridge 1. The fridge 1 is open. In it, you see a bowl 1, \
and a egg 1.
take egg 1 from fridge 1 | You pick up the egg 1 from the fridge 1.
examine egg 1 | This is a cold egg 1.
move egg 1 to fridge 1 | You move the egg 1 to the fridge 1.
take bowl 1 from fridge 1 | You pick up the bowl 1 from the fridge 1.
examine bowl 1 | This is a normal bowl 1. In it, you see nothing.
clean bowl 1 with sinkbasin 1 | Nothing happens.
go to desk 1 | You arrive at desk 1. On the desk 1, you see a desklamp 1.
use desklamp 1 | You turn on the desklamp 1.
use desklamp 1 | You turn on the desklamp 1.
examine desklamp 1 | Nothing happens.
move bowl 1 to desk 1 | You move the bowl 1 to the desk 1.
go to countertop 1 | You arrive at countertop 1. On the countertop 1, you see a bowl \
2, and a knife 1.
take knife 1 from countertop 1 | You pick up the knife 1 from the countertop 1.
go to microwave 1 | You arrive at microwave 1. The microwave 1 is closed.
slice apple 1 with knife 1 | You sliced the apple 1 with the knife 1.
go to countertop 1 | You arrive at countertop 1. On the countertop 1, you see a bowl 2.
move knife 1 to countertop 1 | You move the knife 1 to the countertop 1.
go to microwave 1 | You arrive at microwave 1. The microwave 1 is closed.
open microwave 1 | You open the microwave 1. The microwave 1 is open. In it, you see a \
apple 1.
take apple 1 from microwave 1 | You pick up the apple 1 from the microwave 1.
examine apple 1 | This is a hot and clean sliced apple 1.
go to fridge 1 | You arrive at fridge 1. The fridge 1 is open. In it, you see a egg 1.
cool apple 1 with fridge 1 | You cool the apple 1 using the fridge 1.
examine apple 1 | This is a cool and clean sliced apple 1.
"""


def play(game, script):
    state, observation = engine.reset(game)
    for line in script.strip().split("\n"):
        command, _, said = line.partition(" | ")
        state, observation = engine.step(game, state, command)
        yield command, said, observation


def test_an_episode_word_for_word():
    game = compile_game(kitchen.game())
    assert engine.reset(game)[1].text == ROOM
    for command, said, observation in play(game, SCRIPT):
        assert observation.text == said, command
        assert observation.valid == (said != "Nothing happens.")


def test_textworld_says_the_same(tmp_path):
    path, env = tmp_path / "game.tw-pddl", real_engine()
    for fields in (kitchen.game(), kitchen.older()):
        path.write_text(json.dumps(fields))
        env.load(str(path))
        real, first = env.reset(), engine.reset(compile_game(fields))[1]
        assert (first.text, list(first.commands)) == _said(real)
        script = SCRIPT
        if "in/on" in fields["grammar"]:
            script = re.sub(r"^move (.*) to ", r"put \1 in/on ", SCRIPT, flags=re.M)
        for command, _, ours in play(compile_game(fields), script):
            real, score, done = env.step(command)
            assert (ours.text, list(ours.commands)) == _said(real), command
            assert (ours.won, ours.score, ours.done) == (real["won"], score, done)


def _said(real):
    return real.feedback, real["admissible_commands"]


def test_help():
    game = compile_game(kitchen.game())
    said = engine.step(game, engine.reset(game)[0], "help")[1].text
    lines = said.split("\n")
    assert lines[0] == "Available commands:"
    assert lines[1] == (
        "  look:                             look around your current location"
    )
    assert lines[7] == (
        "  move (object) to (receptacle):  place an object in or on a receptacle"
    )
    assert len(lines) == 15 and lines[-1] == ""


def test_the_older_release_names_the_spot():
    game = compile_game(kitchen.older())
    script = """
help | Nothing happens.
go to countertop 1 | You arrive at loc 5. On the countertop 1, you see a apple 1, a \
bowl 2, and a knife 1.
take apple 1 from countertop 1 | You pick up the apple 1 from the countertop 1.
move apple 1 to sinkbasin 1 | Nothing happens.
put apple 1 in/on sinkbasin 1 | You put the apple 1 in/on the sinkbasin 1.
"""
    for command, said, observation in play(game, script):
        assert observation.text == said, command


def test_a_thing_in_a_container_and_in_two_places():
    fields = kitchen.game()
    fields["pddl_problem"] = fields["pddl_problem"].replace(
        "(:init",
        "(:init (inReceptacleObject Egg_bar_1 Bowl_bar_2)"
        " (inReceptacle Knife_bar_1 Sink_bar_1_bar_SinkBasin)",
    )
    script = """
go to countertop 1 | You arrive at countertop 1. On the countertop 1, you see a \
apple 1, a bowl 2, and a knife 1.
take knife 1 from sinkbasin 1 | You pick up the knife 1 from the sinkbasin 1.
examine countertop 1 | On the countertop 1, you see a apple 1, a bowl 2, and a knife 1.
move knife 1 to countertop 1 | You move the knife 1 to the countertop 1.
look | You are facing the countertop 1, and sinkbasin 1. Next to it, you see a knife 1.
go to fridge 1 | You arrive at fridge 1. The fridge 1 is closed.
open fridge 1 | You open the fridge 1. The fridge 1 is open. In it, you see a bowl 1, \
and a egg 1.
take bowl 1 from fridge 1 | You pick up the bowl 1 from the fridge 1.
examine bowl 1 | This is a normal bowl 1. In it, you see a egg 1.
"""
    for command, said, observation in play(compile_game(fields), script):
        assert observation.text == said, command


@pytest.mark.parametrize(
    "found, said",
    [
        ((), "nothing"),
        ((0,), "a apple 1"),
        ((0, 1), "a apple 1, and a bowl 2"),
        ((0, 1, 5), "a apple 1, a bowl 2, and a knife 1"),
    ],
)
def test_lists(found, said):
    game = compile_game(kitchen.game())
    inside = game.initial.inside.copy()
    inside[:, 1] = [i in found for i in range(6)]  # the desk
    state = game.initial.replace(inside=inside)
    rule = [["rule", "examineReceptacle.feedback"]]
    assert text.say(game, state, rule, {"r": 1}) == f"On the desk 1, you see {said}."


def test_the_goal_sentence_is_taken_out():
    words = '{"task": [{"rhs": "Your task is to: look at book."}]}'
    rest, sentence = grammar.split_goal(words)
    assert sentence == "Your task is to: look at book."
    assert rest == '{"task": [{"rhs": ""}]}'
    for goal in ("say #look#", "a {r.name}", "a // b", "t\\ab", "\u6253"):
        with pytest.raises(ValueError, match="unreadable goal sentence"):
            grammar.split_goal(f'"task": [{{"rhs": "{goal}"}}]')


def test_grammars_are_shared():
    a, b = compile_game(kitchen.game()), compile_game(kitchen.game(sentence="go."))
    assert a.grammar is b.grammar
    assert a.objective == "heat some apple" and b.objective == "go"
    packed = grammar.pack(a.grammar)
    assert grammar.unpack(packed) is grammar.unpack(str(packed))
