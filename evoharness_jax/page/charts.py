"""The figures of a page, as Vega-Lite made with Altair, drawn by the page's script.

Colours stand in a specification as `var(--name)`: the script puts in what the style
sheet says, so that a figure is right on light and on dark.
"""

import math
from typing import Any, NamedTuple

import altair as alt

from evoharness_jax.page import marks
from evoharness_jax.page.folder import Run
from evoharness_jax.page.history import Change
from evoharness_jax.types import META_VERBS

MOST = 400  # steps drawn; more of them would lie on the same pixels
PHASES = ("policy", "env", "text", "bpe", "score", "update", "other")
OPTIMISER = (
    "loss/sft",
    "loss/held_out",
    "policy/kl",
    "policy/entropy",
    "optim/grad_norm",
    "optim/lr",
    "groups/mixed",
)


class Figure(NamedTuple):
    key: str
    title: str
    note: str
    parts: tuple[tuple[str, dict], ...]  # (caption, Vega-Lite), side by side


def figures(
    run: Run, earlier: dict[str, Any], changes: list[Change]
) -> dict[str, Figure]:
    """Return what can be drawn of a run, by key."""
    lines = thinned(run.lines)
    some = f" {len(lines)} of {len(run.lines)} steps are drawn." * (
        len(lines) < len(run.lines)
    )
    found = [
        _annealing(lines, some),
        _verbs(lines, some),
        _tokens(lines, some),
        _small(lines, "reward", "Reward terms", "Means over the episodes of a step, "
               "each on a scale of its own; total is their sum." + some,
               _reward_terms(lines)),
        _small(lines, "optimiser", "Optimisation", "Each on a scale of its own." + some,
               [n for n in OPTIMISER if any(n in line for line in lines)]),
        _bank(changes),
        _calls(run.summary, earlier),
        _time(run),
    ]  # fmt: skip
    return {one.key: one for one in found if one}


def thinned(lines: list[dict]) -> list[dict]:
    """Return at most MOST lines, evenly spread, the last one among them."""
    if len(lines) <= MOST:
        return lines
    return [lines[round(i * (len(lines) - 1) / (MOST - 1))] for i in range(MOST)]


def series(lines: list[dict], name: str) -> list[dict[str, Any]]:
    """Return the finite numbers of one metric: {"step", "value", "name"}."""
    return [
        {"step": line["step"], "value": line[name], "name": name.partition("/")[2]}
        for line in lines
        if math.isfinite(line.get(name, math.nan))
    ]


def tokens_per_win(lines: list[dict], group: str) -> list[dict[str, Any]]:
    """Return the tokens that one solved task took, where any was solved."""
    rows = []
    for line in lines:
        won = line.get(f"{group}/success", 0.0)
        value = line.get(f"{group}/tokens", math.nan) / won if won > 0 else math.nan
        if math.isfinite(value):
            rows.append({"step": line["step"], "value": value, "name": "tokens"})
    return rows


def _annealing(lines: list[dict], some: str) -> Figure | None:
    won, calls = series(lines, "env/success"), series(lines, "calls/total")
    if not won or not calls:
        return None
    for row in won:
        row["value"] *= 100
    eval_won = series(lines, "eval/success")
    for row in eval_won:
        row["value"] *= 100
    most = max(r["value"] for r in calls + series(lines, "eval/calls"))
    left = marks.axis("won, %", "var(--won)", [0, 100], "left")
    right = marks.axis("calls an episode", "var(--calls)", [0, most or 1], "right")
    checks = series(lines, "eval/calls")
    success = marks.line(won, left, "var(--won)", eval_won)
    price = marks.line(calls, right, "var(--calls)", checks)
    chart = alt.layer(success, price).resolve_scale(y="independent")
    words = (
        f"Success went from {won[0]['value']:.0f} to {won[-1]['value']:.0f} %, calls "
        f"from {calls[0]['value']:.2f} to {calls[-1]['value']:.2f} an episode. Lines: "
        "the episodes trained on." + " Rings: evaluation." * bool(eval_won) + some
    )
    drawn = marks.done(chart, 260)
    return Figure("annealing", "Success and calls", words, (("", drawn),))


def _verbs(lines: list[dict], some: str) -> Figure | None:
    rows = [row for verb in META_VERBS for row in series(lines, f"calls/{verb}")]
    if not rows:
        return None
    most = max(row["value"] for row in rows) or 1.0
    ends = [r for r in rows if r["step"] == rows[-1]["step"]]
    places = marks.apart([r["value"] for r in ends], 0.09 * most)
    top = max(most, *places)
    color = alt.Color("name:N", legend=None).scale(
        domain=list(META_VERBS), range=[f"var(--{verb})" for verb in META_VERBS]
    )
    y = alt.Y("value:Q", title=None, scale=alt.Scale(domain=[0, top]))
    base = alt.Chart(alt.Data(values=rows)).encode(x=marks.steps(), y=y, color=color)
    chart = base.mark_line() + base.mark_point(size=90, opacity=0).encode(
        tooltip=["name:N", "step:Q", alt.Tooltip("value:Q", format=".3f")]
    )
    labels = [
        r | {"label": f"{r['name']} {r['value']:.2f}", "value": place}
        for r, place in zip(ends, places, strict=True)
    ]
    chart += marks.ends(labels).encode(y=y, color=color)
    words = "Meta-actions carried out, mean an episode." + some
    return Figure("verbs", "Calls by verb", words, (("", marks.done(chart, 220)),))


