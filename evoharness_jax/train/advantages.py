"""How much better an episode did than the others on the same task.

Estimators are functions of one signature, chosen by name:

    estimator(Judged, Settings) -> f32[B], or f32[B, T] where turns differ

    grpo     (r - mean) / (std + epsilon)                          arXiv 2402.03300
    rloo     r - mean of the others                                arXiv 2402.14740
    dr_grpo  r - mean, not divided: a hard task weighs as others   arXiv 2503.20783
    gigpo    grpo, and turns at the same anchor are compared too   arXiv 2505.10978

How one comparison is made, and what becomes of a group in which all won or all failed,
stands in `comparison`. `rloo` and `dr_grpo` do not divide by the deviation, so their
mixed groups are in units of the reward, and `scale` is what brings the price of groups
that won to the size that it should have beside them.

Groups are found by comparing ids, [B, B] at once, so nothing depends on how many there
are or how they lie, and a group may lose episodes to errors.
"""

from evoharness_jax.train import comparison
from evoharness_jax.train.comparison import Judged, Settings, compare, episodes
from evoharness_jax.train.gigpo import gigpo

STATISTICS = comparison.STATISTICS
UNIFORM = comparison.UNIFORM
REFERENCE = {"uniform": "plain", "statistic": "rows"}  # what the original does


def grpo(judged: Judged, settings: Settings):
    """Give the distance from the group's mean in its deviations, f32[B].

    The rule for groups of one outcome (`comparison`) takes the deviation's place there.
    """
    return compare(*episodes(judged, settings), settings)


def rloo(judged: Judged, settings: Settings):
    """Give the distance from the mean of the others, f32[B], in units of the reward.

    The baseline is independent of the episode it is taken from, so the gradient is
    unbiased (REINFORCE with leave-one-out, Kool et al. 2019; arXiv 2402.14740). The
    rule for groups of one outcome holds too: nothing is blown up here, but what tells
    failures apart is shaping all the same. It leaves the episode out of the price's
    mean as well.
    """
    pair = episodes(judged, settings)
    return compare(*pair, settings, divide=False, spare=True)


def dr_grpo(judged: Judged, settings: Settings):
    """Give the distance from the group's mean, f32[B], in units of the reward.

    A deviation in the denominator makes groups loud in which nearly all won or nearly
    all failed (arXiv 2503.20783). Its other half is `average` = "constant" in the loss.
    The rule for groups of one outcome holds as in `rloo`.
    """
    return compare(*episodes(judged, settings), settings, divide=False)


ESTIMATORS = {"grpo": grpo, "rloo": rloo, "dr_grpo": dr_grpo, "gigpo": gigpo}


def check(settings: Settings) -> None:
    """Raise ValueError where there is no such estimator."""
    if settings.estimator not in ESTIMATORS:
        raise ValueError(
            f"advantage.estimator: {settings.estimator!r}, "
            f"not one of {', '.join(ESTIMATORS)}"
        )


def group_advantages(
    reward,
    parts,
    group,
    won,
    error,
    *,
    turns=None,
    paid=None,
    anchor=None,
    **settings,
):
    """Compare each episode with its group.

    Args:
        reward, parts, group, won, error, turns, paid, anchor: fields of
            `comparison.Judged`, in numpy or in jax.numpy.
        settings: fields of `comparison.Settings`.

    Returns:
        (advantage, metrics). The advantage is f32[B], and f32[B, T] from "gigpo". A
        group of one has nothing to compare with and gets 0. Metrics: shares of the
        groups in which all, none or some won, and of the episodes with an error.

    Raises:
        ValueError: an unknown setting, or a field that the settings ask for is None.
    """
    settings = Settings(**settings)
    check(settings)
    xp = reward.__array_namespace__()
    judged = Judged(
        reward.astype(xp.float32), parts, group, won, error, turns, paid, anchor
    )
    advantage = ESTIMATORS[settings.estimator](judged, settings)
    return advantage, _shares(judged)


def _shares(judged: Judged):
    """Say how the groups ended; every group counts once, however large it is."""
    xp = judged.reward.__array_namespace__()
    counted = ~judged.error
    peers = comparison.all_pairs(judged.group, counted)
    size = peers.total(xp.ones_like(judged.reward))
    wins = peers.total(judged.won.astype(xp.float32))
    all_won, all_failed = wins == size, wins == 0
    share = counted / xp.maximum(size, 1.0)  # sums to 1 over a group
    groups = xp.maximum(xp.sum(share), 1.0)
    return {
        "groups/all_won": xp.sum(share * all_won) / groups,
        "groups/all_failed": xp.sum(share * all_failed) / groups,
        "groups/mixed": xp.sum(share * ~(all_won | all_failed)) / groups,
        "groups/error": xp.mean(judged.error.astype(xp.float32)),
    }
