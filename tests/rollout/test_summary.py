"""What records amount to, and what two evaluations say together."""

import pytest

from evoharness_jax.rollout import summary


@pytest.mark.parametrize(
    "wins, n, want",
    [
        (0, 0, [0.0, 1.0]),
        (0, 10, [0.0, 0.2775]),
        (5, 10, [0.2366, 0.7634]),
        (10, 10, [0.7225, 1.0]),
        (62, 68, [0.8206, 0.959]),
        (131, 140, [0.8823, 0.9659]),
    ],
)
def test_wilson(wins, n, want):
    """As R's binom.confint(wins, n, methods="wilson") gives them."""
    assert summary.wilson(wins, n) == pytest.approx(want, abs=2e-4)


def record(task="t1", won=True, kind="heat", **fields):
    calls = {"track": 1, "commit": 0, "recall": 2, "note": 0}
    tags = fields.pop("tags", ["ok", "ok", "refused"])
    return {
        "task": task,
        "type": kind,
        "won": won,
        "stop": "won" if won else "out of turns",
        "num_turns": 4,
        "env_steps": 2,
        "tokens": 100,
        "calls": calls,
        "dropped": 0,
        "error": "",
        "setting": {"rules": {"max_turns": 4}},
        "turns": [{"tag": tag} for tag in tags],
    } | fields


def test_summarise():
    records = [
        record(),
        record("t2", won=False, tokens=200, num_turns=8, dropped=3),
        record("t3", kind="cool", tags=["bad format", "off"], num_turns=5, env_steps=5),
        record("t4", won=False, kind="cool", tags=[], error="gone", stop="ended"),
    ]
    assert summary.summarise(records) == {
        "success": 0.5,
        "wins": 2,
        "n": 4,
        "interval": [0.15, 0.85],
        "success_charged": 0.25,  # t3 was won beyond the fourth turn
        "by_type": {"cool": {"wins": 1, "n": 2}, "heat": {"wins": 1, "n": 2}},
        "steps": 2.75,
        "turns": 5.25,
        "calls": {"track": 1.0, "commit": 0.0, "recall": 2.0, "note": 0.0},
        "calls_total": 3.0,
        "tokens": 125.0,
        "tokens_per_win": 250.0,
        "invalid": {"bad format": 1, "off": 1, "refused": 2},
        "errors": 1,
        "dropped": 3,
        "stops": {"ended": 1, "out of turns": 1, "won": 2},
    }


def test_nothing_won_has_no_price_a_win():
    assert summary.summarise([record(won=False)])["tokens_per_win"] is None


def test_no_records():
    got = summary.summarise([])
    assert (got["success"], got["n"], got["interval"]) == (0.0, 0, [0.0, 1.0])
    assert got["by_type"] == got["invalid"] == got["stops"] == {}


def test_games_are_one_line_each():
    (line,) = summary.games([record(extra=1)])
    assert set(line) == {
        *("task", "type", "won", "num_turns", "env_steps", "calls", "tokens", "error")
    }


def evaluation(wins, calls=3):
    games = [record(f"t{i}", won == "1") for i, won in enumerate(wins)]
    for game in games:
        game["calls"] = {"track": calls}
    return games


def test_paired():
    """Gained 3, lost 1 of 10: difference 0.2.

    Wald: sqrt(4 - 2*2/10)/10 = 0.18974, times 1.96 is 0.3719.
    McNemar, exact: 2 * (1 + 4)/16 = 0.625.
    """
    before, after = evaluation("1111000000", 3), evaluation("0111111000", 1)
    assert summary.paired(before, list(reversed(after))) == {
        "n": 10,
        "gained": 3,
        "lost": 1,
        "success_difference": 0.2,
        "interval": [-0.1719, 0.5719],
        "mcnemar_p": 0.625,
        "calls_before": 3.0,
        "calls_after": 1.0,
    }


@pytest.mark.parametrize(
    "gained, lost, p",
    [(0, 0, 1.0), (1, 1, 1.0), (5, 0, 0.0625), (0, 6, 0.0312), (10, 2, 0.0386)],
)
def test_mcnemar(gained, lost, p):
    before = "0" * gained + "1" * lost + "1"
    after = "1" * gained + "0" * lost + "1"
    got = summary.paired(evaluation(before), evaluation(after))
    assert (got["gained"], got["lost"], got["mcnemar_p"]) == (gained, lost, p)


def test_the_same_twice_differs_by_nothing():
    got = summary.paired(evaluation("0110"), evaluation("0110"))
    assert (got["success_difference"], got["interval"]) == (0.0, [0.0, 0.0])


def test_other_games_are_named():
    with pytest.raises(ValueError, match=r"not the same games.*\['t2'\]"):
        summary.paired(evaluation("01"), evaluation("010"))


def test_a_game_played_twice_cannot_be_paired():
    twice = evaluation("01") + evaluation("0")
    for before, after in [(twice, evaluation("01")), (evaluation("01"), twice)]:
        with pytest.raises(ValueError, match="a game twice: 2 games"):
            summary.paired(before, after)


def test_no_games_to_compare():
    with pytest.raises(ValueError, match="no games to compare"):
        summary.paired([], [])


def test_mean():
    assert summary.mean([]) == 0.0
    assert summary.mean([1, 2, 2]) == 1.6667


def test_a_charged_run_is_worth_the_same_if_calls_cost_turns():
    found = summary.summarise([record(f"t{i}", won=i > 0) for i in range(6)])
    assert found["success"] == found["success_charged"] == 5 / 6
