"""A killed run that is started again ends with the bits of one that was left alone.

Every kill is a SIGKILL from outside, at a moment named by what the run was about to
do: open a file, or rename one into place.
"""

import json
import logging
import shutil
import signal

import numpy as np
import pytest

import runs
from evoharness_jax import checkpoint, collect, train_rl, train_sft
from evoharness_jax.types import Batch

COLLECT = {
    "collect.games": 6,
    "collect.repeats": 1,
    "collect.passes": 2,
    "collect.batch": 1,
}


def kill(module, config, settings, where, event, part, nth=1):
    words = [*runs.command(config, runs.COUNTER, settings), f"--workdir={where}"]
    ended = runs.call(module, words, kill_at=(event, part, nth))
    assert ended.code == -9, ended.output
    return ended.output


def test_a_killed_fine_tuning_ends_with_the_same_bits(tmp_path, caplog):
    settings, straight = runs.short_settings(), runs.left_behind(runs.short())
    # In mid-step: the third update is made, its metrics are not written.
    kill(
        "train_sft", "alfworld_sft", settings, tmp_path, "open", "metrics.jsonl", nth=3
    )
    assert runs.steps(tmp_path) == [2]
    # During a save: half of the files are in place.
    said = kill(
        "train_sft", "alfworld_sft", settings, tmp_path, "os.rename", "/state.orbax"
    )
    assert "going on from step 2" in said
    assert runs.steps(tmp_path) == [runs.HALF, 2]
    with caplog.at_level(logging.INFO, "evoharness_jax"):
        runs.make(
            train_sft.run, runs.config("alfworld_sft", changes=settings), tmp_path
        )
    assert "going on from step 2" in caplog.text  # not from the half-written one
    assert runs.left_behind(tmp_path) == straight


def test_a_killed_policy_gradient_ends_with_the_same_bits(tmp_path):
    settings, straight = runs.rl_settings(), runs.left_behind(runs.rl())
    # The first update is made, no checkpoint is written.
    kill("train_rl", "alfworld_rl", settings, tmp_path, "open", "000001.jsonl")
    assert runs.steps(tmp_path) == []
    # The bank has learned from the second rollout, the checkpoint is of the first.
    kill("train_rl", "alfworld_rl", settings, tmp_path, "open", "metrics.jsonl", nth=2)
    assert runs.steps(tmp_path) == [1]
    assert runs.left_behind(tmp_path)["head"] == straight["head"]
    # During a save: all is written, the folder does not have its name yet.
    said = kill(
        "train_rl", "alfworld_rl", settings, tmp_path, "os.rename", "/2.orbax-", nth=3
    )
    assert "going on from step 1 with bank" in said
    assert runs.steps(tmp_path) == [runs.HALF, 1]
    runs.make(train_rl.run, runs.config("alfworld_rl", changes=settings), tmp_path)
    assert runs.left_behind(tmp_path) == straight


def stop(module, config, settings, where, event, part, nth=1):
    """Ask a run to stop, as a machine does that is taken away."""
    words = [*runs.command(config, runs.COUNTER, settings), f"--workdir={where}"]
    ended = runs.call(module, words, kill_at=(event, part, nth), by=signal.SIGTERM)
    assert ended.code == 0, ended.output
    return ended.output


def test_a_fine_tuning_that_is_asked_to_stop_saves_its_step(tmp_path):
    settings, straight = runs.short_settings(), runs.left_behind(runs.short())
    said = stop(
        "train_sft", "alfworld_sft", settings, tmp_path, "open", "metrics.jsonl", nth=3
    )
    assert "asked to stop: step 3 is saved" in said
    assert runs.steps(tmp_path) == [2, 3]
    runs.make(train_sft.run, runs.config("alfworld_sft", changes=settings), tmp_path)
    assert runs.left_behind(tmp_path) == straight


def test_a_policy_gradient_that_is_asked_to_stop_takes_the_step_again(tmp_path):
    settings, straight = runs.rl_settings(), runs.left_behind(runs.rl())
    # While it writes what the first step brought: that step is saved.
    said = stop("train_rl", "alfworld_rl", settings, tmp_path, "open", "000001.jsonl")
    assert "asked to stop: step 1 is saved" in said
    assert runs.steps(tmp_path) == [1]
    # While it opens the checkpoint to go on from: the next rollout is left at once.
    said = stop("train_rl", "alfworld_rl", settings, tmp_path, "open", "metrics.jsonl")
    assert "asked to stop: step 1 is saved" in said
    assert runs.steps(tmp_path) == [1]
    runs.make(train_rl.run, runs.config("alfworld_rl", changes=settings), tmp_path)
    assert runs.left_behind(tmp_path) == straight


