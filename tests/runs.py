"""Tiny runs on the counter, each made once a session, and what a run leaves behind.

Settings are dicts of dotted config lines. `config` parses them as a command line does,
so a test can run the same thing in this process and, with `call`, in another one.

As a program this file is what `call` talks to: a process that has imported everything
and forks for each command line, which saves the seconds of an import.
"""

import functools
import importlib
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
import orbax.checkpoint as ocp
from absl import flags
from ml_collections import ConfigDict, config_flags

from evoharness_jax import cli, metrics, train_rl, train_sft

ROOT = Path(__file__).resolve().parent.parent
COUNTER = "env=counter,model=counter-tiny,debug"
# Just enough for a model that wins now and then, so that groups differ.
SFT = {
    "collect.games": 0,
    "collect.repeats": 4,
    "data.held_out": 0.1,
    "data.length": 128,
    "model.response": 12,
    "optim.lr": 1e-2,
    "optim.schedule": "constant",  # the number of steps is no part of the program
    "optim.warmup": 2,
    "optim.steps": 40,
    "train.check_every": 40,
    "checkpoint.every": 40,
}
# Rows for a whole rollout in one microbatch: one shape, whatever was said.
RL = {
    "data.rows": 32,
    "model.context": 256,
    "model.response": 12,
    "reward.diversity": 0.0,
    "evaluate.batch": 8,
    "train.evaluate_every": 2,
}
EVALUATION = {"model.context": 256, "model.response": 12, "evaluate.batch": 8}
HALF = -1
_kept: list[tempfile.TemporaryDirectory] = []  # gone when the session is


def command(file: str, arg: str, changes: dict) -> list[str]:
    """Return the flags that name configs/FILE.py, its arguments, and changed lines."""
    changed = [f"--config.{name}={value}" for name, value in changes.items()]
    return [f"--config={ROOT / 'configs' / file}.py:{arg}", *changed]


def config(file: str, arg: str = COUNTER, changes: dict | None = None) -> ConfigDict:
    """Load a config as a command line would."""
    if str(ROOT) not in sys.path:  # config files import each other
        sys.path.insert(0, str(ROOT))
    argv, values = ["test", *command(file, arg, changes or {})], flags.FlagValues()
    found = config_flags.DEFINE_config_file(
        "config", lock_config=True, flag_values=values, sys_argv=argv
    )
    values(argv)
    return found.value


def folder() -> Path:
    """Return a new folder that lasts as long as the session."""
    _kept.append(tempfile.TemporaryDirectory(prefix="evoharness-"))
    return Path(_kept[-1].name)


def make(run, settings: ConfigDict, where: Path) -> dict:
    """Do what the command line does: write the config, run."""
    where.mkdir(exist_ok=True)
    cli.write_config(settings, where)
    return run(settings, str(where))


@functools.cache
def sft() -> Path:
    """Return a finished run of fine-tuning, with its teacher episodes in collect/."""
    where = folder()
    make(train_sft.run, config("alfworld_sft", changes=SFT), where)
    return where


@functools.cache
def short() -> Path:
    """Return a finished run of four fine-tuning steps with two checkpoints."""
    where = folder()
    make(train_sft.run, config("alfworld_sft", changes=short_settings()), where)
    return where


def short_settings() -> dict:
    return SFT | {
        "data.episodes": sft() / "collect",
        "optim.steps": 4,
        "train.log_every": 1,
        "checkpoint.every": 2,
    }


@functools.cache
def rl() -> Path:
    """Return a finished run of two policy-gradient steps from `sft`."""
    where = folder()
    make(train_rl.run, config("alfworld_rl", changes=rl_settings()), where)
    return where


def rl_settings() -> dict:
    return RL | {"model.init": sft()}


def records(path: Path) -> list[dict]:
    """Return the episodes in a file."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def steps(run: Path) -> list[int]:
    """Return the steps of a run's checkpoints, HALF for one that has no name yet."""
    names = [path.name for path in (run / "checkpoints").iterdir()]
    return sorted(int(name) if name.isdigit() else HALF for name in names)


