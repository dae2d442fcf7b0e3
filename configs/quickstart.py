"""What launch/quickstart.sh runs: a short cost-aware policy gradient on made homes.

--config=configs/quickstart.py:rl          alfworld_rl.py with what differs below
--config=configs/quickstart.py:evaluate    alfworld_eval.py, more homes at once
--config=configs/quickstart.py:sft         alfworld_sft.py, for --from-scratch
"""

from configs import alfworld_eval, alfworld_rl, alfworld_sft
from evoharness_jax.types import META_VERBS

BATCH = 32  # episodes under way at once


def get_config(stage: str = "rl"):
    stages = {"rl": _rl, "evaluate": _evaluate, "sft": _sft}
    if stage not in stages:
        raise ValueError(f"stage {stage!r} is unknown; known are {', '.join(stages)}")
    return stages[stage]()


def _rl():
    config = alfworld_rl.get_config()
    config.model.init = "embedded-sft"
    config.rollout.tasks = 9
    config.rollout.group = 6
    config.rollout.batch = BATCH
    config.data.length = 2048
    config.data.sample = 0.4  # an update costs what the rollout does
    # A whole budget is worth a win, and a call two turns: what a few updates can tell.
    config.reward.efficiency = 10.0
    for verb in META_VERBS:
        config.reward.prices[verb] = 2.0
    config.advantage.scale = 2.0
    config.reward.anneal_steps = 1  # the verbs are known: no bonus for trying them
    config.loss.kl_coef = 0.0  # so few updates stay near without a reference
    config.optim.lr = 2e-4
    config.optim.steps = 7
    config.train.evaluate_every = 0  # before and after are enough
    config.checkpoint.every = 2
    return config


def _evaluate():
    config = alfworld_eval.get_config()
    config.evaluate.batch = BATCH
    return config


def _sft():
    config = alfworld_sft.get_config()
    config.collect.noise = 0.2  # detours, refused commands, poor guesses
    config.collect.thrift = 0.4  # so that a call is a choice, and its worth shows
    config.data.length = 2048
    config.data.rows = 1
    config.optim.steps = 1200
    return config
