"""Runs that train an adapter: what they leave, how they go on, what plays then."""

import dataclasses
import json
import shutil

import jax
import numpy as np
import pytest

import runs
from evoharness_jax import (
    build,
    checkpoint,
    evaluate,
    export,
    mesh,
    parameters,
    train_rl,
    train_sft,
)
from evoharness_jax.models import lora, peft, qwen3, weights

ARG = f"{runs.COUNTER},lora=4"
STEPS = {"optim.steps": 2, "optim.lr": 1e-2, "checkpoint.every": 1}


def settings(**more):
    return runs.short_settings() | STEPS | {"model.init": runs.sft()} | more


@pytest.fixture(scope="module")
def tuned():
    """A fine-tuned adapter of rank 4 beside a run that trained everything."""
    where = runs.folder()
    config = runs.config("alfworld_sft", ARG, settings())
    runs.make(train_sft.run, config, where)
    return where


@pytest.fixture(scope="module")
def reinforced(tuned):
    """Policy gradient on another adapter, from that run."""
    where = runs.folder()
    config = runs.config("alfworld_rl", ARG, rl_settings(tuned))
    runs.make(train_rl.run, config, where)
    return where


def rl_settings(init):
    return runs.RL | {"model.init": init, "train.evaluate_every": 0, "optim.lr": 1e-2}


def played(run, where, **changes):
    arg = f"env=counter,checkpoint={run}"
    config = runs.config("alfworld_eval", arg, runs.EVALUATION | changes)
    return runs.make(evaluate.run, config, where)


def test_a_checkpoint_holds_the_adapter_and_says_what_it_belongs_to(tuned):
    state, (step, host) = runs.state(tuned, 2), checkpoint.read_host(tuned)
    names = {key for key in state if key.startswith(".params") or "'params'" in key}
    assert len(names) == 14  # two matrices for each of seven projections
    assert all("'a'" in name or "'b'" in name for name in names)
    assert step == 2
    facts = host["lora"]
    assert (facts["rank"], facts["alpha"]) == (4, 32.0)
    assert facts["targets"] == ["q", "k", "v", "o", "gate", "up", "down"]
    assert facts["base"]["init"] == str(runs.sft())
    assert (facts["base"]["seed"], facts["base"]["dtype"]) == (0, "float32")
    moments = [key for key in state if "'mu'" in key or ".mu" in key]
    assert len(moments) == 14


def test_a_run_that_was_stopped_ends_with_the_same_bits(tuned, reinforced, tmp_path):
    for file, run, base, straight in (
        ("alfworld_sft", train_sft.run, settings(), tuned),
        ("alfworld_rl", train_rl.run, rl_settings(tuned), reinforced),
    ):
        where = tmp_path / file
        for steps in (1, 2):
            config = runs.config(file, ARG, base | {"optim.steps": steps})
            runs.make(run, config, where)
        found, wanted = runs.left_behind(where), runs.left_behind(straight)
        assert found["state"] == wanted["state"]
        assert found["host"] == wanted["host"]
        assert found["bank"] == wanted["bank"]
        assert found["episodes"] == wanted["episodes"]


def test_the_reference_is_the_base_without_the_adapter(reinforced):
    """The adapter starts at nothing, so the first step has neither ratio nor KL."""
    first, last = runs.lines(reinforced)
    assert first["policy/ratio"] == pytest.approx(1.0, abs=1e-4)
    assert first["policy/kl"] == pytest.approx(0.0, abs=1e-6)
    assert last["policy/kl"] > 1e-5


def parts(run):
    """Shape, spec, adapter and base of a run."""
    host = checkpoint.read_host(run)[1]
    shape = qwen3.Config(**host["model"])
    one = mesh.make(1, 1, jax.devices()[:1])
    return shape, *parameters.read_adapted(str(run), host["lora"], shape, one)


def logits(params, shape):
    tokens = np.arange(24, dtype=np.int32).reshape(2, 12)
    return np.asarray(qwen3.forward(params, shape, tokens))


def test_a_run_from_an_adapter_has_both_as_its_base(tuned, reinforced):
    shape, spec, adapter, source = parts(tuned)
    attached = lora.attach(source.params, adapter, spec)
    assert np.abs(logits(attached, shape) - logits(source.params, shape)).max() > 1e-2
    _, _, _, merged = parts(reinforced)
    got, want = logits(merged.params, shape), logits(attached, shape)
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-4)
    assert merged.digest != source.digest


def test_evaluation_plays_base_and_adapter(tuned, reinforced, tmp_path):
    summary = played(reinforced, tmp_path / "one", **{"evaluate.games": 6})
    assert summary["n"] == 6
    # Merged by export, it plays the same games the same way.
    export.export(str(reinforced), str(tmp_path / "merged"))
    again = played(tmp_path / "merged", tmp_path / "two", **{"evaluate.games": 6})
    assert again["games"] == summary["games"]


def test_an_adapter_is_exported_and_read_back(tuned, tmp_path):
    export.main(["--run", str(tuned), "--out", str(tmp_path), "--adapter"])
    shape, spec, adapter, _ = parts(tuned)
    found_spec, found = peft.load(tmp_path, shape)
    assert found_spec == spec
    for name in adapter:
        for part in "ab":
            np.testing.assert_array_equal(found[name][part], adapter[name][part])
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == str(runs.sft())
    with pytest.raises(SystemExit, match="trained all parameters, there is no adapter"):
        export.main(["--run", str(runs.sft()), "--out", str(tmp_path), "--adapter"])