def lines(run: Path) -> list[dict]:
    """Return a run's metrics without what a clock says."""
    return [
        {k: v for k, v in line.items() if not k.startswith("time/")}
        for line in metrics.read(run)
    ]


def state(run: Path, step: int) -> dict[str, bytes]:
    """Return every bit of a checkpoint, by path."""
    path = run / "checkpoints" / str(step) / "state"
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as reader:
        with warnings.catch_warnings(action="ignore"):  # it asks for shardings
            tree = reader.restore(path.resolve())
    flat, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {jax.tree_util.keystr(at): _bits(leaf) for at, leaf in flat}


def _bits(leaf) -> bytes:
    if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    leaf = np.asarray(leaf)
    return f"{leaf.dtype}{leaf.shape}".encode() + leaf.tobytes()


def left_behind(run: Path) -> dict:
    """Return all that a run leaves, as values that compare."""
    last = max(steps(run))
    host = run / "checkpoints" / str(last) / "host" / "metadata"
    head = (run / "bank" / "HEAD").read_text().strip()
    return {
        "step": last,
        "state": state(run, last),
        "host": json.loads(host.read_text()),
        "head": head,
        "bank": (run / "bank" / f"{head}.jsonl").read_text(),
        "lines": lines(run),
        "tokenizer": (run / "tokenizer" / "tokenizer.json").read_text(),
        "episodes": {p.name: p.read_text() for p in sorted(run.glob("episodes/*"))},
    }


class Ended(NamedTuple):
    """How a command line ended."""

    code: int  # exit status, -9 for a kill
    output: str  # stdout and stderr

    @property
    def last(self) -> str:
        return self.output.strip().splitlines()[-1]


def call(
    module: str,
    arguments: list[str],
    *,
    kill_at: tuple[str, str, int] | None = None,
    by: signal.Signals = signal.SIGKILL,
    file_limit: int = 0,
) -> Ended:
    """Do `python -m evoharness_jax.MODULE ARGUMENTS` in a process of its own.

    Args:
        kill_at: (audit event, part of its arguments, n): a signal at the n-th one. The
            events are Python's own, such as `open` and `os.rename`.
        by: that signal.
        file_limit: bytes that a file may have; a disk that is full, to whoever writes.
    """
    server = _server()
    request = [module, [str(word) for word in arguments], kill_at, by, file_limit]
    server.stdin.write(json.dumps(request) + "\n")
    server.stdin.flush()
    return Ended(*json.loads(server.stdout.readline()))


@functools.cache
def _server() -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", __file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def _serve() -> None:
    answers, sys.stdout = sys.stdout, sys.stderr
    for line in sys.stdin:
        request = json.loads(line)
        with tempfile.TemporaryFile("w+") as output:
            code = _fork(*request, output)
            output.seek(0)
            answers.write(json.dumps([code, output.read()]) + "\n")
            answers.flush()


def _fork(module, arguments, kill_at, by, file_limit, output) -> int:
    paused, pause = os.pipe()
    resumed, resume = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
        sys.stdout = os.fdopen(1, "w")
        if kill_at:
            sys.addaudithook(_pause_at(*kill_at, pause, resumed))
        if file_limit:
            resource.setrlimit(resource.RLIMIT_FSIZE, (file_limit, file_limit))
        sys.argv = [module, *arguments]
        importlib.import_module(f"evoharness_jax.{module}").main()
        sys.exit()
    os.close(pause)
    if os.read(paused, 1):  # nothing where it ended by itself
        os.kill(child, by)
        os.write(resume, b"!")
    for end in (paused, resumed, resume):
        os.close(end)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _pause_at(event: str, part: str, left: int, pause: int, resumed: int):
    def hook(name, arguments):
        nonlocal left
        if name == event and part in str(arguments):
            left -= 1
            if left == 0:
                os.write(pause, b"!")
                os.read(resumed, 1)  # the signal comes from outside

    return hook


if __name__ == "__main__":
    _serve()
