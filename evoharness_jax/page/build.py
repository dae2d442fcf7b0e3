"""Put a page together: words, figures and episodes into data/report/page.html.

The file asks for nothing else. What episodes say is compressed into a block of base64,
which cannot end the script element that it stands in, and the page's own policy lets
no script run but the two whose fingerprints it names.
"""

import base64
import gzip
import hashlib
import json
import os
import re
from functools import cache
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import altair
import vl_convert

from evoharness_jax.page import charts, episodes, heading, history, tables
from evoharness_jax.page.folder import Run

SLOT = re.compile(r"\{\{(\w+)\}\}")
BYTES = 5_000_000  # that a page may have
KEYS = ("annealing", "verbs", "tokens", "reward", "optimiser", "calls", "time")


class Page(NamedTuple):
    path: Path
    bytes: int
    episodes: int  # shown
    of: int  # recorded


def write(
    run: Run,
    earlier: dict[str, Any] | None = None,
    earlier_name: str = "",
    most: int = 500,
    reload: float = 0.0,
    kept: dict | None = None,
) -> Page:
    """Write RUN/report.html.

    Args:
        earlier: summary of an evaluation of the same games, and what to call it.
        most: episodes to show.
        reload: seconds until the page loads itself again; 0: never.
        kept: episodes that earlier calls have replayed; filled.

    Raises:
        ValueError: the games of the two evaluations differ.
    """
    earlier = earlier or {}
    changes, wrong = _bank(run)
    figures = charts.figures(run, earlier, changes)
    shown = _episodes(run, most, {} if kept is None else kept)
    fill = {
        "title": escape(heading.title(run)),
        "facts": heading.facts(run),
        "problems": heading.problems(run, wrong),
        "tiles": heading.tiles(run),
        "versus": tables.versus(run, earlier, earlier_name),
        "types": tables.types(run, earlier),
        "bank": tables.bank(changes, tables.figure(figures.get("bank"), bare=True)),
        "reload": f"{reload:g}",
        "css": _file("page.css"),
        "vega": _vega(),
        "js": _script(_file("page.js")),
    } | {key: tables.figure(figures.get(key)) for key in KEYS}
    fill["policy"] = " ".join(
        f"'sha256-{_hash(fill[name])}'" for name in ("vega", "js")
    )
    specs = {key: [spec for _, spec in one.parts] for key, one in figures.items()}
    whole = _fitted(run, fill, specs, shown)
    path = run.folder / "report.html"
    temporary = path.with_name(".report.html")  # who reads it sees a whole page
    temporary.write_bytes(whole[0])
    os.replace(temporary, path)
    return Page(path, len(whole[0]), whole[1], len(run.outlines))


def _fitted(run: Run, fill: dict, specs: dict, shown: list[dict]) -> tuple[bytes, int]:
    """Fill the page; leave prompts out, then episodes, until it is small enough."""
    prompts = True
    while True:
        data = {
            "figures": specs,
            "episodes": shown if prompts else [_unprompted(one) for one in shown],
            "unit": tables.unit_of(run),
            "note": _how_many(len(shown), len(run.outlines), prompts),
        }
        page = _filled(_file("page.html"), fill | {"data": packed(data)}).encode()
        if len(page) <= BYTES or not shown:
            return page, len(shown)
        if prompts:
            prompts = False
        else:
            shown = shown[::2]


def _how_many(shown: int, of: int, prompts: bool) -> str:
    words = f"{shown:,} of {of:,} recorded episodes are in this page"
    words += ", evenly spread." if shown < of else "."
    return words if prompts else f"{words} Prompts were left out to keep it small."


def _unprompted(one: dict[str, Any]) -> dict[str, Any]:
    turns = [{k: v for k, v in turn.items() if k != "p"} for turn in one["turns"]]
    return one | {"turns": turns, "system": ""}


def _episodes(run: Run, most: int, kept: dict) -> list[dict[str, Any]]:
    player = None
    found = []
    for outline in episodes.choose(run.outlines, most):
        key = (outline.path, outline.offset, outline.path.stat().st_mtime_ns)
        if key not in kept:
            player = player or episodes.player(run)
            kept[key] = episodes.shown(run, player, outline)
        found.append(kept[key])
    return found


def _bank(run: Run) -> tuple[list[history.Change], list[str]]:
    for folder in (run.folder / "bank", run.folder / "collect" / "bank"):
        if folder.is_dir():
            return history.changes(folder)
    return [], []


def colored(spec: dict[str, Any]) -> dict[str, Any]:
    """Put the page's light colours into a figure, to show it elsewhere."""
    colors = dict(re.findall(r"(--[a-z]+): (#\w+);", _file("page.css"))[::-1])
    text = json.dumps(spec)
    return json.loads(re.sub(r"var\((--[a-z]+)\)", lambda m: colors[m[1]], text))


def packed(data: Any) -> str:
    """Return data as the page's script unpacks it: JSON, gzip, base64."""
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False)
    # A lone surrogate is no text, and a model may say one.
    content = text.encode("utf-8", "replace")
    return base64.b64encode(gzip.compress(content, 9, mtime=0)).decode()


def _filled(template: str, fill: dict[str, str]) -> str:
    """Fill every {{slot}} in one pass: what is filled in is not looked at again."""
    return SLOT.sub(lambda slot: fill[slot[1]], template)


def _file(name: str) -> str:
    path = resources.files("evoharness_jax").joinpath("data", "report", name)
    return path.read_text(encoding="utf-8")


@cache
def _vega() -> str:
    """Return Vega, Vega-Lite and Vega-Embed of the version that Altair speaks."""
    version = ".".join(altair.SCHEMA_VERSION.removeprefix("v").split(".")[:2])
    return _script(vl_convert.javascript_bundle(vl_version=version))


def _script(code: str) -> str:
    """Keep code from ending the script element that it stands in."""
    return code.replace("</script", r"<\/script").replace("<!--", r"\x3C!--")


def _hash(code: str) -> str:
    return base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
