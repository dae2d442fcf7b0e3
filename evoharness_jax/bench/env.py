"""How fast our ALFWorld engine is, beside stock TextWorld in the same run.

    python -m evoharness_jax.bench.env [--data DIR] [--games N] [--seconds S]

Same games, one core for both, nothing of TextWorld cached. A step includes the text
and the list of admissible commands; a new episode is `load` + `reset` there, and here
the compiled game read from disk and reset. Times are processor time of this process,
so that what else the machine does does not count. One JSON line:

    steps_per_s        ours, 128 episodes a call      real_steps_per_s  TextWorld's
    step_ratio         of the two                     batch128_ms       one call of 128
    episode_ratio      TextWorld's new episode / ours, from the cache of compiled games
    compile_ratio      TextWorld's load / our compiling of the same file
    bytes_per_episode  tables and state of one more episode in a batch
"""

import argparse
import json
import logging
import os
import random
import sys
import tempfile
import time
from statistics import fmean, median

import jax

from evoharness_jax.bench.parity import choose, find, real_engine
from evoharness_jax.envs.alfworld import batch as batches
from evoharness_jax.envs.alfworld import engine
from evoharness_jax.envs.alfworld.game import load, load_cached

EPISODES = 128
STEPS = 15  # of the real engine, per game
TICKS = 20  # of ours, per game of the real engine


def timed(function, *arguments):
    """Call: (seconds of processor time, result)."""
    started = time.process_time()
    result = function(*arguments)
    return time.process_time() - started, result


def real_game(env, path: str, rng: random.Random) -> tuple[float, float, list[float]]:
    """Play a random walk in TextWorld: seconds to load, to reset and of each step."""
    loading, _ = timed(env.load, path)
    resetting, state = timed(env.reset)
    steps = []
    for _ in range(STEPS):
        command = rng.choice(state["admissible_commands"])
        seconds, (state, _, _) = timed(env.step, command)
        steps.append(seconds)
    return loading, resetting, steps


def measure(paths: list[str], seconds: float, seed: int = 0) -> dict:
    """Measure both engines on the games of `paths`, for about `seconds`."""
    rng = random.Random(seed)
    until = time.monotonic() + seconds
    times = {
        name: [] for name in ("load", "reset", "step", "ours", "compile", "episode")
    }
    games = [load(path) for path in paths]
    many = [games[i % len(games)] for i in range(EPISODES)]
    batch, states, seen = batches.start(many)
    commands = [rng.choice(observation.commands) for observation in seen]
    states, seen = batches.step(batch, states, commands)  # compiles
    env = real_engine(fast=False)
    with tempfile.TemporaryDirectory() as cache:
        for path in paths:
            if times["load"] and time.monotonic() > until:
                break
            loading, resetting, steps = real_game(env, path, rng)
            times["load"].append(loading)
            times["reset"].append(resetting)
            times["step"] += steps
            times["compile"] += [timed(load, path)[0] for _ in range(3)]
            load_cached(path, cache)
            for _ in range(3):
                spent, _ = timed(lambda p: engine.reset(load_cached(p, cache)), path)
                times["episode"].append(spent)
            for _ in range(TICKS):
                commands = [rng.choice(observation.commands) for observation in seen]
                spent, (states, seen) = timed(batches.step, batch, states, commands)
                times["ours"].append(spent)
            logging.info("%d games of %d", len(times["load"]), len(paths))
    held = sum(leaf.nbytes for leaf in jax.tree.leaves((batch.tables, states)))
    new = fmean(times["load"]) + fmean(times["reset"])
    return {
        "steps_per_s": round(EPISODES / fmean(times["ours"]), 1),
        "real_steps_per_s": round(1 / fmean(times["step"]), 2),
        "step_ratio": round(fmean(times["step"]) * EPISODES / fmean(times["ours"]), 1),
        "batch128_ms": round(1e3 * median(times["ours"]), 2),
        "episode_ratio": round(new / fmean(times["episode"]), 1),
        "compile_ratio": round(fmean(times["load"]) / fmean(times["compile"]), 1),
        "bytes_per_episode": held // EPISODES,
        "real_episode_s": round(new, 3),
        "episode_ms": round(1e3 * fmean(times["episode"]), 3),
        "compile_ms": round(1e3 * fmean(times["compile"]), 2),
        "sizes": batch.sizes._asdict(),
        "games": len(times["load"]),
    }


def main(arguments: list[str] | None = None) -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default=os.environ.get("ALFWORLD_DATA"))
    parser.add_argument("--games", type=int, default=24)
    parser.add_argument("--seconds", type=float, default=300.0)
    options = parser.parse_args(arguments)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(message)s")
    if hasattr(os, "sched_setaffinity"):  # before JAX starts its threads
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    with tempfile.TemporaryDirectory() as folder:
        if not options.data:
            from evoharness_jax.envs.alfworld import households

            households.write(folder, range(options.games))
        paths, _ = choose(find(options.data or folder), options.games, seed=0)
        print(json.dumps(measure(paths, options.seconds)), flush=True)


if __name__ == "__main__":
    main()
