"""The ALFWorld measurements: one JSON line each, and `parity` goes on where it was."""

import json

from evoharness_jax.bench import env, parity
from evoharness_jax.envs.alfworld import households


def line(capsys):
    (out,) = capsys.readouterr().out.splitlines()
    return json.loads(out)


def test_parity(tmp_path, capsys):
    homes, log = tmp_path / "homes", str(tmp_path / "log.jsonl")
    households.write(homes, households.seeds("train", 2), "look_at_obj_in_light")
    options = ["--data", str(homes), "--walks", "1", "--log", log]
    parity.main([*options, "--games", "1"])
    first = line(capsys)
    assert first["games"] == 1 and first["differences"] == 0
    assert first["steps"] >= parity.STEPS + 2
    with open(log, "a") as file:
        file.write('{"cut short')
    parity.main([*options, "--games", "2", "--seconds", "0"])
    again = line(capsys)
    assert (again["games"], again["steps"]) == (1, first["steps"])
    assert again["chosen"] == 2


def test_parity_sees_a_difference(tmp_path, monkeypatch):
    (path,) = households.write(tmp_path, [5], "pick_and_place_simple")
    monkeypatch.setattr("evoharness_jax.envs.alfworld.engine.REFUSED", "No.")
    game = parity.load(path)
    result = parity.compare(parity.real_engine(), path, game, walks=1, seed=1)
    assert result["differences"]
    assert {d[3] for d in result["differences"]} == {"text"}
    assert {d[4] for d in result["differences"]} == {"'No.'"}


def test_env(tmp_path, monkeypatch):
    for name, value in (("EPISODES", 4), ("STEPS", 2), ("TICKS", 2)):
        monkeypatch.setattr(env, name, value)
    paths = households.write(tmp_path, [6], "look_at_obj_in_light")
    result = env.measure(paths, seconds=0)
    assert {
        "steps_per_s",
        "real_steps_per_s",
        "step_ratio",
        "batch128_ms",
        "episode_ratio",
        "compile_ratio",
        "bytes_per_episode",
    } <= set(result)
    assert all(value for value in result.values())
    assert result["games"] == 1