def _tokens(lines: list[dict], some: str) -> Figure | None:
    rows, checks = tokens_per_win(lines, "env"), tokens_per_win(lines, "eval")
    if not rows:
        return None
    y = alt.Y("value:Q", title=None, scale=alt.Scale(zero=True, nice=True))
    chart = marks.line(rows, y, "var(--ink)", checks)
    label = [rows[-1] | {"label": f"{rows[-1]['value']:,.0f}"}]
    chart += marks.ends(label).encode(y=y, color=alt.value("var(--ink)"))
    words = "Tokens of all episodes, over those that won." + some
    words += " Rings: evaluation." * bool(checks)
    figure = marks.done(chart, 220)
    return Figure("tokens", "Tokens a solved task", words, (("", figure),))


def _reward_terms(lines: list[dict]) -> list[str]:
    names = {name: None for line in lines for name in line if name[:7] == "reward/"}
    return sorted(names, key=lambda name: (name != "reward/total", name))


def _small(lines, key: str, title: str, note: str, names: list[str]) -> Figure | None:
    parts = []
    for name in names:
        rows = series(lines, name)
        if not rows:
            continue
        y = alt.Y(
            "value:Q",
            title=None,
            scale=alt.Scale(zero=False, nice=True),
            axis=alt.Axis(tickCount=3, format=".4~g"),
        )
        short = name.partition("/")[2] if key == "reward" else name
        caption = f"{short}  {rows[-1]['value']:.3g}"
        parts.append((caption, marks.done(marks.line(rows, y, "var(--ink)"), 90)))
    return Figure(key, title, note, tuple(parts)) if parts else None


def _bank(changes: list[Change]) -> Figure | None:
    rows = []
    for one in changes[1:]:
        counts = (
            ("added", len(one.added)),
            ("reworded", len(one.updated)),
            ("removed", -len(one.removed)),
        )
        rows += [
            {"step": one.step, "what": what, "value": n, "n": abs(n)}
            for what, n in counts
            if n
        ]
    if not rows:
        return None
    names = ["added", "reworded", "removed"]
    color = alt.Color("what:N", legend=alt.Legend(orient="top", title=None)).scale(
        domain=names, range=["var(--won)", "var(--recall)", "var(--lost)"]
    )
    chart = (
        alt.Chart(alt.Data(values=rows))
        .mark_bar(size=6)
        .encode(
            x=marks.steps(),
            y=alt.Y("value:Q", title=None, axis=alt.Axis(tickMinStep=1)),
            color=color,
            tooltip=["what:N", "step:Q", "n:Q"],
        )
    )
    words = "Entries by the step whose version has them; removed ones point down."
    return Figure("bank", "Bank changes", words, (("", marks.done(chart, 180)),))


def _calls(summary: dict[str, Any], earlier: dict[str, Any]) -> Figure | None:
    if not summary:
        return None
    both = [("before", earlier), ("after", summary)] if earlier else [("", summary)]
    rows = [
        {"verb": verb, "which": which, "value": one["calls"][verb],
         "label": f"{which} {one['calls'][verb]:.2f}".strip()}
        for which, one in both for verb in META_VERBS
    ]  # fmt: skip
    color = alt.Color("verb:N", legend=None).scale(
        domain=list(META_VERBS), range=[f"var(--{verb})" for verb in META_VERBS]
    )
    y = alt.Y("verb:N", sort=list(META_VERBS), title=None)
    base = alt.Chart(alt.Data(values=rows)).encode(
        x=alt.X("value:Q", title="mean an episode", scale=alt.Scale(nice=False)), y=y
    )
    if earlier:
        base = base.encode(yOffset=alt.YOffset("which:N", sort=["before", "after"]))
    faint = alt.condition("datum.which === 'before'", alt.value(0.45), alt.value(1))
    chart = base.mark_bar().encode(color=color, opacity=faint)
    chart += base.mark_text(align="left", dx=5).encode(
        text="label:N", color=alt.value("var(--ink)")
    )
    height = 190 if earlier else 130
    words = "Meta-actions carried out, mean an episode."
    figure = marks.done(chart, height)
    return Figure("calls", "Calls by verb", words, (("", figure),))


def seconds(run: Run) -> dict[str, float]:
    """Return seconds by phase: of an evaluation, or the median over training steps."""
    if run.summary:
        return dict(run.summary.get("seconds_by_phase", {}))
    split: dict[str, list[float]] = {phase: [] for phase in PHASES}
    for line in run.lines:
        known = {p: line[f"time/{p}"] for p in PHASES if f"time/{p}" in line}
        if known and "time/step" in line:
            known["other"] = max(0.0, line["time/step"] - sum(known.values()))
        for phase, spent in known.items():
            split[phase].append(spent)
    return {p: sorted(s)[len(s) // 2] for p, s in split.items() if s}


def _time(run: Run) -> Figure | None:
    spent = {phase: s for phase, s in seconds(run).items() if math.isfinite(s)}
    total = sum(spent.values())
    if not total:
        return None
    rows = [
        {"phase": phase, "value": s, "label": f"{s:.2f} s, {100 * s / total:.0f} %"}
        for phase, s in sorted(spent.items(), key=lambda item: -item[1])
    ]
    base = alt.Chart(alt.Data(values=rows)).encode(
        x=alt.X("value:Q", title="seconds", scale=alt.Scale(nice=False)),
        y=alt.Y("phase:N", sort=None, title=None),
    )
    chart = base.mark_bar(color="var(--bar)") + base.mark_text(
        align="left", dx=5
    ).encode(text="label:N", color=alt.value("var(--ink)"))
    words = "Wall time of the evaluation by phase."
    if not run.summary:
        words = "Wall time of a step by phase, the median of all steps."
    figure = marks.done(chart, 24 * len(rows) + 10)
    return Figure("time", "Where the time goes", words, (("", figure),))
