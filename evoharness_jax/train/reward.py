"""What an episode is worth, paid once at its end.

    R = S won + l_eff E + l_div(u) D - l_spam min(spam, cap) - l_inv invalid
    E = won clip(1 - cost, 0, 1)
    cost = share_steps (sum of prices over turns) / step_budget
         + share_tokens tokens / token_budget
    l_div(u) = l_div (1 + cos(pi clip(u, 0, U) / U)) / 2

The terms are those of EvoHarness (arXiv 2608.05446); there every turn costs one step
and tokens are free, which is what the default prices and shares say. Everything is an
array expression over [B] or [B, T], in whichever of numpy and jax.numpy the episodes
are given, float32 throughout. An episode that broke (`error`) earns 0 in every term;
`advantages` leaves it out of its group.
"""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from evoharness_jax.types import NOTE, TRACK, VERB_NAMES

PRICES = (1.0,) * len(VERB_NAMES)  # steps per turn: env, track, commit, recall, note
META = range(TRACK, NOTE + 1)
DIVERSITY = ("coverage", "verb_ratio")


class Outcomes(NamedTuple):
    """How B episodes went, over at most T turns."""

    won: Any  # bool[B]
    error: Any  # bool[B] the environment or the policy broke: nothing is judged
    turns: Any  # int32[B] turns of any kind
    env_steps: Any  # int32[B] turns that the environment accepted
    tokens: Any  # int32[B] newly read prompt + response, over the episode
    verbs: Any  # int8[B, T] types.ENV ... types.NOTE; types.NULL: no turn
    actions: Any  # int32[B, T] text id of the normalised action; -1: none
    valid: Any  # bool[B, T] counted as valid
    executed: Any  # bool[B, T] env action accepted, or meta-action carried out
    leading: Any = None  # int32[B, T] id of the action's first word; -1: no action


@dataclass(frozen=True)
class Weights:
    """The terms' weights, in reward units.

    `success`, `efficiency`: the original's. `diversity` is the bonus before it is
    annealed, half a point as in the paper's table. `diversity_kind` is what the bonus
    pays for: "coverage" asks for each meta-action once and no more, while "verb_ratio"
    is highest for an episode of a single action. `spam`, `invalid`: per repeated
    action, the first `spam_cap` of them, and per invalid turn.
    """

    success: float = 10.0  # S: far above all the rest together
    efficiency: float = 1.0  # l_eff: a win for nothing against a win at full budget
    diversity: float = 0.5  # l_div at the first update
    diversity_kind: str = "coverage"
    spam: float = 0.1  # l_spam
    spam_cap: int = 10
    invalid: float = 0.1  # l_inv, without a cap
    anneal_steps: int = 150  # U: updates until the diversity bonus is gone
    share_steps: float = 1.0  # of the cost: steps against the step budget
    share_tokens: float = 0.0  # of the cost: tokens against the token budget

    def __post_init__(self):
        if self.diversity_kind not in DIVERSITY:
            raise ValueError(
                f"reward.diversity_kind: {self.diversity_kind!r}, "
                f"not one of {', '.join(DIVERSITY)}"
            )
        if self.anneal_steps < 1:
            raise ValueError(
                f"reward.anneal_steps must be at least 1: {self.anneal_steps}"
            )


REFERENCE = Weights(diversity=1.0, diversity_kind="verb_ratio")


def anneal(step, over, xp=np):
    """Fall from 1 at step 0 to 0 at step `over` along half a cosine, and stay there."""
    part = xp.clip(step, 0, over)
    return 0.5 * (1.0 + xp.cos(math.pi * part / over))


def spam(actions):
    """Count the actions that repeat the one before, f32[B] from int32[B, T].

    A turn without an action repeats nothing: it is already paid for as invalid.
    """
    xp = actions.__array_namespace__()
    return xp.sum(_repeats(actions), axis=1).astype(xp.float32)


def coverage(verbs, executed):
    """Give the share of the four meta-verbs that were carried out, f32[B]."""
    xp = verbs.__array_namespace__()
    used = [xp.any((verbs == verb) & executed, axis=1) for verb in META]
    return sum(u.astype(xp.float32) for u in used) / len(META)


def verb_ratio(actions, leading):
    """Give distinct leading words / actions, f32[B]: the original's diversity.

    Args:
        actions: int32[B, T] as in `Outcomes`.
        leading: int32[B, T] id of each action's first word ("go", "take", "track").
            The verb codes can stand in for it, where all environment actions then
            count as one word and the ratio comes out lower than the original's.
    """
    xp = actions.__array_namespace__()
    words = xp.sort(xp.where(actions >= 0, leading, -1), axis=1)
    first = xp.ones_like(words[:, :1], dtype=bool)
    new = xp.concatenate([first, words[:, 1:] != words[:, :-1]], axis=1) & (words >= 0)
    unique = xp.sum(new, axis=1).astype(xp.float32)
    return unique / xp.maximum(xp.sum(actions >= 0, axis=1), 1).astype(xp.float32)


