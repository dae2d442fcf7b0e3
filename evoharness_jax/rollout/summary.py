"""What a set of recorded episodes amounts to. Rates are means over all of them,
episodes that broke included: a game that could not be played was not won.
"""

import math
from collections import Counter
from typing import Any

from evoharness_jax.types import META_VERBS

Z95 = 1.959964  # two-sided 95 % of the normal distribution


def wilson(wins: int, n: int) -> list[float]:
    """Return the Wilson 95 % interval of a rate (Wilson, 1927)."""
    if not n:
        return [0.0, 1.0]
    rate, z2 = wins / n, Z95**2
    centre = (rate + z2 / (2 * n)) / (1 + z2 / n)
    half = Z95 / (1 + z2 / n) * math.sqrt(rate * (1 - rate) / n + z2 / (4 * n * n))
    return [round(max(0.0, centre - half), 4), round(min(1.0, centre + half), 4)]


def summarise(records: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the numbers of `summary.json` that episodes determine."""
    n = len(records)
    wins = sum(r["won"] for r in records)
    tokens = sum(r["tokens"] for r in records)
    tags = Counter(t.get("tag", "") for r in records for t in r["turns"])
    by_type: dict[str, dict[str, int]] = {}
    for record in sorted(records, key=lambda r: r["type"]):
        cell = by_type.setdefault(record["type"], {"wins": 0, "n": 0})
        cell["wins"] += record["won"]
        cell["n"] += 1
    return {
        "success": wins / n if n else 0.0,
        "wins": wins,
        "n": n,
        "interval": wilson(wins, n),
        # Where meta-actions were free: what is left when each costs a turn after all.
        "success_charged": sum(r["won"] and _in_time(r) for r in records) / max(n, 1),
        "by_type": by_type,
        "steps": mean(r["env_steps"] for r in records),
        "turns": mean(r["num_turns"] for r in records),
        "calls": {v: mean(r["calls"][v] for r in records) for v in META_VERBS},
        "calls_total": mean(sum(r["calls"].values()) for r in records),
        "tokens": tokens / n if n else 0.0,
        "tokens_per_win": tokens / wins if wins else None,
        "invalid": {t: c for t, c in sorted(tags.items()) if t not in ("", "ok")},
        "errors": sum(bool(r["error"]) for r in records),
        "dropped": sum(r["dropped"] for r in records),
        "stops": dict(sorted(Counter(r["stop"] for r in records).items())),
    }


def _in_time(record: dict[str, Any]) -> bool:
    return record["num_turns"] <= record["setting"]["rules"]["max_turns"]


def games(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return one line a game, for paired comparisons."""
    keys = ("task", "type", "won", "num_turns", "env_steps", "calls", "tokens", "error")
    return [{key: record[key] for key in keys} for record in records]


def paired(before: list[dict], after: list[dict]) -> dict[str, Any]:
    """Compare two evaluations of the same games.

    Returns:
        The difference of the success rates with its 95 % interval, from the games that
        only one of them won (Wald interval for paired proportions), and the exact
        McNemar p-value.

    Raises:
        ValueError: the games differ, one was played twice, or there are none.
    """
    one = {g["task"]: g for g in before}
    two = {g["task"]: g for g in after}
    if one.keys() != two.keys():
        odd = sorted(one.keys() ^ two.keys())[:3]
        raise ValueError(f"not the same games: only in one of the two: {odd}")
    n = len(one)
    if not n == len(before) == len(after):
        raise ValueError(f"a game twice: {n} games, {len(before)} and {len(after)}")
    if not n:
        raise ValueError("no games to compare")
    gained = sum(two[t]["won"] and not one[t]["won"] for t in one)
    lost = sum(one[t]["won"] and not two[t]["won"] for t in one)
    delta = (gained - lost) / n
    spread = math.sqrt(max(gained + lost - (gained - lost) ** 2 / n, 0.0)) / n
    low, high = delta - Z95 * spread, delta + Z95 * spread
    calls = [sum(g["calls"].values()) for g in one.values()]
    calls_after = [sum(g["calls"].values()) for g in two.values()]
    return {
        "n": n,
        "gained": gained,
        "lost": lost,
        "success_difference": round(delta, 4),
        "interval": [round(low, 4), round(high, 4)],
        "mcnemar_p": round(_mcnemar(gained, lost), 4),
        "calls_before": mean(calls),
        "calls_after": mean(calls_after),
    }


def _mcnemar(gained: int, lost: int) -> float:
    n = gained + lost
    tail = sum(math.comb(n, k) for k in range(min(gained, lost) + 1)) / 2**n
    return min(1.0, 2 * tail)


def mean(values) -> float:
    """Return the mean to four places, 0 for nothing."""
    values = list(values)
    return round(sum(values) / len(values), 4) if values else 0.0
