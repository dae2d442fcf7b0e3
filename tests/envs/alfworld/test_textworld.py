"""The real engine in worker processes: the same words, and nothing that hangs."""

import json
import os
import signal
import stat
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from evoharness_jax.envs.alfworld import data
from evoharness_jax.envs.alfworld.domain import make
from evoharness_jax.envs.alfworld.textworld import Pool
from evoharness_jax.envs.domain import Task

# The engine as it comes, without a cache, on the stored solution of a game.
BARE = """
import json, sys
import textworld
from textworld.envs import PddlEnv
from alfworld.agents.environment.alfred_tw_env import AlfredDemangler
infos = textworld.EnvInfos(won=True, admissible_commands=True)
env, game = AlfredDemangler(PddlEnv(infos)), sys.argv[1]  # a load replaces sys.argv
env.load(game)
states = [env.reset()]
for command in json.load(open(game))["walkthrough"]:
    states.append(env.step(command)[0])
print(json.dumps([[s.feedback, s["admissible_commands"], s["won"]] for s in states]))
"""
# A parent that starts a worker, tells its process id, and waits to be killed.
PARENT = """
import sys, time
from evoharness_jax.envs.alfworld.textworld import Pool
from evoharness_jax.envs.domain import Task
pool = Pool(1, cache_dir=sys.argv[2])
seat, _ = pool.reset(Task("", "", "", sys.argv[1]))
print(pool._alive[seat.worker].process.pid, flush=True)
time.sleep(600)
"""


def solution(task):
    return json.loads(Path(task.spec).read_text())["walkthrough"]


def process_of(pool, seat):
    return pool._alive[seat.worker].process


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def tasks(alfworld_data):
    return data.games("train", str(alfworld_data))


@pytest.fixture(scope="module")
def pool(cache):
    with Pool(2, timeout=120.0, cache_dir=cache) as pool:
        yield pool


