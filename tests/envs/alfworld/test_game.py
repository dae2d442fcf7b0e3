"""Compiling a game file: names, commands, tables, what is refused, the cache."""

import json
import threading

import numpy as np
import pytest

import kitchen
from evoharness_jax.envs.alfworld import game as games
from evoharness_jax.envs.alfworld import ground
from evoharness_jax.envs.alfworld.tables import SLICE, TAKE


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "game.tw-pddl"
    file.write_bytes(kitchen.text())
    return str(file)


def leaves(game):
    for part in (game.tables, game.initial):
        yield from vars(part).items()
    yield from sorted(game.static.items())


def assert_same(a, b):
    for (name, left), (_, right) in zip(leaves(a), leaves(b), strict=True):
        assert left.dtype == right.dtype, name
        np.testing.assert_array_equal(left, right, err_msg=name)
    for name in ("id", "task", "task_type", "walkthrough", "commands", "names"):
        assert getattr(a, name) == getattr(b, name)
    assert (a.classes, a.intro, a.grammar) == (b.classes, b.intro, b.grammar)


def test_names_count_down_from_the_first_id():
    ids = {
        "apple_bar__plus_00_dot_10",
        "apple_bar__minus_00_dot_10",
        "sink_bar_1_bar_sinkbasin",
        "sink_bar_1",
        "agent1",
    }
    assert ground._titles(ids) == {
        "agent1": "agent1 ",
        "apple_bar__minus_00_dot_10": "apple 2",
        "apple_bar__plus_00_dot_10": "apple 1",
        "sink_bar_1": "sink 1",
        "sink_bar_1_bar_sinkbasin": "sinkbasin 1",
    }


def test_kitchen():
    game = games.compile_game(kitchen.game())
    assert game.names == {
        "object": ("apple 1", "bowl 2", "bowl 1", "desklamp 1", "egg 1", "knife 1"),
        "receptacle": (
            "countertop 1",
            "desk 1",
            "fridge 1",
            "microwave 1",
            "sinkbasin 1",
        ),
        "location": ("loc 5", "loc 4", "loc 3", "loc 2", "loc 1"),
        "agent": ("agent1 ",),
    }
    assert game.classes == (
        "appletype",
        "bowltype",
        "bowltype",
        "desklamptype",
        "eggtype",
        "knifetype",
    )
    assert game.objective == "heat some apple"
    assert game.task == "Your task is to: heat some apple."
    assert game.task_type == "pick_heat_then_place_in_recep"
    assert game.walkthrough == ()
    assert list(game.commands) == sorted(game.commands)
    # 3 alone, 5 go, 5 + 5 examine, 2 open, 2 close, 1 use; apple: 4 take, 4 move; egg
    # 3 + 3; bowls: 3 + 3 and, one being in the fridge, 4 + 3; knife 1 + 1; clean 3;
    # heat 2; cool 2; slice 2
    assert len(game.commands) == 3 + 5 + 10 + 2 + 2 + 1 + 8 + 6 + 6 + 7 + 2 + 9
    assert game.commands[:4] == (
        "clean apple 1 with sinkbasin 1",
        "clean bowl 1 with sinkbasin 1",
        "clean bowl 2 with sinkbasin 1",
        "close fridge 1",
    )
    take = game.commands.index("take bowl 1 from fridge 1")
    tables = game.tables
    assert (tables.kind[take], tables.thing[take], tables.place[take]) == (TAKE, 2, 2)
    cut = game.commands.index("slice egg 1 with knife 1")
    assert (tables.kind[cut], tables.thing[cut], tables.tool[cut]) == (SLICE, 4, 5)
    assert tables.spot.tolist() == [0, 4, 2, 1, 0]
    assert tables.openable.tolist() == [False, False, True, True, False]
    assert game.initial.agent == 3
    assert game.initial.flags[4].tolist() == [False, False, True, False, False]


def test_the_older_release():
    game = games.compile_game(kitchen.older())
    assert "put apple 1 in/on desk 1" not in game.commands  # a desk takes bowls only
    assert "put apple 1 in/on countertop 1" in game.commands
    assert "help" not in game.commands


@pytest.mark.parametrize(
    "goal, task_type",
    [
        (kitchen.HOT_APPLE, "pick_heat_then_place_in_recep"),
        (
            kitchen.PLACE.format(thing="EggType", place="MicrowaveType", more=""),
            "pick_and_place_simple",
        ),
        (
            kitchen.PLACE.format(
                thing="BowlType", place="DeskType", more="(cleanable ?o) (isClean ?o)"
            ),
            "pick_clean_then_place_in_recep",
        ),
        (
            kitchen.PLACE.format(
                thing="AppleType", place="FridgeType", more="(coolable ?o) (isCool ?o)"
            ),
            "pick_cool_then_place_in_recep",
        ),
        (
            kitchen.TWO.format(thing="BowlType", place="DeskType"),
            "pick_two_obj_and_place",
        ),
        (kitchen.LOOK.format(thing="AppleType"), "look_at_obj_in_light"),
    ],
)
def test_goals(goal, task_type):
    game = games.compile_game(kitchen.game(goal))
    assert game.task_type == task_type
    assert bool(game.tables.goal_look) == (task_type == "look_at_obj_in_light")
    assert game.tables.goal_count == (2 if "two" in task_type else 1)


