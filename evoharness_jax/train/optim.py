"""The optimiser: clip by global norm, Adam, weight decay, learning rate.

Plain arguments in, an optax transformation out. A schedule maps the number of updates
made to a learning rate; the caller keeps it too, to log what it gave.
"""

from collections.abc import Callable
from typing import Any

import jax
import optax

Schedule = Callable[[Any], Any]  # int32[] updates made -> f32[] learning rate

PLAIN = ("norm", "scale", "bias")  # in a parameter's path: never decayed


def constant(peak: float, warmup: int = 0) -> Schedule:
    """Rise linearly to `peak` over `warmup` updates, and stay there."""
    return optax.join_schedules(
        [_rise(peak, warmup), optax.constant_schedule(peak)], [warmup]
    )


def cosine(peak: float, steps: int, warmup: int = 0, end: float = 0.0) -> Schedule:
    """Rise linearly to `peak`, then fall along half a cosine.

    Args:
        peak: the highest learning rate.
        steps: updates in all; from then on the rate is `end`.
        warmup: updates of the rise, within `steps`.
        end: the last learning rate.
    """
    if not 0 <= warmup < steps:
        raise ValueError(f"warmup must lie within steps: {warmup=} {steps=}")
    fall = optax.cosine_decay_schedule(peak, steps - warmup, end / peak)
    return optax.join_schedules([_rise(peak, warmup), fall], [warmup])


def _rise(peak, warmup):
    # The first update is already worth something: 1/warmup of the peak, not zero.
    first = peak / max(1, warmup)
    return optax.linear_schedule(first, peak, max(1, warmup - 1))


def make(
    schedule: Schedule | float,
    *,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 0.01,
    clip_norm: float | None = 1.0,
    mu_dtype: Any = None,
) -> optax.GradientTransformation:
    """Make AdamW behind a global-norm clip.

    Args:
        schedule: from `constant` or `cosine`, or a number.
        b1, b2, eps: Adam's.
        weight_decay: per update and unit of learning rate, on `decayed` parameters.
        clip_norm: bound on the norm of the whole gradient; None: none.
        mu_dtype: of the first moment; None: float32 (see `state.make_state`). The
            second one stays float32: bfloat16 cannot hold a change of 1 - b2.
    """
    clip = [] if clip_norm is None else [optax.clip_by_global_norm(clip_norm)]
    adam = optax.adamw(
        schedule,
        b1=b1,
        b2=b2,
        eps=eps,
        weight_decay=weight_decay,
        mask=decayed,
        mu_dtype=mu_dtype,
    )
    return optax.chain(*clip, adam)


def decayed(params: Any) -> Any:
    """Say which parameters decay: matrices, but no norm scale and no bias.

    By name as well as by rank, since layers that are stacked for a scan make a matrix
    of their norm scales.
    """

    def one(path, leaf):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        return leaf.ndim > 1 and not any(word in name for word in PLAIN)

    return jax.tree_util.tree_map_with_path(one, params)
