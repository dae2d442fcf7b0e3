"""One simulator process: TextWorld's PDDL engine behind a pipe, without JAX.

    ("load", path)     -> ("ok", (feedback, commands, won))
    ("step", command)  -> ("ok", (feedback, commands, won))
    anything that goes wrong -> ("error", why), and the process ends

The engine is slow to load a game (it translates PDDL four times) and to step one (it
parses every command's template again). `cached` spares both without changing a word
of what the engine says.

Invariant: nothing here imports JAX, so a process starts in a second and holds no
accelerator. Started by `textworld.Pool` as `python -m evoharness_jax.envs.alfworld
.worker FD PARENT [CACHE]`.
"""

import copy
import functools
import hashlib
import os
import pickle
import signal
import sys
import tempfile
import threading
import time
import zlib
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace

# Raise when what is stored changes, or the translator does.
CACHE_FORMAT = "1"


def main(fd: int, parent: int, cache_dir: str | None) -> None:
    """Serve one parent until its end of the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    threading.Thread(target=_leave_with, args=(parent,), daemon=True).start()
    pipe = Connection(fd)
    env = None
    while True:
        try:
            request, argument = pipe.recv()
        except (EOFError, OSError):
            return
        # The translator raises anything, SystemExit included; whatever it is ends
        # this game, and this process, whose state is then unknown.
        try:
            if env is None:
                env = _environment(cache_dir)
            if request == "load":
                env.load(argument)
                state = env.reset()
            else:
                state, _, _ = env.step(argument)
            commands = tuple(state["admissible_commands"])
            answer = "ok", (state.feedback, commands, bool(state["won"]))
        except (Exception, SystemExit) as error:
            answer = "error", f"{type(error).__name__}: {error}"
        try:
            pipe.send(answer)
        except OSError:
            return
        if answer[0] == "error":
            return


def _leave_with(parent: int) -> None:
    """End this process when its parent has gone, even in the middle of a call."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)


def _environment(cache_dir: str | None):
    """Build the one environment object that plays every game of this process."""
    import textworld
    from alfworld.agents.environment.alfred_tw_env import AlfredDemangler
    from textworld.envs import PddlEnv

    cached(Path(cache_dir) if cache_dir else None)
    infos = textworld.EnvInfos(won=True, admissible_commands=True)
    return AlfredDemangler(PddlEnv(infos))


def cached(folder: Path | None) -> None:
    """Make the engine remember what it works out again and again.

    Four functions inside of TextWorld are replaced, in this process only:

    - `fast_downward.pddl2sas`, the translation: remembered for the current game
      (`load` and `reset` both ask for it), and on disk under `folder`, if given. Its
      second variant only serves the planner, which nothing here asks for an answer;
      it is given the first one.
    - the parsers of templates and of conditions. Templates are copied, since a
      derivation writes into them.
    - `ContextSensitiveGrammar.derive`, for the wording of commands. It depends on
      names and on where furniture stands, and neither changes within a game.
    """
    import fast_downward
    from textworld.envs.pddl import textgen

    translate = fast_downward.pddl2sas
    parse_template = functools.lru_cache(maxsize=4096)(textgen._parse_and_convert)
    parse_condition = functools.lru_cache(maxsize=256)(
        textgen.Rule.parse_conjunctive_query
    )
    derive = textgen.ContextSensitiveGrammar.derive
    last: dict[str, tuple] = {}  # one game

    def pddl2sas(domain, problem, verbose=False, optimize=False):
        key = _digest(CACHE_FORMAT, sys.version, domain, problem)
        if key not in last:
            found = _stored(folder, key)
            if found is None:
                found = translate(domain, problem, verbose=verbose)
                _store(folder, key, found)
            last.clear()
            last[key] = found
        return last[key]

    def template(text, rule_name, trace=False):
        return copy.deepcopy(parse_template(text, rule_name=rule_name))

    def derive_once(grammar, start, context):
        if "#" in start:  # a feedback: it depends on the state
            return derive(grammar, start, context)
        wordings = grammar.__dict__.setdefault("_wordings", {})
        objects = (
            (hole.name, value.name) for hole, value in context["mapping"].items()
        )
        key = start, tuple(sorted(objects))
        if key not in wordings:
            wordings[key] = derive(grammar, start, context)
        return wordings[key]

    fast_downward.pddl2sas = pddl2sas
    textgen._parse_and_convert = template
    textgen.Rule = SimpleNamespace(parse_conjunctive_query=parse_condition)
    textgen.ContextSensitiveGrammar.derive = derive_once


def _digest(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()


def _stored(folder: Path | None, key: str):
    """Return a stored translation, or None if there is none that can be read."""
    if folder is None:
        return None
    try:
        return pickle.loads(zlib.decompress((folder / key).read_bytes()))
    except (OSError, zlib.error, pickle.UnpicklingError, EOFError, AttributeError):
        return None


def _store(folder: Path | None, key: str, translation) -> None:
    """Keep a translation. A disk that is full or read-only costs time, not games."""
    if folder is None:
        return
    data = zlib.compress(pickle.dumps(translation), 1)
    name = None
    try:
        with tempfile.NamedTemporaryFile(dir=folder, delete=False) as file:
            name = file.name
            file.write(data)
        os.replace(name, folder / key)
    except OSError:
        if name:
            Path(name).unlink(missing_ok=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), *(sys.argv[3:] or [None]))
