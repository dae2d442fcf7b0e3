"""The report: a curve, a table, a paired comparison, an episode turn by turn."""

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time

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
    report.run(*arguments, console=page, **({"html": False} | options))
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


def test_an_episode_of_a_training_run_is_replayed_beside_its_own_bank():
    lines = (runs.rl() / "episodes" / "000002.jsonl").read_text().splitlines()
    record = json.loads(lines[-1])
    words = told(str(runs.rl()), episode=record["task"])
    assert f"step 2, uid {record['uid']}, bank {record['bank']}" in words
    assert "the last of " in words and "--episode=UID names another" in words
    assert "replay equals the record: True" in words
    words = told(str(runs.rl()), episode="0")
    assert "step 1, uid 0, bank " in words
    assert "replay equals the record: True" in words


def test_every_record_names_the_bank_that_it_was_played_with(teacher):
    def banks(path):
        return {json.loads(line)["bank"] for line in path.read_text().splitlines()}

    def parent(folder, name):
        return json.loads((folder / f"{name}.jsonl").read_text().split("\n")[0])

    first, second = (banks(p) for p in sorted((runs.rl() / "episodes").iterdir()))
    assert len(first) == len(second) == 1
    assert parent(runs.rl() / "bank", *first) == {"parent": None, "step": 0}
    assert first == second or parent(runs.rl() / "bank", *second) == {
        "parent": first.pop(),
        "step": 1,
    }
    collected = runs.sft() / "collect"
    (name,) = banks(collected / "episodes-0.jsonl")
    assert parent(collected / "bank", name) == {"parent": None, "step": 0}
    # A counter without a run plays with its manual, which has no version.
    assert banks(type(runs.rl())(teacher) / "episodes.jsonl") == {""}


def test_a_collection_is_told_pass_by_pass():
    words = told(str(runs.sft() / "collect"))
    assert "pass won of turns calls bank added reworded 1 " in words
    assert told(str(runs.sft() / "collect"), episode="plain-1").endswith(
        "replay equals the record: True"
    )


# The page.


def test_a_page_is_written_beside_the_text(teacher, chance):
    words = told(teacher, versus=chance, html=True)
    assert "report.html (0.9 MB, 23 of 23 episodes)" in words.replace("(1.0", "(0.9")
    with open(f"{teacher}/report.html") as file:
        page = file.read()
    assert "Before and after" in page and "The same 23 games: " in page


def test_without_the_extra_the_text_comes_and_one_line_says_what_is_missing(teacher):
    code = (
        "import importlib.util as u, sys; find = u.find_spec\n"
        "u.find_spec = lambda name, *a: None if name == 'altair' else find(name, *a)\n"
        "sys.argv = ['report', '--workdir=' + sys.argv[1], *sys.argv[2:]]\n"
        "from evoharness_jax import report; report.main()"
    )

    def call(*words):
        done = subprocess.run(
            [sys.executable, "-c", code, teacher, *words],
            capture_output=True,
            text=True,
        )
        return done.returncode, done.stdout + done.stderr

    missing = "no report.html: altair not installed; pip install 'evoharness_jax[report"
    code_, said = call()
    assert code_ == 0 and missing in said and "60.9" in said
    code_, said = call("--html")
    assert code_ == 1 and "error: " + missing in said and "60.9" in said
    code_, said = call("--nohtml")
    assert code_ == 0 and missing not in said and "60.9" in said


# What is wrong with a run.


@pytest.fixture
def copy(tmp_path):
    def make(run):
        return shutil.copytree(str(run), tmp_path / "run", dirs_exist_ok=True)

    return make


def test_a_version_is_recorded_and_another_one_is_said(copy):
    run = copy(runs.rl())
    config = json.loads((run / "config.json").read_text())
    assert config["version"] == "0.1.0"
    assert "note: " not in told(str(run))
    config["version"] = "0.0.7"
    (run / "config.json").write_text(json.dumps(config))
    said = "made by version 0.0.7 of the package, read by 0.1.0: numbers are shown"
    words = told(str(run), html=True)
    assert f"note: {said}" in words and "2 lines of metrics" in words
    page = (run / "report.html").read_text()
    assert said in page and "made by 0.0.7 · read by 0.1.0" in page
    del config["version"]
    (run / "config.json").write_text(json.dumps(config))
    assert "does not say which version of the package made this" in told(str(run))


def test_a_killed_run_is_shown_as_far_as_it_came(copy):
    run = copy(runs.rl())
    lines = (run / "metrics.jsonl").read_text().splitlines()
    (run / "metrics.jsonl").write_text(lines[0] + "\n" + lines[1][:40])
    words = told(str(run), html=True)
    assert "1 lines of metrics" in words
    assert "metrics.jsonl: the last line is cut short" in words
    assert "step 1 of 2: the run goes on, or was stopped there" in words
    assert "step 1 of 2" in (run / "report.html").read_text()


def test_a_run_killed_in_its_first_step_is_shown(copy):
    run = copy(runs.rl())
    (run / "metrics.jsonl").unlink()
    (run / "episodes" / "000002.jsonl").unlink()
    words = told(str(run), html=True)
    assert "metrics.jsonl: no step is written yet" in words
    assert "8 of 8 episodes" in words


def test_an_evaluation_without_a_summary_is_told_by_its_episodes(teacher, copy):
    run = copy(teacher)
    (run / "summary.json").unlink()
    path = run / "episodes.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join(lines[:13]) + "\n" + lines[13][:100])
    words = told(str(run), html=True)
    assert "coded 8 13 61.5 all 8 13 61.5" in words
    assert "summary.json is missing: the evaluation did not end" in words
    assert "episodes.jsonl: line 14 is cut short" in words
    assert "13 of 13 episodes" in words


