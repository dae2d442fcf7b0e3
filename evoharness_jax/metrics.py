"""Metrics: flat `area/name` numbers, one JSON line a step; one progress line a step.

A resumed run drops the lines behind the step that it goes on from, so that the file
is what an uninterrupted run would have written. RUN/tensorboard holds the same numbers
as event files; those can only grow, so a resumed run marks there what is void.
"""

import json
import logging
import os
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import numpy as np
from rich.console import Console
from rich.progress import Progress
from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.proto.summary_pb2 import Summary

log = logging.getLogger("evoharness_jax")


def log_to_stderr() -> None:
    """Let our own lines through, on process 0; other libraries keep their levels."""
    if not log.handlers and jax.process_index() == 0:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
        log.addHandler(handler)
        log.setLevel(logging.INFO)
        log.propagate = False


class Writer:
    """Appends to RUN/metrics.jsonl and RUN/tensorboard, and says how it goes.

    Of several processes only the first one writes.
    """

    def __init__(self, workdir: str | Path, total: int, resume_at: int = 0):
        self.path = Path(workdir) / "metrics.jsonl"
        self.total = total
        self.begun = time.monotonic()
        self.first = resume_at
        self.console = Console(stderr=True) if sys.stderr.isatty() else None
        self.events = None  # a finished run that is started again writes none
        self.leads = jax.process_index() == 0
        if self.leads:
            _keep_until(self.path, resume_at)

    def write(self, step: int, values: dict[str, Any], shown: tuple[str, ...]) -> None:
        """Write one step's numbers; `shown` names those for the progress line."""
        if not self.leads:
            return
        numbers = {k: _number(v) for k, v in values.items()}
        with self.path.open("a") as file:
            file.write(json.dumps({"step": step, **numbers}) + "\n")
        self._write_events(step, numbers)
        words = "  ".join(f"{k} {numbers[k]:.4g}" for k in shown if k in numbers)
        rate = (time.monotonic() - self.begun) / max(1, step - self.first)
        left = rate * (self.total - step)
        line = f"step {step}/{self.total}  {words}  {left:.0f} s left"
        if self.console:
            self.console.print(line, highlight=True)
        else:
            log.info("%s", line)

    def _write_events(self, step: int, numbers: dict[str, float]) -> None:
        if self.events is None:
            self.events = _event_file(self.path.with_name("tensorboard"), self.first)
            # What earlier files have of later steps is void from here on.
            restart = SessionLog(status=SessionLog.START)
            self._event(self.first + 1, session_log=restart)
        values = [Summary.Value(tag=k, simple_value=v) for k, v in numbers.items()]
        self._event(step, summary=Summary(value=values))

    def _event(self, step: int, **what) -> None:
        self.events.write_event(Event(wall_time=time.time(), step=step, **what))
        self.events.flush()  # a kill loses no step that metrics.jsonl has


def _event_file(folder: Path, resume_at: int) -> EventsWriter:
    """Open a new event file. Names count seconds, and a restart may be faster."""
    folder.mkdir(exist_ok=True)
    return EventsWriter(str(folder / "events"), f".{resume_at}")


def _number(value: Any) -> float:
    number = float(np.asarray(value))
    return round(number, 8) if np.isfinite(number) else number


def _keep_until(path: Path, step: int) -> None:
    if not path.exists():
        return
    kept = []
    for line in path.read_text().splitlines():
        try:
            if json.loads(line)["step"] <= step and step:
                kept.append(line)
        except ValueError:  # the line that a kill cut short
            continue
    temporary = path.with_suffix(".new")
    temporary.write_text("".join(line + "\n" for line in kept))
    os.replace(temporary, path)


def read(workdir: str | Path) -> list[dict[str, float]]:
    """Read a run's metrics, one dict a step; a last line that a kill cut is left out.

    Raises:
        FileNotFoundError: there are none.
        ValueError: a line is damaged, or no line of metrics.
    """
    path = Path(workdir) / "metrics.jsonl"
    if not path.exists():
        raise FileNotFoundError(f"{workdir} is not a run: it has no metrics.jsonl")
    written = path.read_bytes().splitlines()
    found = []
    for number, line in enumerate(written, 1):
        try:
            numbers = json.loads(line)
        except ValueError as error:
            if number == len(written):
                break
            raise ValueError(f"{path} is damaged in line {number}: {error}") from error
        if not _is_a_step(numbers):
            raise ValueError(
                f"{path}: line {number} is not a step and its numbers: {line[:60]!r}"
            )
        found.append(numbers)
    return found


def _is_a_step(line: Any) -> bool:
    """Say whether a line is what `write` writes: `step`, and numbers by name."""
    return (
        isinstance(line, dict)
        and "step" in line
        and all(isinstance(value, (int, float)) for value in line.values())
    )


def last(workdir: str | Path) -> dict[str, float]:
    """Return the last numbers that a run wrote, none for a run that begins."""
    path = Path(workdir) / "metrics.jsonl"
    lines = read(workdir) if path.exists() else []
    return {k: v for k, v in lines[-1].items() if k != "step"} if lines else {}


@contextmanager
def bar(title: str, total: int, done: int = 0):
    """Show how many episodes are over, and won: a bar on a terminal, else ten lines.

    Yields:
        A function to call with each episode's outcome.
    """
    won = over = 0
    console = Console(stderr=True)
    with Progress(console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task(title, total=total, completed=done)

        def count(success: bool) -> None:
            nonlocal won, over
            over, won = over + 1, won + bool(success)
            words = f"{title}: {won}/{over} won"
            progress.update(task, advance=1, description=words)
            tenth = max(1, total // 10)
            at_tenth = (done + over) % tenth == 0 or done + over == total
            if not console.is_terminal and at_tenth:
                log.info("%s, %d of %d", words, done + over, total)

        yield count


def stop_unless_finite(numbers: dict[str, Any], step: int, checkpoints: Any) -> None:
    """Raise ValueError where an update was not finite, and say what is still good."""
    if not np.asarray(numbers["optim/finite"]):
        last = checkpoints.latest_step()
        good = "there is no checkpoint"
        if last is not None:
            good = f"the last good checkpoint is step {last}"
        raise ValueError(
            f"loss or gradient of step {step} is not finite; {good} under "
            f"{checkpoints.directory}"
        )
