"""The tables of a page, as HTML. All that a run says passes `escape`."""

from collections.abc import Iterable
from html import escape
from typing import Any

from evoharness_jax.page.charts import Figure
from evoharness_jax.page.folder import Run
from evoharness_jax.page.history import Change
from evoharness_jax.rollout.summary import paired

VERSIONS = 40  # of the bank that the table lists, newest first


def versus(run: Run, earlier: dict[str, Any], name: str) -> str:
    """Return two evaluations of the same games, paired.

    Raises:
        ValueError: the games differ.
    """
    if not earlier:
        return ""
    pair = paired(earlier["games"], run.summary["games"])
    low, high = pair["interval"]
    rows = []
    for label, one in ((f"before, {name}", earlier), ("after, this one", run.summary)):
        per_win = one["tokens_per_win"]
        rows.append(
            (
                label,
                f"{100 * one['success']:.1f}",
                f"{one['calls_total']:.2f}",
                f"{one['turns']:.1f}",
                f"{one['tokens']:,.0f}",
                "-" if per_win is None else f"{per_win:,.0f}",
            )
        )
    head = ("", "won, %", "calls", "turns", "tokens", "tokens a solved task")
    words = (
        f"The same {pair['n']} games: {100 * pair['success_difference']:+.1f} points, "
        f"95 % interval {100 * low:+.1f} to {100 * high:+.1f}; won only before "
        f"{pair['lost']}, only after {pair['gained']}; McNemar p = "
        f"{pair['mcnemar_p']:.3g}."
    )
    return section("versus", "Before and after", words, table(head, rows))


