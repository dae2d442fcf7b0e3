"""The entry points, end to end on the counter, and the config files they read."""

import json
import math
import os
import subprocess
import sys

import pytest
from absl import flags

import runs
from evoharness_jax import collect, evaluate, train_rl, train_sft
from evoharness_jax.envs import counter
from evoharness_jax.experience import bank
from evoharness_jax.rollout import record as record_

CONFIGS = ("alfworld_sft", "alfworld_rl", "alfworld_eval")
SUMMARY = """
    success wins n interval by_type steps calls tokens tokens_per_win invalid seconds
    games seed config versions
""".split()
STEP = """
    reward/total reward/success reward/efficiency reward/invalid reward/spam
    env/success env/turns env/steps env/tokens env/errors env/dropped env/invalid
    calls/total calls/track calls/commit calls/recall calls/note
    groups/mixed groups/all_won groups/all_failed loss/policy loss/kl loss/entropy
    policy/kl policy/ratio policy/clip_fraction policy/entropy policy/sampler_gap
    optim/lr optim/grad_norm optim/finite data/fill data/tokens bank/entries
    time/env time/text time/policy time/bpe time/score time/update time/step
""".split()


@pytest.fixture(scope="module")
def evaluated():
    """Evaluate the run before and after policy gradient; return the two folders."""
    folders = []
    for run in (runs.sft(), runs.rl()):
        folders.append(runs.folder())
        arg = f"env=counter,checkpoint={run}"
        config = runs.config("alfworld_eval", arg, runs.EVALUATION)
        runs.make(evaluate.run, config, folders[-1])
    return folders


def files(folder):
    return {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}


def test_every_stage_writes_its_files(evaluated):
    sft, rl, (before, after) = runs.sft(), runs.rl(), evaluated
    collected = {"collect.json", "episodes-0.jsonl", "bank/HEAD"}
    assert collected <= files(sft / "collect")
    trained = {"config.json", "metrics.jsonl", "tokenizer/tokenizer.json", "bank/HEAD"}
    assert trained <= files(sft)
    assert trained | {"episodes/000001.jsonl", "episodes/000002.jsonl"} <= files(rl)
    assert (runs.steps(sft), runs.steps(rl)) == ([40], [1, 2])
    for folder in (before, after):
        assert files(folder) == {"config.json", "summary.json", "episodes.jsonl"}
    for folder in (sft, rl, before, after):
        json.loads((folder / "config.json").read_text())


def test_fine_tuning_goes_on_with_the_bank_of_the_teacher_and_learns():
    sft = runs.sft()
    assert bank.read(sft / "bank") == bank.read(sft / "collect" / "bank")
    lines = runs.lines(sft)
    assert [line["step"] for line in lines] == [10, 20, 30, 40]
    assert lines[-1]["loss/sft"] < lines[0]["loss/sft"] / 3
    assert lines[-1]["loss/held_out"] < 1.0


def test_a_teacher_corrects_what_a_student_does(tmp_path):
    """The student plays, every turn has what the teacher would have done."""
    changes = runs.SFT | {
        "collect.student": runs.sft(),
        "collect.repeats": 1,
        "collect.games": 12,
        "collect.batch": 4,
        "model.context": 256,
    }
    settings = runs.config("alfworld_sft", changes=changes)
    runs.make(collect.run, settings, tmp_path)
    records = collect.last_episodes(str(tmp_path))
    assert len(records) == 12
    assert {r["policy"] for r in records} == {"model, corrected by teacher"}
    turns = [turn for record in records for turn in record["turns"]]
    corrected = [turn for turn in turns if "label" in turn]
    assert 0 < len(corrected) < len(turns)
    assert all(turn["label"].startswith("<action>") for turn in corrected)
    # Both kinds of episodes together are what a student goes on from.
    both = f"{runs.sft() / 'collect'}:{tmp_path}"
    count = len(collect.last_episodes(str(runs.sft() / "collect")))
    assert len(collect.last_episodes(both)) == count + 12


