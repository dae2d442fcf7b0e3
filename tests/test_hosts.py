"""Two processes are one job: the same numbers as one, and nobody waits for the dead.

They run as launch/local_pod.sh starts them, each with virtual CPU devices of its own.
"""

import os
import signal
import socket
import subprocess
import sys
import time

import pytest

import runs
from evoharness_jax import hosts

POD = ["bash", str(runs.ROOT / "launch" / "local_pod.sh")]
# Rows that two processes with two devices each can share; no chunk of a vocabulary
# adds up in another order.
SHARED = {"data.rows": 4, "data.accum": 2, "mesh.fsdp": 4}


def pod(entry, config, settings, where, processes=2, devices=2):
    """Start a job; return what runs."""
    words = runs.command(config, runs.COUNTER, settings)
    return subprocess.Popen(
        [
            *POD, str(processes), "--devices", str(devices), entry, *words,
            f"--workdir={where}",
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHON": sys.executable},
    )  # fmt: skip


def ended(job, within=240):
    output, _ = job.communicate(timeout=within)
    return runs.Ended(job.returncode, output)


def close(run, other, keys):
    """Say that two runs wrote the same numbers."""
    first, second = runs.lines(run), runs.lines(other)
    assert len(first) == len(second) > 0
    for a, b in zip(first, second):
        for key in keys & a.keys():
            assert a[key] == pytest.approx(b[key], rel=1e-5, abs=1e-6), key


def test_two_processes_fine_tune_as_one_does(tmp_path):
    settings = runs.short_settings() | SHARED
    alone = settings | {"mesh.fsdp": 1}
    two, one = tmp_path / "two", tmp_path / "one"
    done = ended(pod("train_sft", "alfworld_sft", settings, two))
    assert done.code == 0, done.output
    assert done.output.count("step 4/4") == 1  # process 0 logs
    words = [*runs.command("alfworld_sft", runs.COUNTER, alone), f"--workdir={one}"]
    assert runs.call("train_sft", words).code == 0
    close(two, one, {"loss/sft", "loss/held_out", "optim/grad_norm", "loss/weight"})


def test_two_processes_play_and_learn_as_one_does(tmp_path):
    settings = runs.rl_settings() | {"data.rows": 32, "mesh.fsdp": 4}
    two = tmp_path / "two"
    done = ended(pod("train_rl", "alfworld_rl", settings, two))
    assert done.code == 0, done.output
    one = runs.rl()
    # The episodes are the same ones, whoever played them.
    names = sorted(p.name for p in (one / "episodes").iterdir())
    assert sorted(p.name for p in (two / "episodes").iterdir()) == names
    played = [
        [(r["uid"], r["task"], r["turns"][0]["response"], r["won"]) for r in episodes]
        for episodes in (
            runs.records(two / "episodes" / names[0]),
            runs.records(one / "episodes" / names[0]),
        )
    ]
    assert played[0] == played[1]
    assert len(played[0]) == 8
    close(
        two,
        one,
        {"loss/total", "reward/total", "env/success", "calls/total", "loss/weight"},
    )


def test_a_job_goes_on_with_another_number_of_processes(tmp_path):
    settings = runs.short_settings() | SHARED
    first = settings | {"optim.steps": 2}
    assert ended(pod("train_sft", "alfworld_sft", first, tmp_path)).code == 0
    alone = settings | {"mesh.fsdp": 1}
    words = runs.command("alfworld_sft", runs.COUNTER, alone)
    done = runs.call("train_sft", [*words, f"--workdir={tmp_path}"])
    assert done.code == 0, done.output
    assert "going on from step 2" in done.output
    assert runs.steps(tmp_path)[-1] == 4


def test_who_is_left_names_who_died(tmp_path):
    settings = runs.short_settings() | SHARED
    settings |= {"optim.steps": 100000, "distributed.patience": 8.0}
    job = pod("train_sft", "alfworld_sft", settings, tmp_path)
    lines = []
    for line in job.stdout:
        lines.append(line)
        if "step 2/" in line:
            break
    (dying,) = processes_of(tmp_path, "--config.distributed.process=1")
    os.kill(dying, signal.SIGKILL)
    died = time.monotonic()
    done = ended(job, within=60)
    assert time.monotonic() - died < 60
    assert done.code == 1
    assert "process 1 was ended by signal 9" in done.output
    named = f"pid {dying})"
    assert any(
        "error: process 1 (" in line and named in line
        for line in done.output.splitlines()
    ), done.output


def test_a_job_that_is_asked_to_stop_saves_and_ends_well(tmp_path):
    settings = runs.short_settings() | SHARED | {"optim.steps": 100000}
    job = pod("train_sft", "alfworld_sft", settings, tmp_path)
    for line in job.stdout:
        if "step 2/" in line:
            break
    # One process is warned; it tells the other.
    (warned,) = processes_of(tmp_path, "--config.distributed.process=1")
    os.kill(warned, signal.SIGTERM)
    done = ended(job, within=60)
    assert done.code == 0, done.output
    assert f"asked to stop: step {runs.steps(tmp_path)[-1]} is saved" in done.output


def test_processes_with_different_settings_are_told_apart(tmp_path):
    settings = runs.short_settings() | SHARED
    words = runs.command("alfworld_sft", runs.COUNTER, settings)
    job = ["--config.distributed.init=explicit", "--config.distributed.processes=2"]
    job += [f"--config.distributed.coordinator=localhost:{free_port()}"]
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "evoharness_jax.train_sft", *words, *job, *own],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for own in (
            ["--config.distributed.process=0", f"--workdir={tmp_path}"],
            [
                "--config.distributed.process=1",
                f"--workdir={tmp_path}",
                "--config.optim.lr=0.5",
            ],
        )
    ]
    first, second = (ended(job, within=120) for job in started)
    assert "optim.lr = 0.5 in process 1, 0.01 in process 0" in second.output
    assert second.code != 0
    assert first.code == 1
    assert "failed: optim.lr = 0.5 in process 1" in first.output


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"init": "pod"}, "distributed.init: 'pod', not one of none, auto, explicit"),
        ({"init": "explicit"}, "distributed.coordinator: host:port of process 0"),
        (
            {
                "init": "explicit",
                "coordinator": "a:1",
                "processes": 2,
                "process": 2,
            },
            "distributed.process must lie below distributed.processes = 2: 2",
        ),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        hosts.start(hosts.Settings(**settings))


def test_a_pod_script_names_what_it_cannot_read():
    for words, message in (
        (["two"], "N must be a number of processes, not two"),
        (["2", "--devices", "x"], "--devices must be a number, not 'x'"),
        (["2"], "ENTRY must be train_sft or train_rl, not ''"),
    ):
        done = subprocess.run([*POD, *words], capture_output=True, text=True)
        assert done.returncode == 2
        assert message in done.stderr


def processes_of(where, word):
    """Return the ids of the processes with both words on their command line."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                line = file.read().decode().split("\0")
        except OSError:
            continue
        if word in line and f"--workdir={where}" in line and "-m" in line:
            found.append(int(pid))
    return found


def free_port():
    with socket.socket() as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]
