"""Whatever is wrong with the input, the message says what, and where."""

import fcntl
import json

import pytest

import runs
from evoharness_jax import cli, collect, evaluate, train_rl, train_sft
from evoharness_jax.envs import counter
from evoharness_jax.envs.alfworld import domain as alfworld
from evoharness_jax.rollout.summary import games

EPISODES = "data.episodes"


def command(config="alfworld_sft", arg=runs.COUNTER, *more, **changes):
    return [*runs.command(config, arg, changes), *more]


@pytest.mark.parametrize(
    "words, message",
    [
        (command(), "error: flag --workdir=None: Flag --workdir must have a value"),
        (
            command() + ["--config.optim.lrr=1"],
            "error: --config.optim.lrr=1: the config has no 'lrr'; did you mean 'lr'?",
        ),
        (
            command() + ["--config.optm.lr=1"],
            "--config.optm.lr=1: the config has no 'optm'; did you mean 'optim'?",
        ),
        (
            command() + ["--config.optim.steps=abc"],
            "error: flag --config.optim.steps=abc: invalid literal for int()",
        ),
        (
            command() + ["--config.optim.steps=2.5"],
            "error: flag --config.optim.steps=2.5: invalid literal for int()",
        ),
        (
            command(arg="env=counter,modle=counter-tiny"),
            "config argument 'modle' is unknown; known are debug, env, lora, mode, mod",
        ),
        (
            command(arg="env=counter,debug=perhaps"),
            "config argument debug='perhaps': true or false",
        ),
        (["--config=no/such.py"], "error: --config: there is no file no/such.py"),
        (command() + ["--workdir={folder}/file"], "--workdir: {folder}/file is a file"),
        (command() + ["--workdir={folder}/run", "stray"], "what is stray?"),
    ],
    ids=lambda value: "" if isinstance(value, str) else value[-1].partition("/")[0],
)
def test_a_wrong_command_line_ends_in_one_line_that_names_it(words, message, tmp_path):
    (tmp_path / "file").touch()
    words = [word.format(folder=tmp_path) for word in words]
    ended = runs.call("collect", words)
    assert ended.code == 1
    assert message.format(folder=tmp_path) in ended.last
    assert "Traceback" not in ended.output
    assert not (tmp_path / "run" / "collect.json").exists()


def test_what_a_run_refuses_is_one_line_and_the_traceback_a_file(tmp_path):
    words = command(arg="env=chess") + [f"--workdir={tmp_path}"]
    ended = runs.call("collect", words)
    assert ended.code == 1
    assert ended.last == (
        "error: env.name: 'chess', not one of alfworld, counter  "
        f"(traceback: {tmp_path}/error.txt)"
    )
    assert "Traceback" not in ended.output
    assert "ValueError: env.name" in (tmp_path / "error.txt").read_text()


# Configs.


