"""The one command of a newcomer: what it refuses, and (slow) all of it."""

import os
import subprocess

import pytest

import runs

SCRIPT = runs.ROOT / "launch" / "quickstart.sh"


def call(*words, **environment):
    """Run the script; return its exit status, what it printed, and its complaint."""
    done = subprocess.run(
        ["bash", str(SCRIPT), *map(str, words)],
        capture_output=True,
        text=True,
        env=os.environ | environment,
        stdin=subprocess.DEVNULL,
    )
    return done.returncode, done.stdout, done.stderr


def test_help_says_what_it_does():
    code, out, _ = call("--help")
    assert code == 0
    assert "bash launch/quickstart.sh [--from-scratch] [--fresh] [FOLDER]" in out


@pytest.mark.parametrize(
    "words, complaint",
    [
        (["--scratch"], "unknown option: --scratch; see --help"),
        (["one", "two"], "one FOLDER, not "),
    ],
)
def test_words_that_it_does_not_know_are_named(words, complaint):
    code, out, error = call(*words)
    assert (code, out) == (2, "")
    assert complaint in error


def test_a_folder_with_something_else_is_left_alone(tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    for words in ([tmp_path], ["--fresh", tmp_path]):
        code, _, error = call(*words)
        assert code == 1
        assert f"{tmp_path} holds something else; name an empty FOLDER" in error
    assert (tmp_path / "thesis.txt").read_text() == "years of work"


def test_a_quickstart_from_elsewhere_is_not_gone_on_with(tmp_path):
    (tmp_path / ".quickstart").write_text("embedded-sft\n")
    code, _, error = call("--from-scratch", tmp_path)
    assert code == 1
    assert f"holds a quickstart from embedded-sft, this one is from {tmp_path}" in error


@pytest.mark.slow
def test_all_of_it_and_once_more(tmp_path):
    code, out, error = call(tmp_path / "new")
    assert code == 0, error
    assert "McNemar p = " in out
    for page in ("rl/report.html", "after/report.html"):
        assert str(tmp_path / "new" / page) in out
        assert 100_000 < (tmp_path / "new" / page).stat().st_size < 5_000_000
    written = (tmp_path / "new" / "after" / "summary.json").stat().st_mtime
    code, again, error = call(tmp_path / "new")
    assert code == 0, error
    assert "McNemar p = " in again
    assert (tmp_path / "new" / "after" / "summary.json").stat().st_mtime == written