def types(run: Run, earlier: dict[str, Any]) -> str:
    """Return how each task type went."""
    if run.summary:
        if not run.summary["games"]:
            return ""
        return _types_of_games(run.summary["games"], earlier.get("games", []))
    steps = sorted({one.step for one in run.outlines})
    if not steps:
        return ""
    part = max(1, len(steps) // 4)
    first, last = steps[:part], steps[-part:]
    unit = unit_of(run)
    words = f"From the mean of {_span(unit, first)} to that of {_span(unit, last)}."
    if first == last:
        words = f"The episodes of {_span(unit, first)}."
    rows = []
    for kind in sorted({one.type for one in run.outlines}):
        of = [one for one in run.outlines if one.type == kind]
        early = [one for one in of if one.step in first]
        late = [one for one in of if one.step in last]
        cells = [(cell(early), cell(late)) for cell in (_rate, _calls, _per_win)]
        shown = [b if first == last else f"{a} → {b}" for a, b in cells]
        rows.append((kind, f"{len(of):,}", *shown))
    head = ("type", "episodes", "won, %", "calls", "tokens a solved task")
    return section("types", "By task type", words, table(head, rows))


def unit_of(run: Run) -> str:
    """Name what the episodes of a run are counted by."""
    return "step" if run.stage == "train_rl" else "pass"


def _span(unit: str, steps: list[int]) -> str:
    if len(steps) == 1:
        return f"{unit} {steps[0]}"
    plural = "passes" if unit == "pass" else f"{unit}s"
    return f"{plural} {steps[0]} to {steps[-1]}"


def _types_of_games(games: list[dict], before: list[dict]) -> str:
    def rows_of(found: list[dict], kind: str) -> list[dict]:
        return [g for g in found if kind in (g["type"], "all")]

    rows = []
    for kind in [*sorted({g["type"] for g in games}), "all"]:
        now = rows_of(games, kind)
        cells = [kind, str(sum(g["won"] for g in now)), str(len(now)), _rate(now)]
        if before:
            cells.append(_rate(rows_of(before, kind)))
        rows.append((*cells, _calls(now), _per_win(now)))
    more = ("before",) if before else ()
    head = ("type", "won", "of", "%", *more, "calls", "tokens a solved task")
    return section("types", "By task type", "", table(head, rows))


def _rate(rows: list) -> str:
    won = [_get(one, "won") for one in rows]
    return f"{100 * sum(won) / len(won):.1f}" if won else "-"


def _calls(rows: list) -> str:
    calls = [sum(_get(one, "calls").values()) for one in rows]
    return f"{sum(calls) / len(calls):.2f}" if calls else "-"


def _per_win(rows: list) -> str:
    wins = sum(_get(one, "won") for one in rows)
    tokens = sum(_get(one, "tokens") for one in rows)
    return f"{tokens / wins:,.0f}" if wins and tokens else "-"


def _get(one: Any, name: str) -> Any:
    return one[name] if isinstance(one, dict) else getattr(one, name)


def bank(changes: list[Change], figure: str) -> str:
    """Return what was learned between episodes, version by version."""
    if not changes:
        return ""
    said = [one for one in changes[1:] if one.added or one.updated or one.removed]
    if len(changes) == 1:
        words = f"One version, of {changes[0].entries} entries."
        return section("bank", "Bank", words, "")
    words = (
        f"{len(changes)} versions, {changes[0].entries} entries at first, "
        f"{changes[-1].entries} now"
    )
    if not said:
        return section("bank", "Bank", words + "; only uses and wins were counted.", "")
    words += f"; {len(said)} of the versions changed words."
    shown = said[-VERSIONS:][::-1]
    if len(shown) < len(said):
        words += f" The newest {len(shown)} of them:"
    items = "".join(_change(one) for one in shown)
    return section("bank", "Bank", words, f'{figure}<div class="changes">{items}</div>')


def _change(one: Change) -> str:
    parts = [f'<li class="added">{escape(words)}</li>' for words in one.added]
    for old, new in one.updated:
        parts.append(f'<li class="updated"><s>{escape(old)}</s> {escape(new)}</li>')
    for words in one.removed:
        parts.append(f'<li class="removed"><s>{escape(words)}</s></li>')
    counts = ", ".join(
        f"{n} {what}"
        for n, what in (
            (len(one.added), "added"),
            (len(one.updated), "reworded"),
            (len(one.removed), "removed"),
        )
        if n
    )
    return (
        f"<details><summary>step {one.step}: {counts} "
        f"<span>{one.entries} entries, <code>{escape(one.name)}</code></span></summary>"
        f"<ul>{''.join(parts)}</ul></details>"
    )


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """Return a table whose first column names its rows."""
    top = "".join(f"<th scope=col>{escape(cell)}</th>" for cell in head)
    body = "".join(
        f"<tr><th scope=row>{escape(first)}</th>"
        + "".join(f"<td>{escape(cell)}</td>" for cell in rest)
        + "</tr>"
        for first, *rest in rows
    )
    return (
        '<div class="scroll" tabindex="0"><table><thead><tr>'
        f"{top}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def section(key: str, name: str, words: str, content: str) -> str:
    """Return one part of the page."""
    said = f"<p>{escape(words)}</p>" if words else ""
    return (
        f'<section id="{key}"><h2>{escape(name)}</h2>{said}{content}</section>'
        if content or words
        else ""
    )


def figure(one: Figure | None, bare: bool = False) -> str:
    """Return the place that the script draws a figure into."""
    if one is None:
        return ""
    single = len(one.parts) == 1
    places = "".join(
        f'<figure class="small"><figcaption>{escape(caption)}</figcaption>'
        f'<div class="plot" data-figure="{one.key}" data-part="{i}"></div></figure>'
        for i, (caption, _) in enumerate(one.parts)
    )
    if single:
        places = f'<div class="plot" data-figure="{one.key}" data-part="0"></div>'
    else:
        places = f'<div class="smalls">{places}</div>'
    head = f"<h2>{escape(one.title)}</h2><p>{escape(one.note)}</p>"
    if bare:
        return f'<div class="bare">{places}</div>'
    kind = "chart" if single else "wide"
    return f'<section class="{kind}" id="{one.key}">{head}{places}</section>'
