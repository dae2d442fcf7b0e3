"""Metrics: one line a step, the same numbers as event files, and damage named."""

import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import runs
from evoharness_jax import metrics


def steps_and_values(where, tag):
    """Read a run's events as TensorBoard does, what a restart made void left out."""
    events = EventAccumulator(str(where / "tensorboard"))
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars(tag)]


def write(where, steps, resume_at=0, scale=1.0):
    writer = metrics.Writer(where, 9, resume_at)
    for step in steps:
        writer.write(step, {"env/success": step * scale, "calls/total": 2.0}, ())


def test_a_step_is_a_line_and_an_event(tmp_path):
    write(tmp_path, [1, 2], scale=0.25)
    assert (tmp_path / "metrics.jsonl").read_text() == (
        '{"step": 1, "env/success": 0.25, "calls/total": 2.0}\n'
        '{"step": 2, "env/success": 0.5, "calls/total": 2.0}\n'
    )
    assert steps_and_values(tmp_path, "env/success") == [(1, 0.25), (2, 0.5)]
    assert steps_and_values(tmp_path, "calls/total") == [(1, 2.0), (2, 2.0)]


def test_steps_that_are_taken_again_are_shown_once(tmp_path):
    write(tmp_path, [1, 2, 3, 4])
    write(tmp_path, [3, 4, 5], resume_at=2, scale=10.0)
    want = [(1, 1.0), (2, 2.0), (3, 30.0), (4, 40.0), (5, 50.0)]
    assert steps_and_values(tmp_path, "env/success") == want
    assert [(r["step"], r["env/success"]) for r in metrics.read(tmp_path)] == want


def test_a_run_that_starts_over_begins_anew(tmp_path):
    write(tmp_path, [1, 2, 3])
    write(tmp_path, [1], scale=7.0)
    assert steps_and_values(tmp_path, "env/success") == [(1, 7.0)]
    assert metrics.read(tmp_path) == [
        {"step": 1, "env/success": 7.0, "calls/total": 2.0}
    ]


def test_a_writer_that_writes_nothing_leaves_no_events(tmp_path):
    write(tmp_path, [], resume_at=9)
    assert list(tmp_path.iterdir()) == []


def test_a_training_run_writes_events_of_what_it_measures():
    lines = metrics.read(runs.rl())
    for tag in ("env/success", "reward/total", "calls/recall"):
        found = steps_and_values(runs.rl(), tag)
        assert [step for step, _ in found] == [1, 2]
        assert [v for _, v in found] == pytest.approx([line[tag] for line in lines])


@settings(max_examples=20)
@given(st.integers(0, 6), st.integers(0, 6))
def test_what_a_resumed_run_shows_is_what_a_straight_one_does(killed_at, resumed_at):
    with tempfile.TemporaryDirectory() as folder:
        where = Path(folder)
        write(where, range(1, killed_at + 1))
        first = min(killed_at, resumed_at)
        write(where, range(first + 1, 8), resume_at=first)
        assert [line["step"] for line in metrics.read(where)] == list(range(1, 8))
        shown = steps_and_values(where, "env/success")
        assert shown == [(step, float(step)) for step in range(1, 8)]


def test_a_last_line_that_was_cut_is_left_out(tmp_path):
    write(tmp_path, [1, 2])
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 3, "env/su')
    assert [line["step"] for line in metrics.read(tmp_path)] == [1, 2]


@pytest.mark.parametrize(
    "line, message",
    [
        (b'{"step": 2, "env/', "metrics.jsonl is damaged in line 2: "),
        (b"\xff\xfe\x00", "metrics.jsonl is damaged in line 2: "),
        (b"[1, 2]", r"metrics.jsonl: line 2 is not a step and its numbers: b'\[1, 2\]"),
        (b'{"loss": 2.0}', "line 2 is not a step and its numbers"),
        (b'{"step": 2, "loss": "low"}', "line 2 is not a step and its numbers"),
    ],
)
def test_a_line_that_is_none_is_named(line, message, tmp_path):
    whole = json.dumps({"step": 1, "loss/sft": 1.0}).encode()
    (tmp_path / "metrics.jsonl").write_bytes(b"\n".join([whole, line, whole, b""]))
    with pytest.raises(ValueError, match=message):
        metrics.read(tmp_path)


def test_a_folder_without_metrics_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=f"{tmp_path} is not a run: it has no"):
        metrics.read(tmp_path)
    assert metrics.last(tmp_path) == {}
