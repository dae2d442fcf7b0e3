"""Play games in our engine and in TextWorld's, side by side, and compare every step.

    python -m evoharness_jax.bench.parity --data DIR --games N --walks M [--log FILE]

Each game is played along its plan (stored, else made here) and M random walks. A walk
takes any kind of command equally often, goes on errands for the rare ones (heat, slice,
use, ...), and now and then types what the game must refuse. Compared are the text, the
admissible commands in their order, won, done and score. With `--log` a run that was cut
short goes on where it stopped. One JSON line: games, steps, differences, and how often
each kind of command and each special situation was met.
"""

import argparse
import json
import logging
import os
import random
import re
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from evoharness_jax.envs.alfworld import engine, plan
from evoharness_jax.envs.alfworld.game import Game, GameError, load
from evoharness_jax.envs.alfworld.tables import (
    EXAMINE_THING,
    KINDS,
    MOVE,
    TAKE,
    State,
)
from evoharness_jax.types import NONE

STEPS = 40  # commands in a walk
ABSURD = (
    "",
    "   ",
    "go to",
    "go to the moon 1",
    "take everything",
    "Look",
    "LOOK",
    "look around",
    "put it down",
    "{r}",
    "%s %d \\n",
    "look\ninventory",
    "\x00\x1b[31mlook\x7f",
    "\u00e9tag\u00e8re 1 \u6253\u5f00 \U0001f9c2",
    "x" * 10_000,
)
SITUATIONS = {
    "closed": r"is closed\.",
    "opened": r"is open\. In it",
    "empty": r"you see nothing",
    "beside": r"Next to it, you see a",
    "shared place": r"facing the [^.]+, ",
    "hot": r"This is a hot",
    "cold": r"This is a co[ol]",
    "clean": r"This is a .*clean",
    "sliced": r"This is a .*sliced",
    "container": r"This is a normal",
    "in a container": r"This is a normal .* you see a",
    "lamp": r"You turn on",
}


def real_engine(fast: bool = True):
    """Build TextWorld's engine as ALFWorld 0.4.2 does; `fast` caches its parsing."""
    arguments = list(sys.argv)  # the translator writes into them
    import textworld
    from alfworld.agents.environment.alfred_tw_env import AlfredDemangler
    from textworld.envs import PddlEnv

    from evoharness_jax.envs.alfworld import worker

    if fast:
        worker.cached(None)
    sys.argv[:] = arguments
    infos = textworld.EnvInfos(won=True, admissible_commands=True)
    return AlfredDemangler(PddlEnv(infos))


def spoil(rng: random.Random, game: Game, commands: tuple[str, ...]) -> str:
    """Give a command that is misspelled, in other case, not possible now, or absurd."""
    command = rng.choice(commands)
    at = rng.randrange(len(command))
    return rng.choice(
        (
            rng.choice(game.commands),
            rng.choice(game.commands),
            command.upper(),
            command.title(),
            command[:at] + command[at + 1 :],
            command[:at] + rng.choice("aeiou1 ") + command[at:],
            f"  {command}\t\n",
            command + " please",
            rng.choice(ABSURD),
        )
    )


def walk(game: Game, rng: random.Random, steps: int = STEPS) -> Iterator[str]:
    """Give commands; the caller sends back the state and observation after each."""
    state, observation = yield ""
    errand, left, queue = NONE, 0, []
    for _ in range(steps):
        command = queue.pop() if queue else None
        if command is None and left > 0:
            action = plan.toward(game, state, errand)
            left = 0 if action in (NONE, errand) else left - 1
            command = None if action == NONE else game.commands[action]
        if command is None and rng.random() < 0.15:
            command = spoil(rng, game, observation.commands)
        if command is None and rng.random() < 0.4:
            kinds = np.unique(game.tables.kind)
            kind = rng.choice([k for k in kinds if KINDS[k] not in ("look", "help")])
            errand = int(rng.choice(np.flatnonzero(game.tables.kind == kind).tolist()))
            action = plan.toward(game, state, errand)
            left = 8 if action not in (NONE, errand) else 0
            command = None if action == NONE else game.commands[action]
        if command is None:
            by_verb = defaultdict(list)
            for allowed in observation.commands:
                by_verb[allowed.split()[0]].append(allowed)
            command = rng.choice(by_verb[rng.choice(sorted(by_verb))])
        before = state
        state, observation = yield command
        if observation.valid and not queue and rng.random() < 0.5:
            queue = afterwards(game, before, state, command)


def afterwards(game: Game, before: State, state: State, command: str) -> list[str]:
    """Give what is worth typing after a command, last first."""
    action = engine.find(game, command)
    kind = int(game.tables.kind[action])
    if kind == MOVE:
        return ["look"]
    if kind == TAKE:  # put it down beside, where two places share a spot
        mask = engine.admissible(np, game.tables, state)
        moves = np.flatnonzero(mask & (game.tables.kind == MOVE))
        there = [i for i in moves if game.tables.place[i] != game.tables.place[action]]
        return ["look", game.commands[there[0]]] if there else []
    if (before.flags != state.flags).any():
        held = game.tables.thing[action]
        examine = plan.number(game, EXAMINE_THING, int(held))
        return [game.commands[examine]] if examine != NONE else []
    return []


