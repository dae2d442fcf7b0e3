"""The top of a page, as HTML: which run it is, its limits, its numbers."""

from html import escape
from typing import Any, NamedTuple

from evoharness_jax import __version__
from evoharness_jax.page.folder import Run

STAGES = {
    "train_sft": "Fine-tuning",
    "train_rl": "Policy gradient",
    "evaluate": "Evaluation",
    "collect": "Collection",
}


class Tile(NamedTuple):
    """One number of the top of the page."""

    name: str
    value: str
    more: str


def title(run: Run) -> str:
    """Name a run: its folder, within the one that it lies in."""
    whole = run.folder.resolve()
    return f"{whole.parent.name}/{whole.name}"


def facts(run: Run) -> str:
    """Say in one line what was run."""
    config = run.config
    env, model = config.get("env", {}), config.get("model", {})
    words = [STAGES.get(run.stage, run.stage), env.get("name")]
    if run.summary:
        words += [f"split {run.summary['split']}", f"policy {run.summary['policy']}"]
        words.append(config.get("checkpoint") and f"checkpoint {config['checkpoint']}")
    else:
        words.append(run.stage != "collect" and model.get("name"))
    words += [env.get("mode"), env.get("regime"), f"seed {config.get('seed', '?')}"]
    words.append(f"made by {run.version or 'an unknown version'}")
    if run.version != __version__:
        words.append(f"read by {__version__}")
    return escape(" · ".join(str(word) for word in words if word))


def problems(run: Run, more: list[str]) -> str:
    """Return what is missing or odd, as a list; "" where nothing is."""
    told = run.problems + more
    if not told:
        return ""
    items = "".join(f"<li>{escape(words)}</li>" for words in told[:20])
    if len(told) > 20:
        items += f"<li>and {len(told) - 20} more</li>"
    return f'<aside class="problems" aria-label="Limits"><ul>{items}</ul></aside>'


def tiles(run: Run) -> str:
    """Return the numbers of the top."""
    shown = "".join(
        f"<div><dt>{escape(t.name)}</dt><dd>{escape(t.value)}</dd>"
        f"<dd class=more>{escape(t.more)}</dd></div>"
        for t in (_evaluated(run.summary) if run.summary else _trained(run))
    )
    return f'<dl class="tiles">{shown}</dl>' if shown else ""


def _evaluated(summary: dict[str, Any]) -> list[Tile]:
    low, high = summary["interval"]
    per_win = summary["tokens_per_win"]
    found = [
        Tile("won", f"{100 * summary['success']:.1f} %",
             f"{summary['wins']} of {summary['n']}, 95 % interval "
             f"{100 * low:.1f} to {100 * high:.1f}"),
        Tile("calls", f"{summary['calls_total']:.2f}", "meta-actions an episode"),
        Tile("turns", f"{summary['turns']:.1f}", "an episode, calls included"),
    ]  # fmt: skip
    if summary["tokens"]:  # a teacher has no tokenizer
        value = "-" if per_win is None else f"{per_win:,.0f}"
        more = f"{summary['tokens']:,.0f} an episode"
        found.append(Tile("tokens a solved task", value, more))
    if summary["errors"] or summary["dropped"]:
        odd = f"{summary['dropped']} words dropped for lack of room"
        found.append(Tile("errors", str(summary["errors"]), odd))
    return found


def _trained(run: Run) -> list[Tile]:
    found = []
    for name, key, scale, unit in (
        ("won", "env/success", 100, " %"),
        ("won in evaluation", "eval/success", 100, " %"),
        ("calls", "calls/total", 1, ""),
        ("tokens an episode", "env/tokens", 1, ""),
        ("loss", "loss/sft", 1, ""),
        ("loss, held out", "loss/held_out", 1, ""),
    ):
        values = [line[key] * scale for line in run.lines if key in line]
        if values:
            digits = ",.0f" if max(map(abs, values)) >= 20 else ".3g"
            first = f"{values[0]:{digits}}{unit}"
            value = f"{values[-1]:{digits}}{unit}"
            found.append(Tile(name, value, f"{first} at first"))
    if run.lines:
        total = run.config.get("optim", {}).get("steps", "?")
        count = f"{len(run.outlines):,} episodes" if run.outlines else ""
        found.append(Tile("steps", f"{int(run.lines[-1]['step'])} of {total}", count))
    elif run.outlines:
        won = sum(one.won for one in run.outlines)
        rate = f"{100 * won / len(run.outlines):.1f} %"
        found.append(Tile("won", rate, f"of {len(run.outlines):,} episodes"))
    return found
