"""The report: a curve, a table, a paired comparison, an episode turn by turn."""

import io

import pytest
from rich.console import Console

import runs
from evoharness_jax import evaluate, report
from evoharness_jax.envs.alfworld import households


def evaluation(policy: str, where, **changes):
    settings = runs.config("alfworld_eval", f"env=counter,policy={policy}", changes)
    runs.make(evaluate.run, settings, where)
    return str(where)


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    return evaluation("teacher", tmp_path_factory.mktemp("teacher"))


@pytest.fixture(scope="module")
def chance(tmp_path_factory):
    return evaluation("random", tmp_path_factory.mktemp("chance"))


def told(*arguments, **options) -> str:
    page = Console(file=io.StringIO(), width=100)
    report.run(*arguments, console=page, **options)
    return " ".join(page.file.getvalue().split())


def test_an_evaluation_is_told_by_type(teacher):
    words = told(teacher)
    assert "test, policy teacher" in words
    assert "coded 8 13 61.5 plain 6 10 60.0 all 14 23 60.9" in words
    assert "95 % interval" in words and "calls an episode: track" in words


def test_two_evaluations_are_paired(teacher, chance):
    words = told(teacher, versus=chance)
    assert "the same 23 games" in words
    assert "McNemar p = " in words and "won only before" in words


def test_other_games_are_not_compared(teacher, tmp_path):
    few = evaluation("random", tmp_path / "few", **{"evaluate.games": 3})
    with pytest.raises(ValueError, match="not the same games: only in one of the two"):
        told(teacher, versus=few)


def test_a_training_run_is_told_by_its_curve():
    words = told(str(runs.rl()))
    assert "2 lines of metrics" in words
    assert "env/success" in words and "calls/recall" in words


def test_an_episode_is_replayed_turn_by_turn(teacher):
    words = told(teacher, episode="coded-bravo")
    assert "1. <action>commit [reach the number]</action> (ok)" in words
    assert "[ ] reach the number" in words
    assert "replay equals the record: True" in words


def test_a_household_episode_is_replayed_too(tmp_path):
    households.write(str(tmp_path / "homes"), [7])
    where = tmp_path / "evaluation"
    settings = runs.config(
        "alfworld_eval",
        "policy=teacher,split=train",
        {"env.data": tmp_path / "homes", "env.cache": tmp_path / "cache"},
    )
    summary = runs.make(evaluate.run, settings, where)
    words = told(str(where), episode=summary["games"][0]["task"])
    assert "replay equals the record: True" in words
    assert "unexplored" in words and "at " in words


def test_what_is_no_run_is_named(teacher, tmp_path):
    with pytest.raises(ValueError, match="neither a training run .* nor an evaluation"):
        told(str(tmp_path))
    with pytest.raises(ValueError, match="no episode 'x' in .*; there are coded-bravo"):
        told(teacher, episode="x")
    with pytest.raises(ValueError, match="is no finished evaluation"):
        told(teacher, versus=str(tmp_path))