@pytest.mark.parametrize(
    "arg, changes, message",
    [
        ("env=counter,mode=inlin", {}, "mode: 'inlin', not one of inline, env_only"),
        (runs.COUNTER, {"env.regime": "both"}, "regime: 'both', not one of per_turn"),
        (runs.COUNTER, {"rules.max_turns": 0}, "rules.max_turns must be at least 1: 0"),
        (runs.COUNTER, {"rules.top_k": 9}, "rules.top_k must lie between 1 and 8: 9"),
        (runs.COUNTER, {"collect.split": "dev"}, "counter has no split 'dev', only"),
        (runs.COUNTER, {"bank.path": "/no/bank"}, "bank.path: no bank under /no/bank"),
    ],
)
def test_a_setting_that_cannot_be_is_named(arg, changes, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        collect.run(runs.config("alfworld_sft", arg, changes), str(tmp_path))


@pytest.mark.parametrize(
    "arg, changes, message",
    [
        ("", {"model.name": "gpt"}, "model.name: 'gpt', not one of qwen3-0.6b, qw"),
        ("", {"optim.schedule": "flat"}, "optim.schedule: 'flat', not constant or"),
        ("", {"data.length": 32}, r"data.length: 32 ids do not hold a row of \d+"),
        (
            ",regime=append",
            {},
            "env.regime = 'per_turn', this run has 'append'",
        ),
    ],
)
def test_fine_tuning_names_what_does_not_fit(arg, changes, message, tmp_path):
    changes = runs.SFT | {EPISODES: runs.sft() / "collect"} | changes
    config = runs.config("alfworld_sft", runs.COUNTER + arg, changes)
    with pytest.raises(ValueError, match=message):
        train_sft.run(config, str(tmp_path))


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"collect.student": "/no/run"}, "/no/run is not a run: it has no checkpoints"),
        (
            {"collect.student": "embedded"},
            "collect.student: .* was trained on alfworld",
        ),
        (
            {"collect.student": "SFT", "collect.student_share": 0.0},
            r"collect.student_share must lie in \(0, 1\]: 0.0",
        ),
    ],
)
def test_a_student_that_cannot_play_is_named(changes, message, tmp_path):
    changes = {k: runs.sft() if v == "SFT" else v for k, v in changes.items()}
    config = runs.config("alfworld_sft", changes=runs.SFT | changes)
    with pytest.raises(ValueError, match=message):
        collect.run(config, str(tmp_path))


def test_episodes_of_a_folder_without_any_are_named(tmp_path):
    config = runs.config("alfworld_sft", changes={EPISODES: tmp_path})
    with pytest.raises(ValueError, match=f"data.episodes: {tmp_path} holds no fini"):
        train_sft.run(config, str(tmp_path / "run"))


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"model.init": ""}, "model.init: name the run or weights to start from"),
        ({"model.init": "/no/run"}, "model.init: /no/run is neither a run"),
        ({"rollout.temperature": 0.0}, "rollout.temperature: a greedy rollout"),
        ({"rollout.group": 1}, "rollout.group: an advantage compares .* at least 2: 1"),
        (
            {"advantage.estimator": "ppo"},
            "advantage.estimator: 'ppo', not one of grpo, rloo, dr_grpo, gigpo",
        ),
        (
            {"advantage.estimator": "gigpo", "env.regime": "append"},
            "advantage.estimator: 'gigpo' compares turns, .* 'per_turn': 'append'",
        ),
        (
            {"advantage.uniform": "mask"},
            "advantage.uniform: 'mask', not one of rule, p",
        ),
        ({"loss.objective": "ppo"}, "loss.objective: 'ppo', not one of clip, gspo"),
        ({"loss.average": "rows"}, "loss.average: 'rows', not one of tokens, sequ"),
        ({"loss.kl_in": "both"}, "loss.kl_in: 'both', not one of loss, reward"),
        ({"loss.kl_kind": "k4"}, "loss.kl_kind: 'k4', not one of k1, k2, k3"),
        (
            {"reward.diversity_kind": "new"},
            "reward.diversity_kind: 'new', not one of co",
        ),
        ({"data.length": 128}, r"data.length: .* model.context = \d+ ids: 128"),
        (
            {"model.context": 64},
            "model.context: 64 ids hold no first .*model.response = 12",
        ),
    ],
)
def test_policy_gradient_names_what_does_not_fit(changes, message, tmp_path):
    config = runs.config("alfworld_rl", changes=runs.rl_settings() | changes)
    with pytest.raises(ValueError, match=message):
        train_rl.run(config, str(tmp_path))


def test_a_checkpoint_of_another_model_is_named_with_the_difference(tmp_path):
    arg = "env=counter,model=household-tiny,debug"
    config = runs.config("alfworld_rl", arg, {"model.init": runs.sft()})
    message = f"{runs.sft()} is of another model: heads 2 instead of 4, .*width 64 inst"
    with pytest.raises(ValueError, match=message):
        train_rl.run(config, str(tmp_path))