def test_damaged_lines_are_named_and_the_others_shown(teacher, copy):
    run = copy(teacher)
    path = run / "episodes.jsonl"
    lines = path.read_text().splitlines()
    lines[2], lines[5] = lines[2][:50], '{"uid": 3}'
    path.write_text("".join(line + "\n" for line in lines))
    words = told(str(run), html=True)
    assert "episodes.jsonl: line 3 is damaged: " in words
    assert "episodes.jsonl: line 6 is damaged: it lacks task, split, type, won" in words
    assert "21 of 21 episodes" in words
    assert "line 3 is damaged" in (run / "report.html").read_text()


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("summary.json", '{"success": 0.5', "summary.json is damaged: "),
        ("summary.json", "[]", "summary.json is damaged: it holds no dict"),
        (
            "summary.json",
            '{"success": 0.5, "versions": {"evoharness_jax": "9.9"}}',
            "summary.json cannot be read: it lacks wins, n, interval, .* it was made "
            "by version 9.9, this is 0.1.0",
        ),
    ],
)
def test_a_summary_that_cannot_be_read_is_named(name, content, message, teacher, copy):
    run = copy(teacher)
    (run / name).write_text(content)
    with pytest.raises(ValueError, match=message):
        told(str(run))


def test_a_damaged_config_is_named_and_the_rest_shown(teacher, copy):
    run = copy(teacher)
    (run / "config.json").write_text("{")
    words = told(str(run), html=True)
    assert "config.json is damaged: " in words and "all 14 23 60.9" in words
    with pytest.raises(ValueError, match="config.json names no environment"):
        told(str(run), episode="coded-bravo")


@pytest.mark.parametrize(
    "arguments, message",
    [
        ("--workdir={folder}/none", "--workdir: {folder}/none is not there"),
        ("--workdir={folder}/file", "--workdir: {folder}/file is a file, not a"),
        ("--workdir={folder}", "{folder} is neither a training run (metrics.jsonl)"),
        ("--workdir={folder}/begun", "begun holds a run that has written no numbers"),
        ("--workdir={folder}/none --follow", "--workdir: {folder}/none is not there"),
        ("--workdir={folder} --follow --episode=a", "--follow goes with neither"),
        ("--workdir={folder} --episodes=-1", "flag --episodes=-1: "),
    ],
)
def test_a_wrong_command_line_is_one_line(arguments, message, tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / "config.json").write_text("{}")
    words = arguments.format(folder=tmp_path).split()
    ended = runs.call("report", words)
    assert ended.code == 1, ended.output
    assert message.format(folder=tmp_path) in ended.output
    assert "Traceback" not in ended.output


# Following a run.


def follow(where, **options) -> str:
    page = Console(file=io.StringIO(), width=100)
    report.follow(str(where), console=page, every=0.1, **options)
    return " ".join(page.file.getvalue().split())


def test_a_finished_run_is_followed_to_its_end_at_once(copy):
    run = copy(runs.rl())
    words = follow(run)
    assert "2 lines of metrics" in words and "the run is done" in words
    assert "16 of 16 episodes" in words
    assert 'data-reload="0"' in (run / "report.html").read_text()


def test_a_run_is_followed_from_before_its_first_line(tmp_path):
    whole = runs.rl()
    lines = (whole / "metrics.jsonl").read_text().splitlines(keepends=True)
    shutil.copy(whole / "config.json", tmp_path)
    pages = []

    def go_on():
        time.sleep(0.5)
        (tmp_path / "metrics.jsonl").write_text(lines[0])
        while not (tmp_path / "report.html").exists():
            time.sleep(0.05)
        pages.append((tmp_path / "report.html").read_text())
        (tmp_path / "metrics.jsonl").write_text(lines[0] + lines[1][:30])
        time.sleep(0.5)
        (tmp_path / "metrics.jsonl").write_text("".join(lines))

    run = threading.Thread(target=go_on)
    run.start()
    words = follow(tmp_path)
    run.join()
    assert "2 lines of metrics" in words and "the run is done" in words
    assert 'data-reload="0.1"' in pages[0] and "step 1 of 2" in pages[0]
    assert 'data-reload="0"' in (tmp_path / "report.html").read_text()


def test_a_run_that_fails_is_followed_to_its_error(copy):
    run = copy(runs.rl())
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text(lines[0])
    (run / "error.txt").write_text("Traceback:\n  ...\nValueError: the loss is odd\n")
    words = follow(run, html=False)
    assert "the run ended with an error: ValueError: the loss is odd" in words


def test_an_interrupt_ends_following_and_is_no_error(tmp_path):
    words = [f"--workdir={tmp_path}", "--follow", "--nohtml", "--every=0.1"]
    following = subprocess.Popen(
        [sys.executable, "-m", "evoharness_jax.report", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ
        | {"PYTHONUNBUFFERED": "1", "COLUMNS": "200", "TTY_COMPATIBLE": "1"},
    )
    said = ""
    while "waiting" not in said:
        said += following.stdout.read(1)
    following.send_signal(signal.SIGINT)
    rest, _ = following.communicate(timeout=60)
    assert following.returncode == 0, said + rest
    assert f"waiting for the first numbers of {tmp_path}" in said + rest
    assert "Traceback" not in said + rest


def test_what_is_no_run_is_named(teacher, tmp_path):
    with pytest.raises(ValueError, match="neither a training run .* nor an evaluation"):
        told(str(tmp_path))
    with pytest.raises(ValueError, match="no episode 'x' in .*; there are coded-bravo"):
        told(teacher, episode="x")
    with pytest.raises(ValueError, match="is no finished evaluation"):
        told(teacher, versus=str(tmp_path))
