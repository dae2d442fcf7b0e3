"""GiGPO: beside the episodes of a group, compare the turns that began alike.

    A[b, t] = A_episode[b] + w A_turn[b, t]                        (arXiv 2505.10978)
    A_turn  = (R - mean) / (std + epsilon)   over the turns of the group at one anchor
    R[b, t] = sum over k >= t of discount^(k - t) paid[b, k]

Episodes of one task pass through the same states. What was done there and what came of
it can be compared directly, which an episode's one number cannot: a needless call is
told from the win that came after it.

The anchor is more than the environment's state here. What the policy answered to is
the tail of its prompt, the observation AND the standing workspace, so two turns are
compared only where plan, hints and replies were the same too: with a hint in view and
without one, the same room is not the same question.
"""

from evoharness_jax.train.comparison import (
    Judged,
    Seen,
    Settings,
    compare,
    episodes,
    scattered,
)


def returns(paid, discount: float):
    """Give what a turn earned from there on, f32[B, T] of what each paid, f32[B, T]."""
    xp = paid.__array_namespace__()
    turn = xp.arange(paid.shape[1])
    ahead = turn[:, None] - turn[None, :]  # k - t
    kept = xp.where(ahead >= 0, float(discount) ** xp.maximum(ahead, 0), 0.0)
    return xp.sum(paid[:, :, None] * kept[None].astype(xp.float32), axis=1)


def gigpo(judged: Judged, settings: Settings):
    """Give an advantage for every turn, f32[B, T].

    The rule for uniform outcomes (`comparison`) holds in both comparisons, each over
    its own peers. Where all turns at an anchor come from episodes that failed they get
    zero; where all come from episodes that won, their discounted price is compared on
    the fixed scale. So in a group that failed altogether every turn gets zero. The
    statistic "rows" is about episodes; at an anchor each turn counts once. A turn with
    no like gets its episode's advantage alone.
    """
    if judged.paid is None or judged.anchor is None:
        raise ValueError("advantage.estimator: 'gigpo' wants paid and anchor by turn")
    xp = judged.reward.__array_namespace__()
    shape = judged.anchor.shape
    counted = (judged.anchor >= 0) & ~judged.error[:, None]
    parts = {
        name: returns(values.astype(xp.float32), settings.discount).reshape(-1)
        for name, values in judged.paid.items()
    }
    reward = sum(parts.values())
    seen = Seen(
        reward,
        parts,
        won=xp.broadcast_to(judged.won[:, None], shape).reshape(-1),
        counted=counted.reshape(-1),
        weight=xp.ones_like(reward),
    )
    peers = scattered(judged.anchor.reshape(-1), seen.counted)
    turns = compare(seen, peers, settings).reshape(shape)
    whole = compare(*episodes(judged, settings), settings)
    return whole[:, None] + settings.step_weight * turns
