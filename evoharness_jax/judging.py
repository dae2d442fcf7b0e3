"""From a rollout to advantages: what `train_rl` and notebooks ask of an episode.

rollout -> outcomes -> judge: reward, its parts, advantage [B] or [B, T], metrics
"""

from typing import Any

import numpy as np
from ml_collections import ConfigDict

from evoharness_jax.bpe.workspace import OK
from evoharness_jax.rollout import prompt
from evoharness_jax.rollout.loop import CONTEXT_FULL, Rollout
from evoharness_jax.train import advantages, reward
from evoharness_jax.train.comparison import Settings
from evoharness_jax.types import NONE, VERB_NAMES, Turns


def check(config: ConfigDict) -> None:
    """Raise ValueError, naming the line, where `reward` or `advantage` does not hold.

    At the start of a run: a rollout is too long to learn of it afterwards.
    """
    _weights(config)
    settings = Settings(**config.advantage)
    advantages.check(settings)
    if settings.estimator == "gigpo" and config.env.regime != "per_turn":
        raise ValueError(
            "advantage.estimator: 'gigpo' compares turns, which are training rows only "
            f"in env.regime = 'per_turn': {config.env.regime!r}"
        )


def outcomes(played: Rollout) -> reward.Outcomes:
    """Return how the episodes of a rollout went, as arrays over [B] and [B, T]."""
    e = played.episodes
    return reward.Outcomes(
        won=np.asarray(e.won),
        # Who talks until the context is full has failed; only what the environment
        # broke is left out.
        error=np.array([r["error"] not in ("", CONTEXT_FULL) for r in played.records]),
        turns=np.asarray(e.turn),
        env_steps=np.asarray(e.env_steps),
        tokens=np.asarray(e.tokens),
        verbs=np.asarray(e.verbs),
        actions=np.asarray(e.actions),
        valid=np.asarray(e.valid),
        executed=np.asarray((e.tags == OK) & (e.verbs >= 0)),
        leading=played.leading,
    )


def anchors(records: list[dict[str, Any]], group: int, turns: int) -> np.ndarray:
    """Number the places at which the episodes of each group stood.

    Args:
        records: [B], the episodes of a group in a row.
        group: R, how many they are.
        turns: T.

    Returns:
        int32[B, T]: equal where two turns of one group were asked the same, the way
        there aside (`prompt.place`); NONE where nothing was answered. Below B * T.
    """
    found, ids = np.full((len(records), turns), NONE, np.int32), {}
    for b, record in enumerate(records):
        for t, turn in enumerate(record["turns"]):
            if "response" in turn:
                key = b // group, prompt.place(turn["prompt"])
                found[b, t] = ids.setdefault(key, len(ids))
    return found


def by_turn(rows: list[np.ndarray], turns: Turns, episodes: reward.Outcomes):
    """Add up values of what the policy wrote, by turn.

    Args:
        rows: f32[L] per training row.
        turns: the rows.
        episodes: of the same rollout; one that broke gets 0.

    Returns:
        f32[B, T]. In the `append` regime all of an episode stands at its last turn.
    """
    table = np.zeros(episodes.verbs.shape, np.float32)
    for values, mask, b, t in zip(
        rows, turns.response_mask, turns.episode, turns.turn, strict=True
    ):
        table[b, t] += np.sum(values[mask], dtype=np.float32)
    return np.where(episodes.error[:, None], np.float32(0), table)


def judge(
    config: ConfigDict, episodes: reward.Outcomes, step: int, *, anchor=None, kl=None
):
    """Judge B episodes, each beside its group.

    Args:
        episodes: Outcomes, the episodes of a group in a row.
        step: int, updates made so far.
        anchor: int32[B, T] from `anchors`, for the estimator "gigpo".
        kl: f32[B, T] nats from the reference, to be charged; None: nothing is.

    Returns:
        (reward f32[B], its parts, advantage f32[B] or f32[B, T], metrics).
    """
    weights, coef = _weights(config), config.loss.kl_coef
    total, parts = reward.total(
        episodes,
        [config.reward.prices[verb] for verb in VERB_NAMES],
        weights,
        step,
        step_budget=config.rules.max_turns,
        token_budget=config.reward.token_budget,
    )
    paid = None
    if anchor is not None:
        paid = reward.by_turn(episodes, parts, weights)
    if kl is not None:
        total, parts = reward.charge_kl(total, parts, kl.sum(axis=1), coef)
        if paid is not None:
            paid["kl"] = -coef * kl
    group = np.arange(len(total)) // config.rollout.group
    advantage, numbers = advantages.group_advantages(
        total,
        parts,
        group,
        episodes.won,
        episodes.error,
        turns=episodes.turns,
        paid=paid,
        anchor=anchor,
        **config.advantage,
    )
    numbers |= {"reward/total": total.mean()}
    numbers |= {f"reward/{name}": part.mean() for name, part in parts.items()}
    if anchor is not None:
        numbers["groups/anchored"] = _share_with_a_like(anchor)
    return total, parts, advantage, numbers


def _share_with_a_like(anchor: np.ndarray) -> float:
    """Give the share of the turns whose anchor another turn has too."""
    asked = anchor[anchor >= 0]
    return float((np.bincount(asked)[asked] > 1).mean()) if len(asked) else 0.0


def _weights(config: ConfigDict) -> reward.Weights:
    settings = config.reward.to_dict()
    del settings["prices"], settings["token_budget"]
    return reward.Weights(**settings)