@pytest.mark.parametrize(
    "arg, changes, message",
    [
        (
            "",
            {},
            "checkpoint: .*embedded-sft was trained on alfworld, env.name is coun",
        ),
        (",checkpoint=", {}, "checkpoint: name the run to evaluate, checkpoint=RUN"),
        (",checkpoint=/no/run", {}, "/no/run is not a run: it has no checkpoints"),
        (",policy=oracle", {}, "policy: 'oracle', not one of model, teacher, random"),
        (",policy=teacher,split=dev", {}, "counter has no split 'dev', only train, te"),
    ],
)
def test_evaluation_names_what_is_not_there(arg, changes, message, tmp_path):
    config = runs.config("alfworld_eval", "env=counter,debug" + arg, changes)
    with pytest.raises(ValueError, match=message):
        evaluate.run(config, str(tmp_path))


def test_a_prompt_that_does_not_fit_the_context_stops_an_evaluation(tmp_path):
    arg = f"env=counter,debug,checkpoint={runs.sft()}"
    changes = runs.EVALUATION | {"model.context": 32, "evaluate.games": 2}
    with pytest.raises(ValueError, match="model.context: 32 ids hold no first prompt"):
        evaluate.run(runs.config("alfworld_eval", arg, changes), str(tmp_path))
    assert not (tmp_path / "summary.json").exists()


# Games.


def household(folder, split="valid_seen", data=None):
    """Evaluate the teacher on the games under a folder."""
    changes = {
        "env.engine": "textworld",
        "env.workers": 1,
        "env.cache": folder / "cache",
        "env.data": data or "",
    }
    config = runs.config("alfworld_eval", f"policy=teacher,split={split}", changes)
    return evaluate.run(config, str(folder))


def test_missing_data_is_named(tmp_path, monkeypatch):
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    with pytest.raises(ValueError, match="set ALFWORLD_DATA"):
        household(tmp_path)
    monkeypatch.setenv("ALFWORLD_DATA", "/no/data")
    with pytest.raises(ValueError, match="no ALFWorld data: /no/data is not a folder"):
        household(tmp_path)


def test_a_split_without_games_is_named(tmp_path):
    data = tmp_path / "data"
    (data / "json_2.1.1" / "valid_seen").mkdir(parents=True)
    with pytest.raises(ValueError, match=f"split='valid_seen' in {data}/.*no game fil"):
        household(tmp_path, data=data)
    with pytest.raises(ValueError, match=f"split='test' in {data}, there are: valid_s"):
        household(tmp_path, "test", data)


def test_a_broken_game_is_named_in_its_record_and_counted(tmp_path):
    trial = tmp_path / "json_2.1.1/valid_seen/pick_and_place_simple-Mug-Shelf-1/trial_1"
    trial.mkdir(parents=True)
    (trial / "traj_data.json").write_text("{}")
    problem = {"pddl_domain": "", "grammar": "", "pddl_problem": "(", "solvable": True}
    (trial / "game.tw-pddl").write_text(json.dumps(problem))
    summary = household(tmp_path, data=tmp_path)
    assert (summary["errors"], summary["success"], summary["n"]) == (1, 0.0, 1)
    (record,) = collect.read_episodes(tmp_path / "episodes.jsonl")
    assert str(trial / "game.tw-pddl") in record["error"]
    assert games([record])[0]["error"] == record["error"]


def test_an_unknown_task_type_is_named():
    with pytest.raises(ValueError, match="not a counter objective: 'win at chess'"):
        counter.task_type("win at chess")
    with pytest.raises(ValueError, match="win at chess"):
        alfworld.task_type("win at chess")


# In the middle of a run.


def test_a_full_disk_leaves_the_checkpoint_before_it_good(tmp_path):
    """A file may have fewer bytes than the arrays: any write of them fails."""
    settings = runs.short_settings()
    where = [f"--workdir={tmp_path}"]
    half = runs.command("alfworld_sft", runs.COUNTER, settings)
    stopped = runs.call("train_sft", half + where, kill_at=("open", "metrics.jsonl", 3))
    assert (stopped.code, runs.steps(tmp_path)) == (-9, [2])
    full = runs.call("train_sft", half + where, file_limit=1 << 18)
    assert full.code == 1
    assert (
        f"error: checkpoint of step 4 under {tmp_path}/checkpoints could not be "
        "written, step 2 stays good"
    ) in full.output
    assert "File too large" in full.output
    assert runs.steps(tmp_path) == [runs.HALF, 2]
    train_sft.run(runs.config("alfworld_sft", changes=settings), str(tmp_path))
    assert runs.left_behind(tmp_path) == runs.left_behind(runs.short())


