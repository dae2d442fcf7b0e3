"""The processes of a job: how they find each other, wait, and say who is missing.

    config.distributed.init = none       one process (the default)
                              auto       a TPU pod, GKE or Slurm: JAX knows the others
                              explicit   coordinator, processes and process are given

Every process runs the same program. What they tell each other on the host goes through
JAX's coordination service, never through the devices, so a rollout may take as long as
it takes in each of them. Nobody waits for ever: who waits names who is missing, and a
process that dies or fails is named by all the others, which end too.

SIGTERM (preemption) asks all processes to stop: what runs saves and ends in order.
"""

import json
import os
import signal
import socket
import sys
import threading
import time
import traceback
from typing import Any, NamedTuple

import jax
from jax._src import distributed

from evoharness_jax.metrics import log

PATIENT = 7 * 24 * 3600.0  # seconds
BEAT = 2.0  # seconds between two signs of life
UNFORESEEN = "an unforeseen error"
GONE = "process {} has not been heard of for {:.0f} s"


class LostProcess(OSError):
    """Another process of the job is gone, or did not come to a meeting."""


class Stopped(Exception):
    """The job was asked to stop; raised where waiting on would be too long."""


class Settings(NamedTuple):
    """`config.distributed`."""

    init: str = "none"  # none | auto | explicit
    coordinator: str = ""  # explicit: host:port of process 0
    processes: int = 1  # explicit
    process: int = 0  # explicit: which of them this one is
    timeout: float = 600.0  # seconds until a meeting has failed
    patience: float = 30.0  # seconds without a sign of life until a process is lost


class _Job:
    """What this process knows about the others."""

    settings = Settings()
    names = ("here",)  # host and process id of each
    meetings = 0  # so far; all processes hold the same ones in the same order
    failed = float("inf")  # when this process did
    over = threading.Event()
    stop = threading.Event()


def start(settings: Settings) -> None:
    """Join the job; to be called once, before anything asks for devices.

    Raises:
        ValueError: the settings contradict each other.
        LostProcess: the others did not come within the timeout.
    """
    _check(settings)
    _Job.settings = settings
    if settings.init != "none":
        _join(settings)


def _join(settings: Settings) -> None:
    given = {}
    if settings.init == "explicit":
        given = {
            "coordinator_address": settings.coordinator,
            "num_processes": settings.processes,
            "process_id": settings.process,
        }
    try:
        jax.distributed.initialize(
            **given, initialization_timeout=int(settings.timeout)
        )
    except RuntimeError as error:
        raise LostProcess(
            f"distributed: the processes did not find each other within "
            f"{settings.timeout:g} s ({given or settings.init}): {error}"
        ) from error
    me = f"{jax.process_index()} ({socket.gethostname()}, pid {os.getpid()})"
    _Job.names = tuple(gather("start", me))
    threading.Thread(target=_watch, daemon=True).start()
    if jax.process_index() == 0:
        log.info("%d processes: %s", count(), "; ".join(_Job.names))


def _check(settings: Settings) -> None:
    if settings.init not in ("none", "auto", "explicit"):
        raise ValueError(
            f"distributed.init: {settings.init!r}, not one of none, auto, explicit"
        )
    if settings.init != "explicit":
        return
    if ":" not in settings.coordinator:
        raise ValueError(
            "distributed.coordinator: host:port of process 0 is wanted: "
            f"{settings.coordinator!r}"
        )
    if not 0 <= settings.process < settings.processes:
        raise ValueError(
            f"distributed.process must lie below distributed.processes = "
            f"{settings.processes}: {settings.process}"
        )


def heed_sigterm() -> None:
    """Take SIGTERM as the wish to stop; for what asks `stopping` at every step.

    After `start`: JAX has a handler of its own, which only takes note.
    """
    signal.signal(signal.SIGTERM, lambda *_: _Job.stop.set())


def index() -> int:
    """Return which process this is; 0 leads: it writes and logs."""
    return jax.process_index()


def count() -> int:
    """Return how many processes there are."""
    return jax.process_count()


def gather(name: str, value: Any, patient: bool = False) -> list[Any]:
    """Meet: return the (JSON) values of all processes, by index.

    Args:
        name: what the meeting is about, for the message.
        patient: wait as long as all are alive, for what takes its time in one of them.

    Raises:
        LostProcess: not all came within the timeout; names who is missing.
    """
    if count() == 1:
        return [value]
    client, number = _client(), _Job.meetings
    _Job.meetings += 1
    client.key_value_set(_key(number, index()), json.dumps([name, value]))
    found = _await(number, name, PATIENT if patient else _Job.settings.timeout)
    for process, (topic, _) in enumerate(found):
        if topic != name:
            raise LostProcess(
                f"process {_Job.names[process]} is at {topic!r}, process "
                f"{_Job.names[index()]} at {name!r}: they do not run the same program"
            )
    if number:  # whoever is here has read the meeting before
        client.key_value_delete(_key(number - 1, index()))
    return [value for _, value in found]


