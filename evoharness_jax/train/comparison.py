"""One comparison: how far each one stands above those it is compared with.

    A = (r - mean) / (std + epsilon)      mean, std over its peers, itself included

Who the peers are is the caller's: the episodes of a task (`advantages`), or the turns
at which a group stood in the same place (`gigpo`). std divides by n - 1
(arXiv 2402.03300).

Where all of them won or all failed, the outcome says nothing, yet dividing by the
deviation would blow up whatever little is left (a repeated action, a bonus) to full
size, and training would run after that. So under the rule "rule" those who all failed
get zero, and those who all won only their price, centred and divided by a fixed scale:
dividing by their own deviation would make the smallest saving as loud as the largest.
"plain" is the formula above for all. Where the distance from a reference policy is
part of the reward ("kl"), the rule counts it as part of the price, and keeps it where
all failed: it is not about the outcome, and an anchor must not let go.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

STATISTICS = ("episodes", "rows")
UNIFORM = ("rule", "plain")


@dataclass(frozen=True)
class Settings:
    """How to compare; the config's section `advantage`."""

    estimator: str = "grpo"  # a key of advantages.ESTIMATORS
    uniform: str = "rule"  # rule | plain: those of one outcome; see above
    scale: float = 1.0  # reward units that make an advantage of 1 where all won
    statistic: str = "episodes"  # episodes | rows: an episode weighs as its turns do
    discount: float = 0.95  # gigpo: what a turn keeps of the next one's return
    step_weight: float = 1.0  # gigpo: weight of the comparison of turns
    epsilon: float = 1e-6  # keeps the division finite

    def __post_init__(self):
        for name, known in (("uniform", UNIFORM), ("statistic", STATISTICS)):
            if getattr(self, name) not in known:
                raise ValueError(
                    f"advantage.{name}: {getattr(self, name)!r}, "
                    f"not one of {', '.join(known)}"
                )
        if not 0 <= self.discount <= 1:
            raise ValueError(f"advantage.discount must lie in [0, 1]: {self.discount}")
        if self.scale <= 0:
            raise ValueError(f"advantage.scale must be positive: {self.scale}")


class Judged(NamedTuple):
    """B episodes of at most T turns, and what they earned: what estimators compare."""

    reward: Any  # f32[B]
    parts: Any  # dict of f32[B], `reward.total`'s terms; "efficiency" is the price
    group: Any  # int32[B] episodes of the same task share an id
    won: Any  # bool[B]
    error: Any  # bool[B] left out of every statistic, advantage 0
    turns: Any = None  # int32[B]; for statistic "rows"
    paid: Any = None  # dict of f32[B, T], the terms by turn; for "gigpo"
    anchor: Any = None  # int32[B, T] as `judging.anchors` gives it; for "gigpo"


class Seen(NamedTuple):
    """What one comparison is over: n episodes, or n turns."""

    reward: Any  # f32[n]
    parts: Any  # dict of f32[n], of which "efficiency" and, if there, "kl" are read
    won: Any  # bool[n]
    counted: Any  # bool[n] the others are left out of every statistic and get 0
    weight: Any  # f32[n] in mean and deviation


class Peers(NamedTuple):
    """Who is compared with whom, as reductions over them."""

    total: Callable  # f32[n] -> f32[n], the sum over each one's peers
    top: Callable  # f32[n] -> f32[n], the highest of them; -inf: there are none


def all_pairs(ids, counted) -> Peers:
    """Compare those with equal ids, [n, n] at once; ids may be any numbers."""
    xp = ids.__array_namespace__()
    f32 = xp.float32
    peers = (ids[:, None] == ids[None, :]) & counted[None, :]

    def total(values):
        return xp.sum(xp.where(peers, values[None, :], f32(0)), axis=1)

    def top(values):
        return xp.max(xp.where(peers, values[None, :], f32(-xp.inf)), axis=1)

    return Peers(total, top)


def scattered(ids, counted) -> Peers:
    """Compare those with equal ids in memory [n]; ids lie in 0 ... n - 1."""
    xp = ids.__array_namespace__()
    f32 = xp.float32
    where = xp.where(counted, ids, 0)

    def reduce(values, start, operation):
        values = xp.where(counted, values, f32(start))
        found = xp.full(ids.shape, start, dtype=xp.float32)
        if hasattr(found, "at"):  # jax.numpy
            return getattr(found.at[where], operation)(values)[where]
        {"add": xp.add, "max": xp.maximum}[operation].at(found, where, values)
        return found[where]

    return Peers(
        lambda values: reduce(values, 0.0, "add"),
        lambda values: reduce(values, -xp.inf, "max"),
    )


def compare(seen: Seen, peers: Peers, settings: Settings, *, divide=True, spare=False):
    """Compare each one with its peers, f32[n].

    Args:
        divide: by the deviation; False: the advantage is in units of the reward.
        spare: leave each one out of the mean that it is compared with.

    Returns:
        f32[n]; 0 for one that has nobody to compare with.
    """
    xp = seen.reward.__array_namespace__()
    f32 = xp.float32
    weights = peers.total(seen.weight)

    def centre(values):
        # From the highest of them: equal values then give exact zeros, where a rounded
        # mean would leave a residue that the division by epsilon makes large.
        top = xp.where(seen.counted, peers.top(values), values)
        below = peers.total(seen.weight * (values - top))
        centred = values - top - below / xp.maximum(weights, 1.0)
        if spare:  # r - mean of the others = W / (W - w) (r - mean of all)
            others = weights - seen.weight
            centred = centred * (weights / xp.where(others > 0, others, 1.0))
        return centred

    size = peers.total(xp.ones_like(seen.reward))
    wins = peers.total(seen.won.astype(f32))
    advantage = xp.where(seen.counted, centre(seen.reward), f32(0))
    if divide:
        squares = peers.total(seen.weight * advantage**2)
        spread = xp.sqrt(squares / xp.maximum(weights - 1.0, 1.0))
        advantage = advantage / (spread + settings.epsilon)
    if settings.uniform == "rule":
        price, failed = seen.parts["efficiency"].astype(f32), f32(0)
        if "kl" in seen.parts:
            price = price + seen.parts["kl"]
            failed = centre(seen.parts["kl"]) / settings.scale
        advantage = xp.where(wins == size, centre(price) / settings.scale, advantage)
        advantage = xp.where(wins == 0, failed, advantage)
    return xp.where(seen.counted & (size > 1), advantage, f32(0)).astype(f32)


def episodes(judged: Judged, settings: Settings) -> tuple[Seen, Peers]:
    """Set up the comparison of each episode with its group."""
    xp = judged.reward.__array_namespace__()
    weight = xp.ones_like(judged.reward)
    if settings.statistic == "rows":
        if judged.turns is None:
            raise ValueError("advantage.statistic: 'rows' wants turns")
        weight = judged.turns.astype(xp.float32)
    counted = ~judged.error
    seen = Seen(judged.reward, judged.parts, judged.won, counted, weight)
    return seen, all_pairs(judged.group, counted)
