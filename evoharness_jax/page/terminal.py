"""What is printed of a run: a curve, a table, two evaluations paired."""

from typing import Any

from rich.table import Table
from rich.text import Text

from evoharness_jax.page.folder import Run
from evoharness_jax.rollout.summary import paired

CURVE = (
    "loss/sft",
    "loss/held_out",
    "env/success",
    "calls/total",
    "calls/track",
    "calls/commit",
    "calls/recall",
    "calls/note",
    "env/tokens",
    "reward/total",
    "groups/mixed",
    "policy/kl",
    "eval/success",
    "eval/calls",
    "time/step",
)
STEPS = 8  # shown of a curve


def text(found: Run, earlier: dict[str, Any]) -> list[Table | Text]:
    """Return what is printed of a run."""
    parts: list[Table | Text] = [Text(f"note: {p}", "yellow") for p in found.problems]
    if found.lines:
        parts.append(curve(found.lines))
    if found.summary:
        parts.append(table(found.summary))
    if found.passes:
        parts.append(passes(found.passes))
    if earlier:
        parts.append(comparison(earlier, found.summary))
    return parts


def curve(lines: list[dict[str, float]]) -> Table:
    """Return a training run's numbers: a row a number, at evenly spread steps."""
    grid = Table(title=f"{len(lines)} lines of metrics", box=None)
    grid.add_column("step", no_wrap=True)
    last, most = len(lines) - 1, min(STEPS, len(lines))
    spread = sorted({round(i * last / max(1, most - 1)) for i in range(most)})
    for at in spread:
        grid.add_column(str(int(lines[at]["step"])), justify="right", no_wrap=True)
    for name in CURVE:
        if any(name in line for line in lines):
            cells = (
                f"{lines[at][name]:.3g}" if name in lines[at] else "" for at in spread
            )
            grid.add_row(name, *cells)
    return grid


def table(summary: dict[str, Any]) -> Table:
    """Return an evaluation, overall and by task type."""
    low, high = summary["interval"]
    calls = ", ".join(f"{v} {n:.2f}" for v, n in summary["calls"].items())
    per_win = summary["tokens_per_win"]
    grid = Table(
        title=f"{summary['split']}, policy {summary['policy']}",
        box=None,
        caption=(
            f"95 % interval {100 * low:.1f} to {100 * high:.1f} %; "
            f"calls an episode: {calls}; tokens an episode {summary['tokens']:.0f}, "
            f"a solved task {'-' if per_win is None else f'{per_win:.0f}'}; "
            f"errors {summary['errors']}, dropped {summary['dropped']}"
        ),
    )
    for name in ("task type", "won", "of", "%"):
        grid.add_column(name, justify="left" if name == "task type" else "right")
    rows = {**summary["by_type"], "all": {"wins": summary["wins"], "n": summary["n"]}}
    for kind, cell in rows.items():
        rate = 100 * cell["wins"] / max(1, cell["n"])
        grid.add_row(kind, str(cell["wins"]), str(cell["n"]), f"{rate:.1f}")
    return grid


def passes(summaries: list[dict[str, Any]]) -> Table:
    """Return a collection, pass by pass."""
    grid = Table(title="collection", box=None)
    for name in ("pass", "won", "of", "turns", "calls", "bank added", "reworded"):
        grid.add_column(name, justify="right", no_wrap=True)
    for number, one in enumerate(summaries, 1):
        grid.add_row(
            str(number),
            str(one["wins"]),
            str(one["n"]),
            f"{one['turns']:.1f}",
            f"{one['calls_total']:.2f}",
            str(one.get("added", "")),
            str(one.get("updated", "")),
        )
    return grid


def comparison(before: dict[str, Any], after: dict[str, Any]) -> Table:
    """Return two evaluations of the same games, paired."""
    pair = paired(before["games"], after["games"])
    low, high = pair["interval"]
    grid = Table(
        title=f"the same {pair['n']} games",
        box=None,
        caption=(
            f"difference {100 * pair['success_difference']:+.1f} points, 95 % interval "
            f"{100 * low:+.1f} to {100 * high:+.1f}; won only before {pair['lost']}, "
            f"only after {pair['gained']}; McNemar p = {pair['mcnemar_p']:.3g}"
        ),
    )
    for name in ("", "success %", "calls", "turns", "tokens", "tokens a win"):
        grid.add_column(name, justify="right" if name else "left")
    for name, one in (("before", before), ("after", after)):
        per_win = one["tokens_per_win"]
        grid.add_row(
            name,
            f"{100 * one['success']:.1f}",
            f"{one['calls_total']:.2f}",
            f"{one['turns']:.1f}",
            f"{one['tokens']:.0f}",
            "-" if per_win is None else f"{per_win:.0f}",
        )
    return grid
