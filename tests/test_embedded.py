"""The checkpoints that come with the package: small, honest about them, played."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open

import runs
from evoharness_jax import build, evaluate
from evoharness_jax.envs.alfworld import households
from evoharness_jax.experience import bank


@pytest.mark.parametrize("name", ["embedded-sft", "embedded"])
def test_it_is_small_and_whole(name):
    folder = Path(build.located(name))
    assert sum(p.stat().st_size for p in folder.rglob("*") if p.is_file()) < 6e6
    with safe_open(folder / "model.safetensors", "np") as file:
        kinds = {file.get_slice(key).get_dtype() for key in file.keys()}
        count = sum(
            int(np.prod(file.get_slice(key).get_shape())) for key in file.keys()
        )
    assert (kinds, count) == ({"BF16"}, 918_912)
    run = json.loads((folder / "run.json").read_text())
    assert run["env"]["name"] == "alfworld"
    assert (run["env"]["data"], run["env"]["cache"]) == ("", "")
    assert run["rules"]["charge"] is True
    entries = bank.read(folder / "bank").entries
    assert {entry.source["split"] for entry in entries} == {"train"}


def test_evaluate_plays_it_by_default(tmp_path):
    households.main([str(tmp_path / "homes"), "--games", "2", "--split", "valid_seen"])
    config = runs.config(
        "alfworld_eval",
        "debug",
        {"env.data": tmp_path / "homes", "rules.max_turns": 6, "evaluate.batch": 2},
    )
    assert config.checkpoint == "embedded"
    summary = runs.make(evaluate.run, config, tmp_path / "run")
    assert (summary["n"], summary["policy"], summary["errors"]) == (2, "model", 0)
    # It answers in the form that was asked for, and plans and recalls for this goal.
    records = [
        json.loads(line)
        for line in (tmp_path / "run" / "episodes.jsonl").read_text().splitlines()
    ]
    for record in records:
        assert {turn["tag"] for turn in record["turns"]} <= {"ok", "refused"}
        plan, recall = (turn["action"] for turn in record["turns"][:2])
        thing = recall.removeprefix("recall [").removesuffix("]")
        assert thing in record["objective"]
        assert plan.startswith(f"commit [find {thing} | ")
