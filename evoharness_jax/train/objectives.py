"""What the policy term maximises: functions of one signature, chosen by name.

    (log_ratio [W, L], advantage [W, L], weight [W, L], segments [W, L], Limits)
        -> (objective f32[W, L], ratio f32[W, L], clipped bool[W, L])

    clip   r = exp(logp - old) of each token                       arXiv 1707.06347
           min(A r, A clip(r, 1 - low, 1 + high)), and where A < 0 at least A dual
                                                                   arXiv 1912.09729
    gspo   r = exp(mean of logp - old over the sequence), the same for all its tokens
           min(A r, A clip(r, 1 - low, 1 + high))                  arXiv 2507.18071

A sequence is a segment of a packed row: what the policy wrote at one turn, or in the
`append` regime in one episode. Tokens of weight 0 have a log ratio of 0 and are in no
sequence's mean.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

LOG_RATIO_BOUND = 20.0  # beyond it a ratio is a number to report, not to trust


class Limits(NamedTuple):
    """How far a ratio may go."""

    low: float  # below 1
    high: float  # above 1
    dual: float | None  # "clip": the most where the advantage is negative; None: any


def ratio_of(difference):
    """Give the ratio of two probabilities, from the difference of their logarithms."""
    return jnp.exp(jnp.clip(difference, -LOG_RATIO_BOUND, LOG_RATIO_BOUND))


def clip(log_ratio, advantage, weight, segments, limits: Limits):
    """Give PPO's objective of every token, with asymmetric clip and dual clip."""
    ratio = ratio_of(log_ratio)
    objective, binds = _clipped(ratio, advantage, limits)
    if limits.dual is not None:
        bounded = jnp.maximum(objective, advantage * limits.dual)
        objective = jnp.where(advantage < 0, bounded, objective)
    return objective, ratio, binds


def gspo(log_ratio, advantage, weight, segments, limits: Limits):
    """Give every token the objective of its sequence.

    The mean over a sequence's tokens is the sequence's objective, so averaging over
    "sequences" gives the paper's loss, in which each counts once however long it is.
    The ratio is a mean, and moves far less than a token's: the paper clips at 3e-4
    below and 4e-4 above. There is no dual clip.
    """
    if segments is None:
        raise ValueError("loss.objective: 'gspo' wants the segments of the rows")
    sums = functools.partial(jax.ops.segment_sum, num_segments=segments.shape[1] + 1)

    def over(values):  # [W, L] -> the sum over each token's sequence
        return jnp.take_along_axis(jax.vmap(sums)(values, segments), segments, axis=1)

    weight = weight.astype(jnp.float32)
    size = over(weight)
    ratio = ratio_of(over(weight * log_ratio) / jnp.where(size > 0, size, 1.0))
    objective, binds = _clipped(ratio, advantage, limits)
    return objective, ratio, binds


OBJECTIVES = {"clip": clip, "gspo": gspo}


def _clipped(ratio, advantage, limits):
    """Give the smaller of free and clipped objective, and where the clip binds."""
    clipped = jnp.clip(ratio, 1.0 - limits.low, 1.0 + limits.high)
    objective = jnp.minimum(advantage * ratio, advantage * clipped)
    below, above = ratio < 1.0 - limits.low, ratio > 1.0 + limits.high
    binds = jnp.where(advantage < 0, below, above)
    return objective, binds & (advantage != 0)
