"""Record what TextWorld says in generated homes: `python tests/golden/record_homes.py`.

One home of each task type: its plan, then a random walk. Of the admissible commands a
step keeps what came and what went.
"""

import json
import random
import tempfile
from pathlib import Path

from evoharness_jax.bench import parity
from evoharness_jax.envs.alfworld import engine, households
from evoharness_jax.envs.alfworld.data import TASK_TYPES
from evoharness_jax.envs.alfworld.game import load

FIRST = 500  # seed of the first home


def record(env, seed: int, task: str, folder: str) -> dict:
    """Play one home in TextWorld; our engine only tells the walk where it is."""
    (path,) = households.write(folder, [seed], task)
    game = load(path)
    env.load(path)
    real = env.reset()
    result = {"seed": seed, "task": task, "intro": real.feedback}
    result |= {"commands": real["admissible_commands"], "steps": []}
    state, observation = engine.reset(game)
    walk = parity.walk(game, random.Random(seed), 25)
    next(walk)
    known = set(real["admissible_commands"])
    script = list(game.walkthrough)
    while True:
        try:
            command = script.pop(0) if script else walk.send((state, observation))
        except StopIteration:
            return result
        real, _, _ = env.step(command)
        state, observation = engine.step(game, state, command)
        now = set(real["admissible_commands"])
        step = [command, real.feedback, sorted(now - known), sorted(known - now)]
        result["steps"].append([*step, bool(real["won"])])
        known = now


if __name__ == "__main__":
    env = parity.real_engine()
    with tempfile.TemporaryDirectory() as folder:
        records = [
            record(env, FIRST + i, task, folder) for i, task in enumerate(TASK_TYPES)
        ]
    lines = ",\n".join(json.dumps(record) for record in records)
    Path(__file__).with_name("alfworld_homes.json").write_text(f"[\n{lines}\n]\n")