def test_a_killed_collection_leaves_the_same_episodes_and_bank(tmp_path):
    straight, killed = tmp_path / "straight", tmp_path / "killed"
    settings = runs.config("alfworld_sft", changes=COLLECT)
    runs.make(collect.run, settings, straight)
    # In mid-pass, with a line cut short.
    kill("collect", "alfworld_sft", COLLECT, killed, "open", "episodes-0.jsonl", nth=3)
    with (killed / "episodes-0.jsonl").open("a") as file:
        file.write('{"uid": 2, "ta')
    # Between two passes: HEAD has moved on, the pass is not written as done.
    kill("collect", "alfworld_sft", COLLECT, killed, "os.rename", "/collect.json")
    runs.make(collect.run, settings, killed)
    for name in ("episodes-0.jsonl", "episodes-1.jsonl", "collect.json", "bank/HEAD"):
        assert (killed / name).read_text() == (straight / name).read_text()
    done = json.loads((straight / "collect.json").read_text())
    assert len({summary["bank"] for summary in done}) == 2


@pytest.mark.parametrize(
    "name, run",
    [("short", train_sft.run), ("rl", train_rl.run)],
    ids=["fine_tuning", "policy_gradient"],
)
def test_a_finished_run_does_nothing_more(name, run):
    where = getattr(runs, name)()
    config = {"short": "alfworld_sft", "rl": "alfworld_rl"}[name]
    changes = {"short": runs.short_settings, "rl": runs.rl_settings}[name]()
    before, touched = runs.left_behind(where), last_touched(where)
    last = run(runs.config(config, changes=changes), str(where))
    assert runs.left_behind(where) == before
    assert last_touched(where) == touched
    assert before["lines"][-1].items() <= (last | {"step": before["step"]}).items()


def test_a_finished_collection_does_nothing_more():
    where = runs.sft() / "collect"
    files = {p: p.read_bytes() for p in where.rglob("*") if p.is_file()}
    collect.run(runs.config("alfworld_sft", changes=runs.SFT), str(where))
    assert {p: p.read_bytes() for p in where.rglob("*") if p.is_file()} == files


def test_a_damaged_checkpoint_is_named(tmp_path):
    shutil.copytree(runs.short(), tmp_path / "run")
    (tmp_path / "run" / "checkpoints" / "4" / "host" / "metadata").write_text("{")
    with pytest.raises(checkpoint.CheckpointError, match="step 4 under .*/run/check"):
        checkpoint.read_host(tmp_path / "run")


def test_a_batch_is_named_by_seed_and_step():
    config = runs.config("alfworld_sft", changes={"data.rows": 3, "data.accum": 2})
    rows = np.arange(10)[:, None] + np.zeros((10, 4), int)
    packed = Batch(*[rows] * len(Batch._fields))
    batches = [train_sft.next_batch(packed, config, step).tokens for step in range(5)]
    assert batches[0].shape == (2, 3, 4)
    order = np.concatenate([batch[..., 0].ravel() for batch in batches])
    for epoch in range(3):  # every row once a pass, each pass in another order
        assert sorted(order[10 * epoch : 10 * epoch + 10]) == list(range(10))
    assert (order[:10] != order[10:20]).any()
    np.testing.assert_array_equal(
        train_sft.next_batch(packed, config, 3).tokens, batches[3]
    )


def test_the_tasks_of_a_step_are_named_by_seed_and_step():
    from evoharness_jax.envs import counter

    config = runs.config(
        "alfworld_rl", changes={"rollout.tasks": 5, "rollout.group": 2}
    )
    domain = counter.make()
    split = domain.tasks("train")
    steps = [train_rl.tasks_of(config, split, step) for step in range(10)]
    assert all(tasks[::2] == tasks[1::2] for tasks in steps)
    order = [task for tasks in steps for task in tasks[::2]]
    assert sorted(order[: len(split)]) == list(split)
    assert order[: len(split)] != order[len(split) : 2 * len(split)]


def last_touched(where):
    files = (where / "checkpoints").rglob("*")
    return {path: path.stat().st_mtime_ns for path in files}