def test_a_worker_imports_no_jax():
    code = (
        "import sys, evoharness_jax.envs.alfworld.worker; "
        "sys.exit('jax' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_arguments_are_checked(tmp_path):
    with pytest.raises(ValueError, match="workers=0"):
        Pool(0)
    with pytest.raises(ValueError, match="unknown engine: 'thor'"):
        make("thor", str(tmp_path))
    with pytest.raises(ValueError, match="unknown prompt: 'long'"):
        make(root=str(tmp_path), prompt="long")
    with pytest.raises(ValueError, match="nowhere is not a folder"):
        make(root=str(tmp_path / "nowhere"))


def test_translations_lie_where_only_we_can_write(tmp_path):
    Pool(1, cache_dir=tmp_path)
    folder = tmp_path / "translations"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    folder.chmod(0o777)
    with pytest.raises(PermissionError, match="translations"):
        Pool(1, cache_dir=tmp_path)


def test_the_prompt_tells_only_of_what_is_on(tmp_path):
    domain = make(root=str(tmp_path))
    every = frozenset(("belief", "progress", "experience"))
    inline = domain.prompt("inline", every)
    assert all(f"{verb} [" in inline for verb in ("track", "commit", "recall", "note"))
    assert "track" not in domain.prompt("inline", every - {"belief"})
    assert "recall" not in domain.prompt("inline", every - {"experience"})
    always = domain.prompt("always_on", every - {"progress"})
    assert "known:" in always and "plan:" not in always and "track [" not in always
    assert "workspace" not in domain.prompt("env_only", every)
    terse = make(root=str(tmp_path), prompt="terse")
    assert len(terse.prompt("inline", every).split()) < 60
    with pytest.raises(ValueError, match="mode='never'"):
        domain.prompt("never", every)
    with pytest.raises(ValueError, match="'plans'"):
        domain.prompt("inline", frozenset(("plans",)))


@pytest.mark.alfworld
def test_the_cached_engine_says_what_the_bare_one_says(pool, tasks):
    task = tasks[-1]
    seat, first = pool.reset(task)
    seen = [first, *(pool.step(seat, command)[1] for command in solution(task))]
    pool.release(seat)
    bare = subprocess.run(
        [sys.executable, "-c", BARE, task.spec], capture_output=True, check=True
    )
    assert [[o.text, list(o.commands), o.won] for o in seen] == json.loads(bare.stdout)
    assert [o.done for o in seen] == [False] * (len(seen) - 1) + [True]
    assert {o.objective for o in seen} == {first.objective} != {""}


@pytest.mark.alfworld
def test_a_command_is_found_by_its_letters_and_others_are_not_sent(pool, tasks):
    seat, first = pool.reset(tasks[0])
    place = next(c for c in first.commands if c.startswith("go to "))
    seat, arrived = pool.step(seat, f" {place.upper()}  ")
    assert arrived.valid and place.removeprefix("go to ") in arrived.text
    seat, refused = pool.step(seat, "fly to the moon")
    assert (refused.text, refused.valid) == ("Nothing happens.", False)
    assert (refused.commands, refused.done) == (arrived.commands, False)
    pool.release(seat)


@pytest.mark.alfworld
def test_one_process_plays_game_after_game(pool, tasks):
    processes = set()
    for task in tasks[:3]:
        seat, first = pool.reset(task)
        assert first.text.startswith("-= Welcome") and not first.info
        processes.add(process_of(pool, seat).pid)
        pool.release(seat)
    assert len(processes) <= pool.workers and pool.lost == 0


@pytest.mark.alfworld
def test_threads_play_at_once(pool, tasks):
    def play(task):
        seat, seen = pool.reset(task)
        for command in solution(task):
            seat, seen = pool.step(seat, command)
        pool.release(seat)
        return seen.won

    with ThreadPoolExecutor(2) as threads:
        assert all(threads.map(play, tasks[:4]))


@pytest.mark.alfworld
def test_a_killed_worker_ends_its_episode_only(pool, tasks):
    lost = pool.lost
    seat, _ = pool.reset(tasks[0])
    other, first = pool.reset(tasks[1])
    process_of(pool, seat).kill()
    seat, seen = pool.step(seat, "look")
    assert (seen.done, seen.won) == (True, False)
    assert "died (exit code -9)" in seen.info["error"]
    # Its seat stays an error, and never waits.
    assert "over" in pool.step(seat, "look")[1].info["error"]
    assert not pool.step(other, first.commands[0])[1].info
    again, seen = pool.reset(tasks[0])
    assert not seen.info and pool.lost == lost + 1
    pool.release(other)
    pool.release(again)


@pytest.mark.alfworld
def test_a_worker_killed_while_idle_costs_no_episode(pool, tasks):
    seat, _ = pool.reset(tasks[0])
    process = process_of(pool, seat)
    pool.release(seat)
    process.kill()
    process.wait()
    seats = []
    for task in tasks[:2]:
        seat, seen = pool.reset(task)
        assert not seen.info
        seats.append(seat)
    for seat in seats:
        pool.release(seat)


@pytest.mark.alfworld
def test_a_hung_worker_is_killed(pool, tasks, monkeypatch):
    seat, _ = pool.reset(tasks[0])
    process = process_of(pool, seat)
    process.send_signal(signal.SIGSTOP)
    monkeypatch.setattr(pool, "timeout", 0.3)
    begun = time.monotonic()
    _, seen = pool.step(seat, "look")
    assert time.monotonic() - begun < 5.0
    assert seen.done and seen.info["error"] == "no answer in 0.3 s"
    assert process.returncode == -signal.SIGKILL


@pytest.mark.alfworld
@pytest.mark.parametrize("problem", ["(define", "(define (problem x) (:domain y))"])
def test_a_broken_game_ends_with_its_name(pool, tasks, tmp_path, problem):
    content = json.loads(Path(tasks[0].spec).read_text())
    game = tmp_path / data.GAME
    game.write_text(json.dumps({**content, "pddl_problem": problem}))
    _, seen = pool.reset(Task("broken", tasks[0].type, "train", str(game)))
    assert seen.done and not seen.won and str(game) in seen.info["error"]
    seat, seen = pool.reset(tasks[0])
    assert not seen.info
    pool.release(seat)


@pytest.mark.alfworld
def test_live_episodes_beyond_the_workers_are_refused(pool, tasks, monkeypatch):
    seats = [pool.reset(task)[0] for task in tasks[:2]]
    monkeypatch.setattr(pool, "timeout", 0.2)
    with pytest.raises(RuntimeError, match="all 2 simulators hold a live episode"):
        pool.reset(tasks[2])
    for seat in seats:
        pool.release(seat)


@pytest.mark.alfworld
def test_a_damaged_translation_is_made_again(cache, tasks, tmp_path):
    folder = tmp_path / "translations"
    for _ in range(2):
        with Pool(1, cache_dir=tmp_path) as pool:
            assert not pool.reset(tasks[0])[1].info
        (stored,) = folder.iterdir()
        assert stored.stat().st_size > 1000
        stored.write_bytes(b"damaged")


@pytest.mark.alfworld
def test_closing_ends_every_process(cache, tasks):
    with Pool(1, cache_dir=cache) as pool:
        seat, _ = pool.reset(tasks[0])
        process = process_of(pool, seat)
        maps = Path(f"/proc/{process.pid}/maps").read_text()
        assert "libdownward" in maps and "jaxlib" not in maps
    assert process.poll() is not None
    assert pool.step(seat, "look")[1].info["error"]
    with pytest.raises(RuntimeError, match="closed"):
        pool.reset(tasks[0])


@pytest.mark.alfworld
def test_workers_leave_with_a_parent_that_is_killed(cache, tasks):
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, tasks[0].spec, str(cache)],
        stdout=subprocess.PIPE,
    )
    worker = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    deadline = time.monotonic() + 10.0
    while _runs(worker) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not _runs(worker)


def _runs(pid: int) -> bool:
    """Say whether a process runs; one that nobody has buried yet does not."""
    try:
        os.kill(pid, 0)
        status = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (ProcessLookupError, FileNotFoundError):
        return False
    return status != "Z"
