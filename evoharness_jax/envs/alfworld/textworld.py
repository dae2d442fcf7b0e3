"""The real engine: TextWorld in worker processes.

A process plays one episode at a time and is used again for the next. A call that
takes too long, a process that dies and a game that the engine cannot take end that
episode only, with `info["error"]`; a new process takes the place of a lost one. What
is handed out as state is a `Seat`, which names a process and an episode; a seat whose
episode is over gets an error, never a wait.

The processes are started by a fresh interpreter, not forked (JAX has threads), and
not by `multiprocessing`, which would import the caller's main module, and JAX with
it, into each of them. They leave when their parent does.
"""

import importlib.util
import os
import stat
import subprocess
import sys
import threading
import time
import weakref
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

from evoharness_jax.envs.alfworld.goals import objective_of
from evoharness_jax.envs.domain import Observation, Task

WORKER = "evoharness_jax.envs.alfworld.worker"
NOTHING = "Nothing happens."
IDLE = 0  # a worker's episode while it plays none


class Seat(NamedTuple):
    """The state of an episode: which process plays it, and which of its games."""

    worker: int
    episode: int


@dataclass
class Worker:
    """A process and what it said last."""

    process: subprocess.Popen
    pipe: Connection
    episode: int = IDLE
    last: Observation | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)


class Pool:
    """Worker processes, started when needed, at most `workers` of them."""

    def __init__(self, workers: int, timeout: float = 120.0, cache_dir=None):
        """Start nothing yet.

        Args:
            workers: episodes that may be alive at once.
            timeout: seconds one call may take; the longest is the load of a game.
            cache_dir: where translated games are kept for the next time; None: not.
        """
        if workers < 1:
            raise ValueError(f"at least one worker is needed: {workers=}")
        for package in ("textworld", "alfworld"):
            if importlib.util.find_spec(package) is None:
                raise ImportError(
                    f"the real engine needs {package}: "
                    "pip install alfworld==0.4.2 textworld==1.7.0"
                )
        self.workers, self.timeout = workers, timeout
        self.cache = str(_private(Path(cache_dir))) if cache_dir else None
        self.lost = 0  # processes that had to be replaced
        self._alive: dict[int, Worker] = {}
        self._started = self._played = 0
        self._changed = threading.Condition()
        self._closed = False
        self._last_rites = weakref.finalize(self, _end_all, self._alive)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self) -> None:
        """End every process. Episodes still alive get an error."""
        with self._changed:
            self._closed = True
            self._last_rites()
            self._changed.notify_all()

    def reset(self, task: Task) -> tuple[Seat, Observation]:
        """Load a game into a free process."""
        seat = self._take()
        return seat, self._call(seat, "load", task.spec)

    def step(self, seat: Seat, action: str) -> tuple[Seat, Observation]:
        """Send a command that is admissible; any other changes nothing.

        A command is found by its letters, whatever their case and spaces, and sent as
        the engine spells it.
        """
        worker = self._playing(seat)
        if worker is None:
            return seat, failed("the episode is over, or its simulator is gone")
        command = spelled(action, worker.last.commands)
        if command is None:
            return seat, refused(worker.last)
        return seat, self._call(seat, "step", command)

    def release(self, seat: Seat) -> None:
        """Free the process of an episode that is not played on."""
        with self._changed:
            worker = self._playing(seat)
            if worker is not None:
                worker.episode = IDLE
                self._changed.notify_all()

    def _playing(self, seat: Seat) -> Worker | None:
        worker = self._alive.get(seat.worker)
        return worker if worker and worker.episode == seat.episode != IDLE else None

    def _take(self) -> Seat:
        """Claim a free process, starting one if there may be more."""
        deadline = time.monotonic() + self.timeout
        with self._changed:
            while not self._closed:
                idle = [n for n, w in self._alive.items() if w.episode == IDLE]
                free = [n for n in idle if self._alive[n].process.poll() is None]
                for gone in set(idle) - set(free):
                    self.lost += 1
                    _end(self._alive.pop(gone))
                if not free and len(self._alive) < self.workers:
                    self._started += 1
                    free = [self._started]
                    self._alive[self._started] = _start(self.cache)
                if free:
                    self._played += 1
                    self._alive[free[0]].episode = self._played
                    return Seat(free[0], self._played)
                if not self._changed.wait(deadline - time.monotonic()):
                    raise RuntimeError(
                        f"all {self.workers} simulators hold a live episode: "
                        "close one, or raise `workers`"
                    )
        raise RuntimeError("the simulator pool is closed")

    def _call(self, seat: Seat, request: str, argument: str) -> Observation:
        """Ask a process and wait, but not for ever."""
        worker = self._playing(seat)
        if worker is None:
            return failed("the simulator pool is closed")
        with worker.lock:
            try:
                worker.pipe.send((request, argument))
                if worker.pipe.poll(self.timeout):
                    outcome, answer = worker.pipe.recv()
                else:
                    outcome, answer = "error", f"no answer in {self.timeout:g} s"
            except (OSError, EOFError):
                code = _exit_code(worker)
                outcome, answer = "error", f"the simulator died (exit code {code})"
        if outcome == "error":
            self._lose(seat)
            if request == "load":
                return failed(f"{argument}: {answer}")
            return failed(answer, worker.last.objective)
        text, commands, won = answer
        objective = worker.last.objective if request == "step" else objective_of(text)
        worker.last = Observation(
            text, commands, objective, won, won, float(won), True, {}
        )
        return worker.last

    def _lose(self, seat: Seat) -> None:
        """Drop a process that is of no more use; `_take` starts another."""
        with self._changed:
            worker = self._alive.pop(seat.worker, None)
            if worker:
                self.lost += 1
                _end(worker)
            self._changed.notify_all()