def compare(env, path: str, game: Game, walks: int, seed: int) -> dict:
    """Play one game in both engines: steps, differences, kinds and situations."""
    env.load(path)
    result = {
        "steps": 0,
        "differences": [],
        "kinds": Counter(),
        "situations": Counter(),
    }
    script = game.walkthrough or plan.solve(game)
    for number in range(-1, walks):
        rng = random.Random(f"{seed} {game.id} {number}")
        player = iter(script) if number < 0 else walk(game, rng)
        real = env.reset()
        state, observation = engine.reset(game)
        _check(result, observation, real, 0, False, (path, number, "reset"))
        if number >= 0:
            next(player)
        while True:
            try:
                if number < 0:
                    command = next(player)
                else:
                    command = player.send((state, observation))
            except StopIteration:
                break
            real, score, done = env.step(command)
            state, observation = engine.step(game, state, command)
            result["steps"] += 1
            _check(result, observation, real, score, done, (path, number, command))
            if observation.valid:
                action = engine.find(game, command)
                result["kinds"][KINDS[int(game.tables.kind[action])]] += 1
            else:
                result["kinds"]["refused"] += 1
            for name, pattern in SITUATIONS.items():
                found = re.search(pattern, observation.text) is not None
                result["situations"][name] += found
    return result


def _check(result, ours, real, score, done, where) -> None:
    mine = (ours.text, list(ours.commands), ours.won, ours.score, ours.done)
    theirs = (real.feedback, real["admissible_commands"], real["won"], score, done)
    for name, a, b in zip(("text", "commands", "won", "score", "done"), mine, theirs):
        if a != b:
            result["differences"].append([*where, name, repr(a)[:400], repr(b)[:400]])


def find(folder: str) -> list[str]:
    """Give all game files under `folder`, sorted."""
    return sorted(str(path) for path in Path(folder).rglob("game.tw-pddl"))


def choose(paths: list[str], count: int, seed: int) -> tuple[list, Counter]:
    """Compile games until `count` are had, as many of each task type as there are."""
    paths = list(paths)
    random.Random(seed).shuffle(paths)
    by_type, skipped = defaultdict(list), Counter()
    for path in paths:
        if count and len(by_type) == 6 and min(map(len, by_type.values())) >= count / 6:
            break
        try:
            game = load(path)
        except GameError as error:
            skipped[error.reason] += 1
            continue
        if not count or len(by_type[game.task_type]) < count:
            by_type[game.task_type].append(path)
    kept, rank = [], 0
    while any(rank < len(games) for games in by_type.values()):
        kept += [by_type[t][rank] for t in sorted(by_type) if rank < len(by_type[t])]
        rank += 1
    return kept[: count or None], skipped


def measure(
    paths: list[str], walks: int, seed: int, log: str | None, fast: bool, until
):
    """Compare the games of `paths`; the results that `log` has are not redone."""
    done = {}
    if log and os.path.exists(log):
        with open(log) as file:
            lines = [line for line in file if line.endswith("\n")]
        done = {r["id"]: r for r in map(json.loads, lines) if r["walks"] >= walks}
    env, results = None, []
    for path in paths:
        game = load(path)
        if game.id in done:
            results.append(done[game.id])
            continue
        if time.monotonic() > until:
            continue
        env = env or real_engine(fast)
        result = {
            "id": game.id,
            "walks": walks,
            **compare(env, path, game, walks, seed),
        }
        results.append(result)
        for difference in result["differences"]:
            logging.warning("%s", difference)
        logging.info("%d games, %d steps: %s", len(results), result["steps"], path)
        if log:
            with open(log, "a") as file:
                file.write(json.dumps(result) + "\n")
    return results


def main(arguments: list[str] | None = None) -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default=os.environ.get("ALFWORLD_DATA"))
    parser.add_argument("--games", type=int, default=24, help="0: all")
    parser.add_argument("--walks", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log", help="results by game, to go on from")
    parser.add_argument("--stock", action="store_true", help="leave TextWorld uncached")
    parser.add_argument("--seconds", type=float, default=540.0)
    options = parser.parse_args(arguments)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(message)s")
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        data = options.data
        if not data:
            from evoharness_jax.envs.alfworld import households

            data = folder
            households.write(folder, range(options.games or 24))
        paths, skipped = choose(find(data), options.games, options.seed)
        results = measure(
            paths,
            options.walks,
            options.seed,
            options.log,
            not options.stock,
            started + options.seconds,
        )
    total = {name: Counter() for name in ("kinds", "situations")}
    for result in results:
        for name, counter in total.items():
            counter.update(result[name])
    line = {
        "games": len(results),
        "steps": sum(result["steps"] for result in results),
        "differences": sum(len(result["differences"]) for result in results),
        **{name: dict(counter.most_common()) for name, counter in total.items()},
        "chosen": len(paths),
        "skipped": dict(skipped),
        "walks": options.walks,
        "engine": "stock" if options.stock else "cached",
        "seconds": round(time.monotonic() - started, 1),
    }
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