def test_a_loss_that_is_not_finite_stops_and_names_the_last_checkpoint(tmp_path):
    changes = {"optim.lr": 1e30, "optim.warmup": 0, "checkpoint.every": 1}
    config = runs.config("alfworld_sft", changes=runs.short_settings() | changes)
    message = (
        "loss or gradient of step 2 is not finite; the last good checkpoint is step 1 "
        f"under {tmp_path}/checkpoints"
    )
    with pytest.raises(ValueError, match=message):
        train_sft.run(config, str(tmp_path))
    assert runs.steps(tmp_path) == [1]
    assert [line["step"] for line in runs.lines(tmp_path)] == [1]


def finished(where) -> list[str]:
    """Make an evaluation, and return the flags to do it once more."""
    flags = runs.command("alfworld_eval", "env=counter,policy=random", {})
    assert runs.call("evaluate", [*flags, f"--workdir={where}"]).code == 0
    return flags


def test_a_folder_with_other_results_is_left_as_it_is(tmp_path):
    flags = finished(tmp_path)
    before = (tmp_path / "config.json").read_text()
    again = [*flags, f"--workdir={tmp_path}"]
    other = runs.call("evaluate", [*again, "--config.seed=1"])
    assert other.code == 1
    assert "holds a run with seed = 0, this one has 1; give it" in other.last
    stage = runs.command("alfworld_sft", runs.COUNTER, {})
    other = runs.call("train_sft", [*stage, f"--workdir={tmp_path}"])
    assert "holds a run with " in other.last and other.code == 1
    assert (tmp_path / "config.json").read_text() == before
    assert runs.call("evaluate", again).code == 0  # the same once more is welcome


def test_two_commands_do_not_share_a_folder(tmp_path):
    flags = runs.command("alfworld_eval", "env=counter,policy=random", {})
    with (tmp_path / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        second = runs.call("evaluate", [*flags, f"--workdir={tmp_path}"])
    assert second.code == 1
    assert f"another command is at work in {tmp_path}" in second.last


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"evaluate.games": -1}, "evaluate.games must be at least 0: -1"),
        ({"model.response": 0}, "model.response must be at least 1: 0"),
        ({"rules.max_tokens": -5}, "rules.max_tokens must be at least 0: -5"),
    ],
)
def test_numbers_that_are_too_small_are_named(changes, words):
    with pytest.raises(ValueError, match=words):
        cli.check(runs.config("alfworld_eval", "env=counter", changes), ())


def test_a_config_of_another_stage_is_named():
    with pytest.raises(ValueError, match="no section 'data'; is it one of another"):
        cli.check(runs.config("alfworld_eval", "env=counter"), ("data",))


def test_a_split_to_evaluate_on_is_looked_for_before_training(tmp_path):
    settings = runs.config(
        "alfworld_rl", changes=runs.rl_settings() | {"evaluate.split": "elsewhere"}
    )
    with pytest.raises(ValueError, match="no split 'elsewhere'"):
        runs.make(train_rl.run, settings, tmp_path)
    assert not (tmp_path / "metrics.jsonl").exists()


@pytest.mark.parametrize("habit", ["noise", "thrift"])
def test_the_counters_teacher_has_no_habits(tmp_path, habit):
    settings = runs.config("alfworld_sft", changes={f"collect.{habit}": 0.5})
    said = f"collect.{habit}: the teacher of counter has no such habit"
    with pytest.raises(ValueError, match=said):
        runs.make(collect.run, settings, tmp_path)