def spelled(action: str, commands: tuple[str, ...]) -> str | None:
    """Return the command that an action means, whatever its case and spaces."""
    wanted = " ".join(action.lower().split())
    return next((c for c in commands if c.lower() == wanted), None)


def refused(seen: Observation) -> Observation:
    """Return what an action that is not admissible gets: nothing has changed."""
    return seen._replace(text=NOTHING, valid=False)


def failed(why: str, objective: str = "") -> Observation:
    """Return the observation that ends an episode whose game broke."""
    return Observation("", (), objective, True, False, 0.0, False, {"error": why})


def _start(cache: str | None) -> Worker:
    ours, theirs = Pipe()
    arguments = [str(theirs.fileno()), str(os.getpid()), *([cache] if cache else [])]
    process = subprocess.Popen(
        [sys.executable, "-m", WORKER, *arguments],
        pass_fds=(theirs.fileno(),),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        env={
            # Importing alfworld makes the data folder if none is named.
            "ALFWORLD_DATA": os.getcwd(),
            **os.environ,
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            "PYTHONSAFEPATH": "1",  # whatever modules lie in the working folder
            "OMP_NUM_THREADS": "1",
        },
    )
    theirs.close()
    return Worker(process, ours)


def _end(worker: Worker) -> None:
    worker.process.kill()
    worker.process.wait()
    worker.pipe.close()


def _end_all(alive: dict[int, Worker]) -> None:
    while alive:
        _, worker = alive.popitem()
        _end(worker)


def _exit_code(worker: Worker) -> int | None:
    try:
        return worker.process.wait(timeout=1.0)
    except subprocess.TimeoutExpired:
        return None


def _private(folder: Path) -> Path:
    """Return a folder for translations that only this user can write.

    They are pickles: one that somebody else put there could run anything.
    """
    translations = folder / "translations"
    translations.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = translations.stat()
    if found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o022:
        raise PermissionError(
            f"the translation cache must be yours alone to write: {translations}"
        )
    return translations
