"""The command line of every entry point: --config=FILE[:arguments] and --workdir=DIR.

Any config line can be changed with --config.section.name=value. What a user got wrong
is one line that names it; the traceback goes to DIR/error.txt.
"""

import fcntl
import json
import os
import re
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import ExitStack, contextmanager
from pathlib import Path

import jax
from absl import app, flags, logging
from ml_collections import ConfigDict, config_flags

from evoharness_jax import __version__, hosts, metrics


def main(run: Callable, stage: str, needs: tuple[str, ...]) -> None:
    """Parse flags, write the config beside the results, and call run(config, workdir).

    Exits with 1 and one line on a ValueError or OSError, which is what our own checks
    raise. `needs` are the config sections that the stage reads.
    """
    let_configs_import_each_other(sys.argv)
    config = config_flags.DEFINE_config_file(
        "config", None, "FILE.py[:argument,argument=value]", lock_config=True
    )
    workdir = flags.DEFINE_string("workdir", None, "folder for all that is written")
    flags.mark_flags_as_required(["config", "workdir"])

    def start(argv):
        if len(argv) > 1:
            raise app.UsageError(f"what is {' '.join(argv[1:])}?")
        # Orbax warns of what we ask for, and logs the errors that it raises.
        logging.set_verbosity(logging.FATAL)
        _keep_compilations()
        folder, failure = Path(workdir.value), hosts.UNFORESEEN
        try:
            if folder.is_file():
                raise ValueError(f"--workdir: {folder} is a file, not a folder")
            check(config.value, needs)
            settings = hosts.Settings(**config.value.get("distributed", {}))
            if settings.init != "none" and stage not in JOBS:
                raise ValueError(f"distributed.init: {stage} runs in one process")
            hosts.start(settings)
            if stage in JOBS:
                hosts.heed_sigterm()
            metrics.log_to_stderr()
            with _entered(config.value, folder, stage):
                run(config.value, str(folder))
            failure = ""
        except hosts.Stopped:  # what ran has saved itself
            failure = ""
        except (ValueError, OSError) as error:
            failure = str(error)
            _fail(error, folder)
        finally:
            hosts.leave(failure)

    app.run(start, flags_parser=parse)


def _keep_compilations() -> None:
    """Let the next command reuse what this one compiles, unless told otherwise."""
    if not jax.config.jax_compilation_cache_dir:
        folder = os.path.expanduser("~/.cache/evoharness_jax/compilations")
        jax.config.update("jax_compilation_cache_dir", folder)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)


# The least that a number may be, wherever a config has it.
LEAST = {
    "advantage.step_weight": 0,
    "bank.capacity": 1,
    "checkpoint.every": 1,
    "checkpoint.keep": 1,
    "collect.batch": 1,
    "collect.games": 0,
    "collect.noise": 0,
    "collect.passes": 1,
    "collect.repeats": 1,
    "collect.thrift": 0,
    "data.accum": 1,
    "data.held_out": 0,
    "data.length": 1,
    "data.rows": 1,
    "data.updates": 1,
    "engine.ahead": 0,
    "env.history": 0,
    "env.workers": 1,
    "evaluate.batch": 1,
    "evaluate.games": 0,
    "loss.episode_tokens": 1,
    "loss.sampler_cap": 0,
    "model.context": 1,
    "model.lora": 0,
    "model.response": 1,
    "optim.steps": 1,
    "rollout.batch": 1,
    "rollout.tasks": 1,
    "rules.max_tokens": 0,
    "train.check_every": 1,
    "train.evaluate_every": 0,
    "train.log_every": 1,
    "train.logprob_chunk": 1,
}
# What may change when a run goes on.
FREE = (
    "distributed.",
    "mesh.",
    "checkpoint.",
    "train.log_every",
    "train.check_every",
    "optim.steps",
)
# What may be several processes, and saves when it is asked to end.
JOBS = ("train_sft", "train_rl")
RESULTS = ("checkpoints", "collect.json", "summary.json")


def check(config: ConfigDict, needs: tuple[str, ...]) -> None:
    """Raise ValueError where a section is missing, or a number is too small."""
    for section in needs:
        if section not in config:
            raise ValueError(
                f"--config: it has no section {section!r}; is it one of another stage?"
            )
    for name, value in _flat(config.to_dict()).items():
        if name in LEAST and value < LEAST[name]:
            raise ValueError(f"{name} must be at least {LEAST[name]}: {value}")


