"""From rollouts to advantages; whole steps with each plug-in, and as the original."""

import itertools

import numpy as np
import pytest

import runs
from evoharness_jax import judging, train_rl
from evoharness_jax.rollout import prompt
from evoharness_jax.train import advantages, policy_gradient, reward
from evoharness_jax.types import ENV, NULL, Turns

REFERENCE = runs.COUNTER + ",reference"


def test_a_place_is_the_tail_without_the_way_there():
    tail = "now: a door\ncan: open door\nplan: [ ] get out"
    assert prompt.place(f"did: look; wait\n{tail}") == tail
    assert prompt.place(tail) == tail
    assert prompt.place("did: look") == ""
    # Only the way there is left out, not what was seen or noted to begin alike.
    assert prompt.place("now: he\ndid: nothing") == "now: he\ndid: nothing"


def asked(*prompts):
    return {"turns": [{"prompt": words, "response": ""} for words in prompts]}


def test_anchors_are_numbered_within_a_group():
    one = asked("now: a", "did: x\nnow: b\nplan: [ ] p", "did: x; y\nnow: a")
    two = asked("now: a", "did: z\nnow: b", "did: z\nnow: b\nplan: [ ] p")
    other = asked("now: a", "did: x\nnow: b")
    cut = asked("now: a")
    cut["turns"].append({"prompt": "now: a"})  # nothing was answered
    # a and b; b with a plan is another place than b; the next group has its own.
    np.testing.assert_array_equal(
        judging.anchors([one, two, other, cut], group=2, turns=4),
        [[0, 1, 0, -1], [0, 2, 1, -1], [3, 4, -1, -1], [3, -1, -1, -1]],
    )


def outcomes(turns, *, won=None, error=None, width=3):
    """Episodes of so many valid turns, each of an action of its own."""
    turns = np.array(turns, np.int32)
    there = np.arange(width) < turns[:, None]
    none = np.zeros(len(turns), bool)
    return reward.Outcomes(
        won=none if won is None else np.array(won),
        error=none if error is None else np.array(error),
        turns=turns,
        env_steps=turns,
        tokens=turns,
        verbs=np.where(there, ENV, NULL).astype(np.int8),
        actions=np.where(there, np.arange(width), -1).astype(np.int32),
        valid=there,
        executed=there,
        leading=np.where(there, np.arange(width), -1).astype(np.int32),
    )


def test_what_was_written_adds_up_by_turn():
    rows = [np.array(row, np.float32) for row in ([9, 1, 2], [9, 4], [9, 9, 8])]
    turns = Turns(
        tokens=[np.zeros(len(row), np.int32) for row in rows],
        response_mask=[np.array(m, bool) for m in ([0, 1, 1], [0, 1], [0, 0, 1])],
        logp=rows,
        raw_logp=rows,
        episode=np.array([0, 0, 1], np.int32),
        turn=np.array([0, 2, 1], np.int32),
        policy_version=np.zeros(3, np.int32),
    )
    table = judging.by_turn(rows, turns, outcomes([3, 2]))
    np.testing.assert_array_equal(table, [[3, 0, 4], [0, 8, 0]])
    table = judging.by_turn(rows, turns, outcomes([3, 2], error=[False, True]))
    np.testing.assert_array_equal(table, [[3, 0, 4], [0, 0, 0]])


def test_a_distance_is_charged_to_its_episode_and_its_turn():
    # Two episodes of one turn, one won: 10 + 1 - 1/7 against 0. .1 x 5 nats are charged
    # to the first, half of them would be: 10.357 against 0.
    changes = {"rollout.group": 2, "loss.kl_coef": 0.1, "reward.diversity": 0.0}
    changes |= {"advantage.estimator": "gigpo", "advantage.discount": 1.0}
    config = runs.config("alfworld_rl", changes=changes)
    kl = np.array([[5, 0, 0], [0, 0, 0]], np.float32)
    anchor = np.array([[0, -1, -1], [0, -1, -1]], np.int32)
    episodes = outcomes([1, 1], won=[True, False])
    total, parts, advantage, numbers = judging.judge(
        config, episodes, 0, anchor=anchor, kl=kl
    )
    np.testing.assert_allclose(total, [11 - 1 / 7 - 0.5, 0], rtol=1e-6)
    np.testing.assert_allclose(parts["kl"], [-0.5, 0])
    assert numbers["reward/kl"] == -0.25
    assert numbers["groups/anchored"] == 1.0
    half = np.sqrt(0.5)  # two values, whatever their distance, in each comparison
    np.testing.assert_allclose(advantage[:, 0], [2 * half, -2 * half], rtol=1e-5)
    # Both lost: the distance alone, over the fixed scale .25: +-.25 / .25, twice.
    _, _, advantage, _ = judging.judge(
        config, outcomes([1, 1]), 0, anchor=anchor, kl=kl
    )
    np.testing.assert_allclose(advantage[:, 0], [-2, 2], rtol=1e-5)


def test_a_constant_is_of_an_updates_share_of_the_episodes():
    changes = {"rollout.tasks": 4, "rollout.group": 8, "data.updates": 2}
    changes |= {"loss.average": "constant", "loss.episode_tokens": 100}
    settings = train_rl.loss_settings(runs.config("alfworld_rl", changes=changes))
    assert settings.constant == 1600.0
    changes = {"loss.kl_in": "reward"}
    settings = train_rl.loss_settings(runs.config("alfworld_rl", changes=changes))
    assert settings.kl_coef == 0.0