def _await(number: int, name: str, timeout: float) -> list:
    found = []
    until = time.monotonic() + timeout
    for process in range(count()):
        left = max(1, int(1000 * (until - time.monotonic())))
        try:
            words = _client().blocking_key_value_get(_key(number, process), left)
        except RuntimeError as error:
            missing = [
                _name(p) for p in range(count()) if _peek(_key(number, p)) is None
            ]
            raise LostProcess(
                f"waited {timeout:g} s at {name!r} for process "
                f"{', '.join(missing) or _name(process)}"
            ) from error
        found.append(json.loads(words))
    return found


def agreed(name: str, value: Any) -> Any:
    """Return process 0's value in all of them."""
    return gather(name, value)[0]


def meet(name: str, patient: bool = False) -> None:
    """Wait for all processes."""
    gather(name, None, patient)


def leads() -> bool:
    """Say whether this is the process that writes and logs."""
    return index() == 0


def asked_to_stop() -> bool:
    """Say whether this process knows that the job was asked to stop."""
    return _Job.stop.is_set()


def stopping(name: str) -> bool:
    """Say whether all processes stop here; they all get the same answer."""
    return any(gather(name, asked_to_stop()))


def leave(failure: str = "") -> None:
    """Leave the job: in order, once all are done, or telling the others why."""
    if _Job.settings.init == "none" or not _client():
        return
    if not failure:
        meet("end", patient=True)
        _Job.over.set()
        jax.distributed.shutdown()
        return
    _Job.failed = time.monotonic()
    error = sys.exc_info()[1]
    if isinstance(error, SystemExit):
        print(error.code, file=sys.stderr, flush=True)
    else:
        traceback.print_exc()
    try:
        _client().key_value_set(f"failed/{index()}", failure)
    except RuntimeError:  # they will notice the silence
        log.debug("the failure could not be told", exc_info=True)
    _look_round()
    time.sleep(2 * BEAT)
    os._exit(1)  # in order it would wait for the others


def _look_round() -> None:
    """Wait for a sign of life of all others: a failure may follow from a death.

    Then `_watch` says whose it was, and ends this process.
    """
    others = [p for p in range(count()) if p != index()]
    until = time.monotonic() + _Job.settings.patience + 2 * BEAT
    try:
        before = {p: _peek(f"alive/{p}") for p in others}
        while time.monotonic() < until and any(
            _peek(f"alive/{p}") == before[p] and _peek(f"failed/{p}") is None
            for p in others
        ):
            time.sleep(BEAT / 2)
    except RuntimeError:  # process 0 has gone
        return


def _watch() -> None:
    """Give signs of life, look for those of the others, pass a stop on."""
    client, patience = _client(), _Job.settings.patience
    heard = {p: ("", time.monotonic()) for p in range(count()) if p != index()}
    beat, silent, since = 0, time.monotonic(), {}
    while not _Job.over.wait(BEAT):
        try:
            client.key_value_set(f"alive/{index()}", str(beat), allow_overwrite=True)
            if _Job.stop.is_set():
                client.key_value_set("stop", "", allow_overwrite=True)
            elif _peek("stop") is not None:
                _Job.stop.set()
            signs = {p: _peek(f"alive/{p}") for p in heard}
            failed = {p: _peek(f"failed/{p}") for p in heard}
        except RuntimeError:
            if time.monotonic() - silent > patience:
                _end(GONE.format(_name(0), patience))
            continue
        beat, now = beat + 1, time.monotonic()
        silent = now
        for process, sign in signs.items():
            words = failed[process]
            if words == UNFORESEEN:  # it may be the death of a third one
                since.setdefault(process, now)
            if words and now - since.get(process, 0) > patience + 2 * BEAT:
                _end(f"process {_name(process)} failed: {words}")
            if sign != heard[process][0]:
                heard[process] = sign, now
            # One that ends because this one failed is not lost.
            elif _Job.failed + BEAT > heard[process][1] < now - patience:
                _end(GONE.format(_name(process), patience))


def _end(words: str) -> None:
    if _Job.over.is_set():
        return
    print(f"error: {words}; process {_name(index())} ends", file=sys.stderr, flush=True)
    if index() == 0:
        time.sleep(3 * BEAT)  # its service has to outlive what the others still say
    os._exit(1)


def _name(process: int) -> str:
    names = _Job.names
    return names[process] if process < len(names) else str(process)


def _key(number: int, process: int) -> str:
    return f"meeting/{number}/{process}"


def _peek(key: str) -> str | None:
    try:
        return _client().key_value_try_get(key)
    except RuntimeError as error:
        if "NOT_FOUND" in str(error):
            return None
        raise


def _client():
    return distributed.global_state.client
