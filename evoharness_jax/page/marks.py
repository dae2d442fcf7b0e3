"""What figures are made of: axes, lines, and words beside the ends of lines."""

from typing import Any

import altair as alt


def apart(values: list[float], gap: float) -> list[float]:
    """Move labels away from each other: order is kept, neighbours are `gap` apart."""
    order = sorted(range(len(values)), key=values.__getitem__)
    placed = list(values)
    for low, high in zip(order, order[1:]):
        placed[high] = max(placed[high], placed[low] + gap)
    return placed


def steps() -> alt.X:
    """Return the axis of training steps."""
    return alt.X(
        "step:Q",
        title=None,
        axis=alt.Axis(
            grid=False,
            format=",d",
            labelExpr="datum.value % 1 ? '' : datum.label",
            labelSeparation=6,
        ),
        scale=alt.Scale(nice=False, zero=False),
    )


def axis(title: str, color: str, domain: list[float], side: str) -> alt.Y:
    """Return an axis on one side, in the colour of what it measures."""
    return alt.Y(
        "value:Q",
        title=title,
        scale=alt.Scale(domain=domain, nice=True),
        axis=alt.Axis(
            orient=side,
            offset=8,
            titleColor=color,
            labelColor=color,
            titleAngle=0,
            titleAnchor="end",
            titleAlign="left" if side == "left" else "right",
            titleX=-4 if side == "left" else 4,
            titleY=-14,
            grid=side == "left",
        ),
    )


def line(
    rows: list[dict], y: alt.Y, color: str, rings: list[dict] | None = None
) -> alt.LayerChart:
    """Return one line, whose numbers a pointer finds, and rings beside it."""
    tooltip = ["step:Q", alt.Tooltip("value:Q", format=".4~g")]
    base = alt.Chart(alt.Data(values=rows)).encode(x=steps(), y=y)
    # Invisible points are what a pointer finds.
    chart = base.mark_line(color=color) + base.mark_point(size=90, opacity=0).encode(
        tooltip=tooltip
    )
    if rings:
        points = alt.Chart(alt.Data(values=rings))
        points = points.mark_point(color=color, size=70, fill="var(--card)", opacity=1)
        chart += points.encode(x=steps(), y=y, tooltip=tooltip)
    return chart


def ends(rows: list[dict]) -> alt.Chart:
    """Return words beside the ends of lines."""
    return (
        alt.Chart(alt.Data(values=rows))
        .mark_text(align="left", dx=7)
        .encode(x=steps(), text="label:N")
    )


def done(chart: Any, height: int) -> dict[str, Any]:
    """Return Vega-Lite that fills the width of its place."""
    spec = chart.properties(width="container", height=height, padding=5).to_dict()
    spec.pop("config", None)  # the page has its own
    return spec