def claim(config: ConfigDict, folder: Path, stage: str) -> None:
    """Write RUN/config.json, unless the folder holds the results of another run."""
    path = folder / "config.json"
    wanted = {"stage": stage, **config.to_dict()}
    if path.exists() and any((folder / name).exists() for name in RESULTS):
        found = _flat(json.loads(path.read_text()))
        for name, value in _flat(wanted).items():
            if found.get(name, value) != value and not name.startswith(FREE):
                raise ValueError(
                    f"--workdir: {folder} holds a run with {name} = {found[name]!r}, "
                    f"this one has {value!r}; give it a folder of its own"
                )
    write_config(config, folder, stage)


def write_config(config: ConfigDict, folder: Path, stage: str = "") -> None:
    """Write RUN/config.json, so that a run says what it was."""
    facts = {"stage": stage, "version": __version__, **config.to_dict()}
    text = json.dumps(facts, indent=2, sort_keys=True)
    (folder / "config.json").write_text(text + "\n")


def _flat(tree: dict, prefix: str = "") -> dict:
    flat = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat


@contextmanager
def _entered(config: ConfigDict, folder: Path, stage: str):
    """Make the folder this run's: the leading process does, the others look."""
    _same_config(config)
    with ExitStack() as held:
        if hosts.leads():
            folder.mkdir(parents=True, exist_ok=True)
            held.enter_context(_alone(folder))
            claim(config, folder, stage)
        token = hosts.agreed("workdir", str(time.time_ns()))
        if hosts.count() > 1:
            _share(folder, token)
        yield


def _same_config(config: ConfigDict) -> None:
    """Raise ValueError where the processes were started with different settings."""
    flat = _flat(config.to_dict())
    mine = {k: v for k, v in flat.items() if not k.startswith("distributed.")}
    first = hosts.agreed("config", mine)
    for name in sorted(mine | first):
        if mine.get(name) != first.get(name):
            raise ValueError(
                f"{name} = {mine.get(name)!r} in process {hosts.index()}, "
                f"{first.get(name)!r} in process 0"
            )


def _share(folder: Path, token: str) -> None:
    """Raise ValueError where a process does not see what the leading one writes."""
    mark = folder / f".shared-{token}"
    if hosts.leads():
        mark.touch()
    hosts.meet("workdir written")
    seen = mark.exists()
    hosts.meet("workdir seen")
    if hosts.leads():
        mark.unlink()
    if not seen:
        raise ValueError(
            f"--workdir: process {hosts.index()} does not see what process 0 wrote in "
            f"{folder}; it must be one folder for all (a mounted bucket, NFS)"
        )


@contextmanager
def _alone(folder: Path):
    """Hold the folder's lock, which ends with this process however that ends."""
    with (folder / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(
                f"--workdir: another command is at work in {folder}"
            ) from None
        yield


def parse(argv, values: flags.FlagValues = flags.FLAGS):
    """Parse flags; exit with one line that names what is wrong with them."""
    try:
        return values(argv)
    except flags.Error as error:
        words = str(error)
        if "Traceback" in words:  # raised inside the config file
            words = f"{words.partition(': Error whilst')[0]}: {_innermost(error)}"
        sys.exit(f"error: {words}")
    except (AttributeError, KeyError) as error:  # no such key in the config
        key = str(_innermost(error).args[0]).strip("'")
        flag = [w for w in argv if key in w.partition("=")[0].split(".")]
        like = re.search(r'Did you mean "(\w+)"', str(error))
        hint = f"; did you mean {like[1]!r}?" if like else ""
        sys.exit(f"error: {' '.join(flag)}: the config has no {key!r}{hint}")
    except (ValueError, TypeError) as error:
        sys.exit(f"error: {error}")


def _innermost(error: BaseException) -> BaseException:
    while cause := error.__cause__ or error.__context__:
        error = cause
    return error


def _fail(error: Exception, folder: Path) -> None:
    where = ""
    if isinstance(error, OSError) and not error.filename:
        where = f": {folder}"  # a full disk does not say whose file it was
    if folder.is_dir():
        try:
            (folder / "error.txt").write_text(traceback.format_exc())
            where += f"  (traceback: {folder / 'error.txt'})"
        except OSError:  # a full disk must not hide what went wrong
            traceback.print_exc()
    sys.exit(f"error: {error}{where}")


def let_configs_import_each_other(argv: list[str]) -> None:
    """Config files say `from configs import common`, from wherever they are called."""
    for here, word in enumerate(argv):
        if word.startswith("--config="):
            file = word.partition("=")[2].partition(":")[0]
        elif word == "--config" and here + 1 < len(argv):
            file = argv[here + 1].partition(":")[0]
        else:
            continue
        if not os.path.isfile(file):
            sys.exit(f"error: --config: there is no file {file}")
        root = os.path.dirname(os.path.dirname(os.path.abspath(file)))
        sys.path.insert(0, root)