def test_a_step_of_policy_gradient_has_its_numbers():
    sft, rl = runs.sft(), runs.rl()
    first, last = runs.metrics.read(rl)
    assert set(STEP) <= set(first)
    assert {"eval/success", "eval/calls", "eval/turns", "eval/tokens"} <= set(last)
    assert all(math.isfinite(value) for value in last.values())
    assert first["groups/mixed"] + last["groups/mixed"] > 0  # or nothing was learned
    assert first["policy/ratio"] == pytest.approx(1.0, abs=1e-4)
    assert first["policy/kl"] == pytest.approx(0.0, abs=1e-6)
    # The first version is what fine-tuning left, the next ones count what was recalled.
    old, new = bank.read(sft / "bank"), bank.read(rl / "bank")
    assert [e.text for e in new.entries] == [e.text for e in old.entries]
    assert sum(e.uses for e in new.entries) > sum(e.uses for e in old.entries)


def test_a_summary_has_every_number_and_every_game_once_in_order(evaluated):
    for folder in evaluated:
        summary = json.loads((folder / "summary.json").read_text())
        assert set(SUMMARY) <= set(summary)
        assert set(summary["calls"]) == {"track", "commit", "recall", "note"}
        split = [task.id for task in counter.make().tasks("test")]
        assert [game["task"] for game in summary["games"]] == sorted(split)
        records = collect.read_episodes(folder / "episodes.jsonl")
        assert [record["task"] for record in records] == sorted(split)
        assert summary["n"] == len(split)
        assert summary["wins"] == sum(record["won"] for record in records)
        assert summary["success"] == summary["wins"] / summary["n"]
        low, high = summary["interval"]
        assert low <= summary["success"] <= high
        kinds = summary["by_type"].values()
        assert sum(kind["n"] for kind in kinds) == summary["n"]
        assert summary["config"]["evaluate"]["split"] == "test"
        assert {"evoharness_jax", "jax", "python"} <= set(summary["versions"])


def test_two_evaluations_of_a_run_are_equal(evaluated, tmp_path):
    summary = json.loads((evaluated[0] / "summary.json").read_text())
    arg = f"env=counter,checkpoint={runs.sft()}"
    config = runs.config("alfworld_eval", arg, runs.EVALUATION)
    again = json.loads(json.dumps(runs.make(evaluate.run, config, tmp_path)))
    for found in (summary, again):
        del found["seconds"], found["seconds_by_phase"]
    assert again == summary
    episodes = [f / "episodes.jsonl" for f in (evaluated[0], tmp_path)]
    assert episodes[0].read_bytes() == episodes[1].read_bytes()


def test_every_record_replays_bit_for_bit(evaluated):
    kept = [
        (evaluated[1] / "episodes.jsonl", runs.rl() / "bank"),
        (runs.sft() / "collect" / "episodes-0.jsonl", None),
    ]
    for path, folder in kept:
        entries = bank.from_lessons(counter.make().manual)
        if folder:
            entries = bank.read(folder).entries
        for record in collect.read_episodes(path)[:3]:
            arrays, words = bank.arrays(entries, record["setting"]["entries"])
            _, final, every = record_.replay(counter.make(), arrays, words, record)
            assert record_.digest(final) == record["digest"]
            assert record_.digest(record_.pick(every, -1)) == record["digest"]


@pytest.mark.parametrize("mode", ["inline", "env_only", "always_on"])
@pytest.mark.parametrize("regime", ["per_turn", "append"])
def test_a_model_plays_in_every_regime_and_mode(regime, mode, tmp_path):
    arg = f"env=counter,checkpoint={runs.sft()},regime={regime},mode={mode}"
    changes = runs.EVALUATION | {"evaluate.games": 3}
    summary = evaluate.run(runs.config("alfworld_eval", arg, changes), str(tmp_path))
    assert summary["n"] == 3
    assert summary["turns"] > 1
    if mode != "inline":
        assert summary["calls_total"] == 0
    record = collect.read_episodes(tmp_path / "episodes.jsonl")[0]
    style, turns = record["setting"]["style"], record["turns"]
    assert (style["regime"], style["mode"]) == (regime, mode)
    assert ("plan: " in turns[0]["prompt"]) == (mode == "always_on")
    # A fresh prompt says what was done; in a growing one it can be read.
    assert ("did: " in turns[1]["prompt"]) == (regime == "per_turn")