def test_a_base_that_is_gone_moved_or_changed_is_named(tuned, tmp_path):
    run, base = tmp_path / "run", tmp_path / "base"
    shutil.copytree(runs.sft(), base, ignore=shutil.ignore_patterns("collect"))
    changes = settings(**{"optim.steps": 1, "model.init": base})
    runs.make(train_sft.run, runs.config("alfworld_sft", ARG, changes), run)
    base.rename(tmp_path / "moved")
    with pytest.raises(ValueError, match="is not there; say where its base is with --"):
        played(run, tmp_path / "out")
    few = {"evaluate.games": 1, "model.init": tmp_path / "moved"}
    assert played(run, tmp_path / "out", **few)["n"] == 1
    # The weights in its place now are of the same shape, and others.
    few["model.init"] = runs.short()
    with pytest.raises(ValueError, match="an adapter for other weights than .* digest"):
        played(run, tmp_path / "other", **few)


def test_there_is_one_copy_of_the_base(tuned, tmp_path):
    config = runs.config("alfworld_rl", ARG, rl_settings(tuned))
    model = build.model(config, str(tmp_path))
    learner = model.trained
    assert learner.frozen[0] is model.params  # the reference of train_rl too
    joined = learner.join(learner.params, *learner.frozen)
    assert joined["layers"]["q"] is model.params["layers"]["q"]
    whole = runs.config("alfworld_rl", runs.COUNTER, rl_settings(tuned))
    assert build.model(whole, str(tmp_path)).trained.frozen == ()


def test_four_devices_train_the_same_adapter(tuned, tmp_path):
    config = runs.config("alfworld_sft", ARG, settings(**{"mesh.fsdp": 4}))
    runs.make(train_sft.run, config, tmp_path)
    for found, wanted in zip(runs.lines(tmp_path), runs.lines(tuned), strict=True):
        for name in ("loss/sft", "optim/grad_norm"):
            assert found[name] == pytest.approx(wanted[name], rel=1e-4)


def test_a_checkpoint_of_another_kind_is_refused(tuned):
    host = checkpoint.read_host(tuned)[1]
    facts = host["lora"]
    parameters.same_adapter(host, facts, "RUN")
    with pytest.raises(ValueError, match="RUN holds an adapter, this run trains all"):
        parameters.same_adapter(host, None, "RUN")
    with pytest.raises(ValueError, match="RUN holds all parameters, this run trains"):
        parameters.same_adapter({"model": {}}, facts, "RUN")
    with pytest.raises(ValueError, match="rank 4 instead of 8"):
        parameters.same_adapter(host, facts | {"rank": 8}, "RUN")
    other = facts | {"base": facts["base"] | {"digest": "0" * 16}}
    with pytest.raises(ValueError, match="its base was .* this one has 0000"):
        parameters.same_adapter(host, other, "RUN")


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"model.lora_targets": "q,query"}, "no projection is called query"),
        ({"model.lora": -1}, "rank must be at least 1: -1"),
        ({"model.attention": "splash"}, "data.share_heads: splash attention sees no"),
    ],
)
def test_what_is_wrong_shows_before_anything_is_made(changes, words, tmp_path):
    config = runs.config("alfworld_sft", ARG, settings(**changes))
    with pytest.raises(ValueError, match=words):
        train_sft.run(config, str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_a_digest_is_of_bits_and_places_and_nothing_else():
    tree = {"a": np.arange(12, dtype=np.float32).reshape(3, 4), "b": np.ones(2, "f2")}
    digest = parameters.digest_of(tree)
    assert len(digest) == 16
    devices = mesh.make(4, 1, jax.devices()[:4])
    spread = {"a": mesh.batch_sharding(devices)}
    cut = {"a": np.arange(12, dtype=np.float32).reshape(4, 3)}
    whole = parameters.digest_of(cut)
    assert parameters.digest_of(mesh.place(cut, spread)) == whole
    swapped = {**tree, "a": tree["a"][::-1]}
    other = {**tree, "b": np.array([1, 1 + 2**-10], "f2")}
    renamed = {"a": tree["a"], "c": tree["b"]}
    found = {parameters.digest_of(t) for t in (tree, cut, swapped, other, renamed)}
    assert len(found) == 5


def test_a_base_may_be_a_weights_folder_or_a_draw(tmp_path):
    shape = dataclasses.replace(qwen3.CONFIGS["counter-tiny"], vocab_size=300)
    one = mesh.make(1, 1, jax.devices()[:1])
    drawn = parameters.read("", shape, one, seed=3, digest=True)
    again = parameters.read("", shape, one, seed=4, digest=True)
    assert again.digest != drawn.digest
    weights.save(tmp_path, shape, drawn.params)
    read = parameters.read(str(tmp_path), shape, one, seed=0, digest=True)
    assert read.digest == drawn.digest
    with pytest.raises(ValueError, match="model.draw: 'copied', not one of normal, c"):
        parameters.read("", shape, one, seed=0, draw="copied")
    wider = dataclasses.replace(shape, width=32)
    with pytest.raises(ValueError, match="width 64 instead of 32"):
        parameters.read(str(tmp_path), wider, one, seed=0)
