"""Generated homes: solvable, of every kind, apart by split, as their knobs say."""

import json
import random
from collections import Counter
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest

from evoharness_jax.envs.alfworld import data, engine, households, pddl, survey
from evoharness_jax.envs.alfworld.data import TASK_TYPES
from evoharness_jax.envs.alfworld.game import compile_game, load

GOLDEN = Path(__file__).parents[2] / "golden" / "alfworld_homes.json"


@pytest.mark.parametrize("task", TASK_TYPES)
def test_every_kind_is_made_and_its_plan_wins(task):
    for seed in households.seeds("train", 4, first=100):
        fields = households.household(seed, task)
        game = compile_game(fields)
        assert game.task_type == task
        assert game.walkthrough == tuple(fields["walkthrough"])
        state, observation = engine.reset(game)
        assert not observation.won
        for command in game.walkthrough:
            assert not observation.won
            state, observation = engine.step(game, state, command)
            assert observation.valid
        assert observation.won


def test_a_seed_is_a_home():
    fields = households.household(7)
    assert fields == households.household(7)
    assert fields != households.household(8)
    assert fields != households.household(7, rarity=1.0)
    assert fields["solvable"] is True


def test_splits_share_no_pair_of_thing_and_place():
    pairs = {}
    for split in households.SPLITS:
        wishes = households._wishes(split)
        assert sorted(wishes) == sorted(TASK_TYPES)
        pairs[split] = {(w.thing, w.place) for kind in wishes.values() for w, _ in kind}
    train, seen, unseen = (pairs[split] for split in households.SPLITS)
    assert not (train & seen or train & unseen or seen & unseen)
    assert len(train) > 5 * len(seen) > 50 and len(train) > 5 * len(unseen) > 50
    for split in households.SPLITS:
        (seed,) = households.seeds(split, 1, first=3)
        assert households.split_of(seed) == split
        wish = households.Wish(*households.household(seed)["wish"])
        assert (wish.thing, wish.place) in pairs[split]


def shape(seeds, **knobs):
    """Give the mean number of places, and how usual the places of things are."""
    places, usual, wanted = [], [], []
    counts = households._texts()[2]["rooms"]
    for seed in seeds:
        fields = households.household(seed, TASK_TYPES[1], **knobs)
        wish = households.Wish(*fields["wish"])
        facts = pddl.read_problem(fields["pddl_problem"]).facts
        otype, rtype = dict(facts["objecttype"]), dict(facts["receptacletype"])
        where = {
            (f"{kind}type".lower(), f"{place}type".lower()): count / sum(row.values())
            for kind, row in counts[wish.room]["where"].items()
            for place, count in row.items()
        }
        places.append(len(rtype))
        for thing, place in facts["inreceptacle"]:
            share = where.get((otype[thing], rtype[place]), 0.0)
            if otype[thing] == f"{wish.thing}type".lower():
                wanted.append(share)
            usual.append(share)
    return fmean(places), fmean(usual), fmean(wanted)


def test_knobs():
    seeds = households.seeds("train", 25)
    places, usual, wanted = shape(seeds)
    more, _, _ = shape(seeds, size=2.0)
    assert 1.6 * places < more < 2.4 * places
    _, _, rare = shape(seeds, rarity=1.0)
    assert rare < 0.75 * wanted
    _, shifted, _ = shape(seeds, shift=1.0)
    assert shifted < 0.6 * usual


@pytest.mark.parametrize(
    "options, message",
    [
        ({"seed": -1}, "seed out of range"),
        ({"seed": 0, "task": "dance"}, "unknown task type"),
        ({"seed": 0, "size": 0.0}, "knob out of range"),
        ({"seed": 0, "rarity": 1.5}, "knob out of range"),
    ],
)
def test_what_is_not_a_home(options, message):
    with pytest.raises(ValueError, match=message):
        households.household(**options)


def test_loaders_find_what_is_written(tmp_path):
    paths = households.write(tmp_path, households.seeds("valid_unseen", 6))
    tasks = data.games("valid_unseen", str(tmp_path))
    assert sorted(task.spec for task in tasks) == sorted(paths)
    for task in tasks:
        game = load(task.spec)
        assert game.task_type == task.type
        beside = json.loads((Path(task.spec).parent / "traj_data.json").read_text())
        assert beside["task_type"] == task.type


def test_they_are_like_the_training_games():
    """Means over the 3,553 training games, as `survey.describe` gives them."""
    seeds = households.seeds("train", 150)
    table = survey.describe(compile_game(households.household(s)) for s in seeds)
    assert table["all"]["games"] == 150
    assert table["all"]["places"] == pytest.approx(23.8, rel=0.15)
    assert table["all"]["things"] == pytest.approx(31.0, rel=0.15)
    assert table["all"]["plan"] == pytest.approx(6.0, abs=0.5)


def test_a_survey_of_homes_gives_their_counts_back():
    files = [
        (households._scene(fields["wish"][3], 0), fields)
        for fields in map(households.household, households.seeds("train", 40))
    ]
    found = survey.survey(files)
    known = households._texts()[2]
    for kind, able in found["able"].items():
        assert able == known["able"][kind]
    assert set(found["opens"]) <= set(known["opens"])
    goals = Counter(
        (task, row[0], row[1]) for task, rows in found["goals"].items() for row in rows
    )
    assert set(goals) == {tuple(fields["wish"][:3]) for _, fields in files}


def test_golden_transcripts():
    """What TextWorld said in generated homes, recorded by tests/golden/record_homes."""
    for record in json.loads(GOLDEN.read_text()):
        game = compile_game(households.household(record["seed"], record["task"]))
        state, observation = engine.reset(game)
        known = dict.fromkeys(observation.commands)
        assert observation.text == record["intro"]
        assert list(observation.commands) == record["commands"]
        for command, text, added, removed, won in record["steps"]:
            state, observation = engine.step(game, state, command)
            assert observation.text == text
            known = sorted((set(known) | set(added)) - set(removed))
            assert list(observation.commands) == known
            assert observation.won == won


@pytest.mark.alfworld
def test_textworld_plays_them(tmp_path):
    from evoharness_jax.bench import parity

    env = parity.real_engine()
    seeds = random.Random(0).sample(households.seeds("train", 1000), 2)
    for path in households.write(tmp_path, seeds, size=0.6, shift=0.5):
        result = parity.compare(env, path, load(path), walks=1, seed=0)
        assert result["differences"] == []


def test_numbers_fit_the_engine():
    game = compile_game(households.household(3, size=1.5))
    assert game.tables.spot.dtype == np.int8
    assert len(game.tables.spot) < 127
