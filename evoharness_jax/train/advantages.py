"""How much better an episode did than the others on the same task: GRPO's baseline.

    A = (r - mean) / (std + 1e-6)      mean, std over the episodes of the group

(arXiv 2402.03300; std divides by n - 1.) Where all of a group won or all failed, the
outcome says nothing, yet dividing by the deviation would blow up whatever little is
left (a repeated action, a bonus) to full size, and training would run after that. So
under the rule "rule" a group that failed gives zero, and a group that won gives only
its price, centred and divided by a fixed scale: dividing by the group's own deviation
would make the smallest saving as loud as the largest. "plain" is the formula above for
every group.

Groups are found by comparing ids, [B, B] at once, so nothing depends on how many there
are or how they lie, and a group may lose episodes to errors.
"""

STATISTICS = ("episodes", "rows")
UNIFORM = ("rule", "plain")
REFERENCE = {"uniform": "plain", "statistic": "rows"}  # what the original does


def group_advantages(
    reward,
    parts,
    group,
    won,
    error,
    *,
    turns=None,
    uniform="rule",
    scale=1.0,
    statistic="episodes",
    epsilon=1e-6,
):
    """Compare each episode with its group.

    Args:
        reward: f32[B].
        parts: dict of f32[B], as `reward.total` gives; "efficiency" is the price term.
        group: int32[B] episodes of the same task share an id.
        won: bool[B].
        error: bool[B] left out of every statistic, advantage 0.
        turns: int32[B], for statistic "rows".
        uniform: "rule" or "plain", for groups of one outcome; see above.
        scale: reward units that make an advantage of 1 where all won.
        statistic: "episodes", or "rows": an episode weighs as many as it has turns,
            in mean and in deviation, as in the original.
        epsilon: keeps the division finite.

    Returns:
        (advantage f32[B], metrics). A group of one has nothing to compare with and
        gets 0. Metrics: shares of the groups in which all, none or some won, and of
        the episodes with an error.
    """
    if uniform not in UNIFORM:
        raise ValueError(f"uniform: {uniform}, not {UNIFORM}")
    if statistic not in STATISTICS:
        raise ValueError(f"statistic: {statistic}, not {STATISTICS}")
    if statistic == "rows" and turns is None:
        raise ValueError("statistic 'rows' wants turns")
    xp = reward.__array_namespace__()
    f32 = xp.float32
    reward, counted = reward.astype(f32), ~error
    peers = (group[:, None] == group[None, :]) & counted[None, :]  # [B, B]
    weight = turns.astype(f32) if statistic == "rows" else xp.ones_like(reward)

    def over(values):  # f32[B] -> its sum over each episode's group, f32[B]
        return xp.sum(xp.where(peers, values[None, :], f32(0)), axis=1)

    def centre(values):
        # From the group's highest: equal values then give exact zeros, where a rounded
        # mean would leave a residue that the division by epsilon makes large.
        top = xp.max(xp.where(peers, values[None, :], f32(-xp.inf)), axis=1)
        below = xp.where(peers, values[None, :] - top[:, None], f32(0))
        mean = xp.sum(below * weight[None, :], axis=1) / xp.maximum(over(weight), 1.0)
        return values - top - mean

    size = over(xp.ones_like(reward))
    wins = over(won.astype(f32))
    all_won, all_failed = wins == size, wins == 0
    centred = xp.where(counted, centre(reward), f32(0))
    spread = xp.sqrt(over(weight * centred**2) / xp.maximum(over(weight) - 1.0, 1.0))
    advantage = centred / (spread + epsilon)
    if uniform == "rule":
        price = centre(parts["efficiency"].astype(f32)) / scale
        advantage = xp.where(all_won, price, advantage)
        advantage = xp.where(all_failed, f32(0), advantage)
    advantage = xp.where(counted & (size > 1), advantage, f32(0)).astype(f32)

    share = counted / xp.maximum(size, 1.0)  # sums to 1 over a group
    groups = xp.maximum(xp.sum(share), 1.0)
    metrics = {
        "groups/all_won": xp.sum(share * all_won) / groups,
        "groups/all_failed": xp.sum(share * all_failed) / groups,
        "groups/mixed": xp.sum(share * ~(all_won | all_failed)) / groups,
        "groups/error": xp.mean(error.astype(f32)),
    }
    return advantage, metrics