def cost(episodes, prices, weights, step_budget, token_budget=None):
    """Give the part of its budget that each episode spent, f32[B], 1 = all of it.

    Args:
        episodes: Outcomes.
        prices: f32[5] steps that a turn of each verb costs, in `VERB_NAMES` order.
        weights: Weights, for the two shares.
        step_budget: steps that an episode may spend.
        token_budget: tokens that an episode may spend; needed where they have a share.
    """
    xp = episodes.verbs.__array_namespace__()
    if len(prices) != len(VERB_NAMES):
        raise ValueError(f"one price for each of {VERB_NAMES}: {prices=}")
    if weights.share_tokens and not token_budget:
        raise ValueError(f"{weights.share_tokens=} wants a token_budget")
    prices = xp.asarray(prices, dtype=xp.float32)
    verbs = episodes.verbs.astype(xp.int32)
    paid = xp.where(verbs >= 0, prices[xp.maximum(verbs, 0)], 0.0)
    spent = weights.share_steps * xp.sum(paid, axis=1) / step_budget
    if weights.share_tokens:
        tokens = episodes.tokens.astype(xp.float32)
        spent = spent + weights.share_tokens * tokens / token_budget
    return spent.astype(xp.float32)


def total(episodes, prices, weights, step, *, step_budget, token_budget=None):
    """Judge B episodes by the formula at the top of this module.

    Args:
        episodes: Outcomes.
        prices, step_budget, token_budget: see `cost`.
        weights: Weights.
        step: int, updates made so far; only the diversity bonus depends on it.

    Returns:
        (reward f32[B], parts): parts maps success, efficiency, diversity, spam and
        invalid to f32[B], signed and weighted, so that the reward is their sum.
    """
    xp = episodes.verbs.__array_namespace__()
    won = episodes.won.astype(xp.float32)
    spent = cost(episodes, prices, weights, step_budget, token_budget)
    if weights.diversity_kind == "coverage":
        diversity = coverage(episodes.verbs, episodes.executed)
    else:
        words = episodes.verbs if episodes.leading is None else episodes.leading
        diversity = verb_ratio(episodes.actions, words.astype(xp.int32))
    bonus = xp.asarray(
        weights.diversity * anneal(step, weights.anneal_steps, xp), dtype=xp.float32
    )
    invalid = xp.sum((episodes.verbs >= 0) & ~episodes.valid, axis=1)
    parts = {
        "success": weights.success * won,
        "efficiency": weights.efficiency * won * xp.clip(1.0 - spent, 0.0, 1.0),
        "diversity": bonus * diversity,
        "spam": -weights.spam * xp.minimum(spam(episodes.actions), weights.spam_cap),
        "invalid": -weights.invalid * invalid.astype(xp.float32),
    }
    parts = {
        name: xp.where(episodes.error, 0.0, part).astype(xp.float32)
        for name, part in parts.items()
    }
    return sum(parts.values()), parts


def by_turn(episodes, parts, weights):
    """Spread each term of `total` over the turns that earned it.

    Args:
        episodes, weights: as given to `total`.
        parts: as it returned them.

    Returns:
        dict of f32[B, T] with the names of `parts`, whose sums over turns are the
        parts: invalid turns and the paid ones of the repeats pay where they are, and
        everything else at the last turn, where the end of the episode is known.
    """
    xp = episodes.verbs.__array_namespace__()
    count = episodes.verbs.shape[1]
    last = xp.arange(count)[None, :] == episodes.turns[:, None] - 1
    counted = ~episodes.error[:, None]
    repeats = xp.pad(_repeats(episodes.actions), ((0, 0), (1, 0)))
    paid = repeats & (xp.cumsum(repeats, axis=1) <= weights.spam_cap)
    invalid = (episodes.verbs >= 0) & ~episodes.valid
    where = {
        "spam": -weights.spam * (paid & counted).astype(xp.float32),
        "invalid": -weights.invalid * (invalid & counted).astype(xp.float32),
    }
    return {
        name: where.get(name, last * part[:, None]).astype(xp.float32)
        for name, part in parts.items()
    }


def charge_kl(reward, parts, kl, coef):
    """Take the distance from the reference out of the reward: k1, one sample of KL.

        R - coef (sum of logp - ref over what the policy wrote)    (arXiv 1909.08593)

    Args:
        reward, parts: as `total` returned them.
        kl: f32[B] nats of each episode, 0 for one that broke.

    Returns:
        (reward, parts with "kl").
    """
    charged = -coef * kl.astype(reward.dtype)
    return reward + charged, parts | {"kl": charged}


def _repeats(actions):
    """Say which actions repeat the one before, bool[B, T - 1]."""
    return (actions[:, 1:] == actions[:, :-1]) & (actions[:, 1:] >= 0)