def test_both_stages_train_on_growing_episodes(tmp_path):
    """Short ones, that the shapes above hold."""
    arg = runs.COUNTER + ",regime=append"
    sft, rl = tmp_path / "sft", tmp_path / "rl"
    changes = runs.SFT | {"optim.steps": 2, "rules.max_turns": 2}
    changes |= {"data.only_won": False, "collect.games": 8}
    last = runs.make(train_sft.run, runs.config("alfworld_sft", arg, changes), sft)
    assert math.isfinite(last["loss/held_out"])
    changes = runs.RL | {"model.init": runs.sft(), "optim.steps": 1}
    changes |= {"rules.max_turns": 4, "train.evaluate_every": 0}
    last = runs.make(train_rl.run, runs.config("alfworld_rl", arg, changes), rl)
    assert last["env/errors"] == 0
    assert last["policy/ratio"] == pytest.approx(1.0, abs=1e-4)
    (episode, *_) = collect.read_episodes(rl / "episodes" / "000001.jsonl")
    assert episode["num_turns"] > 1


@pytest.mark.parametrize("policy", ["teacher", "random"])
def test_policies_without_a_model_are_evaluated_too(policy, tmp_path):
    config = runs.config("alfworld_eval", f"env=counter,policy={policy},debug")
    summary = evaluate.run(config, str(tmp_path))
    assert (summary["policy"], summary["n"]) == (policy, 8)
    assert (summary["calls_total"] > 0) == (policy == "teacher")


# Config files.


@pytest.mark.parametrize("debug", ["", "debug"])
@pytest.mark.parametrize("name", CONFIGS)
def test_a_config_file_loads_and_is_locked(name, debug):
    config = runs.config(name, debug)
    assert config.env.name == "alfworld"
    assert config.is_locked and config.is_type_safe
    with pytest.raises(AttributeError):
        config.optm = 1
    with pytest.raises(TypeError):
        config.rules.max_turns = "many"


def test_every_config_file_is_tried():
    files = {path.stem for path in (runs.ROOT / "configs").glob("*.py")}
    assert files == {*CONFIGS, "common", "quickstart", "__init__"}


def test_the_quickstart_has_a_config_for_each_of_its_stages():
    rl, after, sft = (runs.config("quickstart", s) for s in ("rl", "evaluate", "sft"))
    assert (rl.model.init, rl.optim.steps) == ("embedded-sft", 7)
    assert (after.checkpoint, after.evaluate.games) == ("embedded", 0)
    assert sft.collect.noise > 0 and sft.data.only_won
    with pytest.raises(flags.Error, match="stage 'all' is unknown; known are rl, eval"):
        runs.config("quickstart", "all")


@pytest.mark.parametrize("name", CONFIGS)
def test_arguments_reach_their_lines(name):
    arg = "env=counter,model=qwen3-8b,mode=always_on,regime=append"
    config = runs.config(name, arg, {"rules.max_turns": 9})
    assert (config.env.name, config.model.name) == ("counter", "qwen3-8b")
    assert (config.env.mode, config.env.regime) == ("always_on", "append")
    assert config.rules.max_turns == 9


def test_debug_is_smaller():
    for name in ("alfworld_sft", "alfworld_rl"):
        for env in ("alfworld", "counter"):
            whole, small = (runs.config(name, f"env={env}{d}") for d in ("", ",debug"))
            assert small.optim.steps < whole.optim.steps


def test_a_config_is_found_from_any_folder(tmp_path):
    file = os.path.relpath(runs.ROOT / "configs" / "alfworld_eval.py", tmp_path)
    words = [f"--config={file}:env=counter,policy=teacher,debug", "--workdir=here/it"]
    done = subprocess.run(
        [sys.executable, "-m", "evoharness_jax.evaluate", *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "of 8 won" in done.stdout
    assert {"config.json", "summary.json"} <= files(tmp_path / "here" / "it")