# The original.


@pytest.mark.parametrize("arg", ["", "env=counter,", "lora=8,"])
def test_reference_is_what_the_original_does(arg):
    config = runs.config("alfworld_rl", arg + "reference")
    weights = judging._weights(config)
    assert weights == reward.REFERENCE
    assert (weights.success, weights.efficiency, weights.diversity) == (10, 1, 1)
    assert (weights.spam, weights.spam_cap, weights.invalid) == (0.1, 10, 0.1)
    assert weights.anneal_steps == 150
    assert weights.diversity_kind == "verb_ratio"
    assert set(config.reward.prices.values()) == {1.0}
    settings = config.advantage.to_dict()
    assert settings.items() >= advantages.REFERENCE.items()
    assert settings["estimator"] == "grpo"
    settings = train_rl.loss_settings(config)
    rest = {"constant": settings.constant, "old": settings.old}
    for name, value in vars(policy_gradient.REFERENCE).items():
        assert getattr(settings, name) == rest.get(name, value), name
    assert (settings.clip_low, settings.clip_high, settings.dual_clip) == (0.2, 0.2, 3)
    assert (settings.kl_kind, settings.kl_coef) == ("k1", 0.01)
    assert (settings.entropy_coef, settings.average) == (0.001, "tokens")
    assert config.loss.kl_in == "loss"
    assert (config.rollout.tasks, config.rollout.group) == (16, 8)
    assert (config.rollout.temperature, config.rollout.top_p) == (1.0, 1.0)
    assert config.rules.top_k == 3 and config.rules.charge
    assert config.rules.max_turns == (7 if "counter" in arg else 70)
    assert (config.optim.weight_decay, config.optim.clip_norm) == (0.01, 1.0)
    assert (config.optim.schedule, config.optim.warmup) == ("constant", 0)
    assert (config.train.evaluate_every, config.checkpoint.every) == (5, 5)


def test_reference_has_the_originals_learning_rate_for_its_model():
    arg = "model=qwen3-8b"
    rates = [
        runs.config("alfworld_rl", f"{arg}{more},reference").optim.lr
        for more in ("", ",lora=16")
    ]
    assert rates[0] == 1e-6
    # An adapter, or a small model, is trained at the rate of its own.
    assert rates[1] == runs.config("alfworld_rl", f"{arg},lora=16").optim.lr
    small = [runs.config("alfworld_rl", a).optim.lr for a in ("", "reference")]
    assert small[0] == small[1]


def test_only_the_policy_gradient_knows_the_argument():
    assert not runs.config("alfworld_rl").loss.kl_kind == "k1"
    for name in ("alfworld_sft", "alfworld_eval"):
        with pytest.raises(Exception, match="config argument 'reference' is unknown"):
            runs.config(name, "reference")


# Whole steps.


def steps(where, arg=runs.COUNTER, **changes):
    """Make two steps from a fine-tuned model; return their metrics."""
    small = runs.RL | {"model.init": runs.sft(), "train.evaluate_every": 0}
    small["rollout.tasks"] = 4  # enough for groups that differ
    changes = small | {name.replace("__", "."): v for name, v in changes.items()}
    runs.make(train_rl.run, runs.config("alfworld_rl", arg, changes), where)
    lines = runs.lines(where)
    assert len(lines) == 2
    numbers = itertools.chain.from_iterable(line.values() for line in lines)
    assert np.isfinite([float(n) for n in numbers]).all()
    assert lines[0]["groups/mixed"] + lines[1]["groups/mixed"] > 0
    for line in lines:
        assert line["optim/grad_norm"] > 0 or line["groups/mixed"] == 0
    return lines


def test_a_step_as_the_original_makes_it(tmp_path):
    first, last = steps(tmp_path, REFERENCE, data__rows=4, reward__diversity=1.0)
    assert first["reward/diversity"] > 0
    # Many updates a rollout: by the last of them the ratio has moved.
    assert first["policy/ratio"] != 1.0
    assert {"loss/kl", "loss/policy", "loss/entropy"} <= set(last)
    assert runs.steps(tmp_path) == [1, 2]


def test_steps_of_gigpo_and_gspo_with_the_distance_in_the_reward(tmp_path):
    first, last = steps(
        tmp_path,
        advantage__estimator="gigpo",
        loss__objective="gspo",
        loss__average="sequences",
        loss__kl_in="reward",
        loss__kl_coef=0.1,
        loss__sampler_cap=2.0,
    )
    # The first policy is the reference.
    assert first["reward/kl"] == 0.0 and last["reward/kl"] != 0.0
    assert "loss/kl" not in first
    # Every row is one sequence, and all the episodes of a task begin at one place.
    assert first["loss/weight"] == pytest.approx(16 * first["env/turns"], rel=1e-4)
    assert first["groups/anchored"] > 0
    assert first["policy/ratio"] == pytest.approx(1.0, abs=1e-4)
    assert first["policy/sampler_weight"] == pytest.approx(1.0, abs=0.05)


@pytest.mark.parametrize("estimator", ["rloo", "dr_grpo"])
def test_steps_without_a_deviation(estimator, tmp_path):
    first, _ = steps(
        tmp_path,
        advantage__estimator=estimator,
        loss__average="constant" if estimator == "dr_grpo" else "tokens",
        loss__kl_coef=0.0,
    )
    assert first["policy/ratio"] == pytest.approx(1.0, abs=1e-4)