def changed(field, old, new):
    fields = kitchen.game()
    assert old in fields[field]
    return json.dumps({**fields, field: fields[field].replace(old, new)}).encode()


@pytest.mark.parametrize(
    "content, reason",
    [
        (b"\x00", "not JSON"),
        (b"[]", "not a game: no JSON object"),
        (b"{}", "not a game: no 'pddl_domain'"),
        (kitchen.text(grammar=None), "not a game: no 'grammar'"),
        (kitchen.text(solvable=False), "marked unsolvable"),
        (kitchen.text(solvable=None), "marked unsolvable"),
        (kitchen.text(pddl_domain="(define"), "domain: brackets do not match"),
        (
            changed("pddl_domain", "(not (isCool ?o))", ""),
            "domain: unknown rule for 'heatobject'",
        ),
        (
            changed("pddl_domain", "(:action help", "(:action smell"),
            "domain: unknown action 'smell'",
        ),
        (
            changed("grammar", "holdsany(a:agent)", "tired(a:agent)"),
            "grammar: unknown condition 'tired(a:agent)'",
        ),
        (
            changed("grammar", "action look", "action stare"),
            "grammar: no words for the action 'look'",
        ),
        (
            changed("grammar", '"task"', '"job"'),
            "grammar: 0 goal sentences, wanted one",
        ),
        (
            changed("pddl_problem", "(:goal", ")(:goal"),
            "problem: a bracket closes nothing",
        ),
        (
            changed("pddl_problem", "(isCool Egg_bar_1)", "(isCool Egg_bar_9)"),
            "problem: unknown name 'egg_bar_9' in 'iscool'",
        ),
        (
            changed("pddl_problem", "Apple_bar_1 Egg_bar_1", "Egg_bar_1 Egg_bar_1"),
            "problem: 'egg_bar_1' is declared twice",
        ),
        (
            changed("pddl_problem", "(atLocation agent1 Loc_bar_4)", ""),
            "problem: one agent with empty hands was expected",
        ),
        (
            kitchen.text(goal="(and (forall (?r - receptacle) (opened ?r)))"),
            "goal: unknown condition 'forall'",
        ),
        (
            kitchen.text(goal="(and (isHot Apple_bar_1))"),
            "goal: not one of the six kinds of task",
        ),
    ],
)
def test_what_cannot_be_played_is_named(content, reason):
    with pytest.raises(games.GameError) as error:
        games.compile_text(content, "some/path")
    assert error.value.path == "some/path"
    assert error.value.reason == reason


def test_not_marked(tmp_path):
    fields = kitchen.game()
    del fields["solvable"]
    file = tmp_path / "game.tw-pddl"
    file.write_text(json.dumps(fields))
    with pytest.raises(games.GameError, match="not marked solvable"):
        games.load(str(file))
    assert games.load(str(file), unsolvable=True).commands
    with pytest.raises(games.GameError, match="cannot be read: No such file"):
        games.load(str(tmp_path / "none"))


def test_pack_and_unpack(path):
    game = games.load(path)
    assert_same(game, games.unpack(games.pack(game)))


def test_cache(path, tmp_path):
    cache = tmp_path / "cache"
    game = games.load(path)
    assert_same(game, games.load_cached(path, str(cache)))
    (stored,) = cache.iterdir()
    assert stored.name == f"{game.id}.game"
    assert_same(game, games.load_cached(path, str(cache)))
    stored.write_bytes(stored.read_bytes()[:100])  # cut short
    assert_same(game, games.load_cached(path, str(cache)))
    assert_same(game, games.unpack(stored.read_bytes()))


def test_a_cache_that_cannot_be_written_costs_no_game(path, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    assert_same(games.load(path), games.load_cached(path, str(blocked)))
    assert blocked.read_text() == "not a folder"


def test_many_write_the_cache_at_once(path, tmp_path):
    cache, seen = tmp_path / "cache", []
    threads = [
        threading.Thread(
            target=lambda: seen.append(games.load_cached(path, str(cache)))
        )
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 8
    assert [file.suffix for file in cache.iterdir()] == [".game"]
    for game in seen:
        assert_same(game, seen[0])


def test_a_set_counts_what_it_skips(path, tmp_path):
    bad = tmp_path / "bad.tw-pddl"
    bad.write_bytes(kitchen.text(solvable=False))
    for cache in (None, str(tmp_path / "cache")):
        found, skipped = games.load_set([path, str(bad), str(bad), path], cache)
        assert len(found) == 2
        assert dict(skipped) == {"marked unsolvable": 2}


@pytest.mark.alfworld
def test_all_games_compile_or_say_why(alfworld_data):
    paths = sorted(map(str, alfworld_data.rglob("game.tw-pddl")))[:300]
    found, skipped = games.load_set(paths)
    assert found
    assert set(skipped) <= {"marked unsolvable", "not marked solvable"}
