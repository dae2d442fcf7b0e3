"""Record evoharness_jax/data/household_episode.json, which a notebook replays.

    python tests/golden/record_household_episode.py [TASK]

The teacher plays the `train` games under $ALFWORLD_DATA, all but one; what it notes
makes a bank; beside that it plays the one that is left (by default a kitchen where it
needs all four verbs). What replay and reader need of that episode is kept.
"""

import json
import sys
from pathlib import Path

from evoharness_jax.bpe.workspace import Rules
from evoharness_jax.collect import evidence
from evoharness_jax.envs.alfworld import domain as household
from evoharness_jax.experience import bank
from evoharness_jax.experience.evolve import evolve
from evoharness_jax.rollout import loop, policies
from evoharness_jax.rollout.prompt import Style

HERE = Path(__file__).resolve().parent
TARGET = HERE.parent.parent / "evoharness_jax" / "data" / "household_episode.json"
TASK = "pick_two_obj_and_place-Egg-None-Microwave-30"
SOURCE = (
    "A game of the ALFWorld data set (https://github.com/alfworld/alfworld), played "
    "turn by turn by the teacher of this package. ALFWorld: MIT License, copyright (c) "
    "2020 Mohit Shridhar and others; its text is in household/LICENSE."
)
KEPT = (
    "task split type objective setting opening start turns won stop num_turns "
    "env_steps calls notes workspace"
).split()


def play(tasks, entries):
    domain = household.make(prompt="terse")
    policy = policies.teacher(domain.teacher, think=True)
    arrays, words = bank.arrays(entries, len(entries))
    setting = loop.Setting(Rules(max_turns=50), Style())
    played = loop.rollout(policy, domain, arrays, words, tasks, setting, batch=1)
    return played.records


def main(name: str) -> None:
    tasks = household.make(prompt="terse").tasks("train")
    (chosen,) = [task for task in tasks if task.id.startswith(name)]
    others = [task for task in tasks if task != chosen]
    entries, _ = evolve((), evidence(play(others, ())), 1, 32)
    (record,) = play([chosen], entries)
    assert record["won"] and all(record["calls"].values()), record["calls"]
    content = {
        "source": SOURCE,
        "entries": [entry._asdict() for entry in entries],
        "record": {key: record[key] for key in KEPT},
    }
    TARGET.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:2] or [TASK])
