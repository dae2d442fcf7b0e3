"""Report on runs: what they learned, what it cost, and one episode turn by turn.

    python -m evoharness_jax.report --workdir=RUN
    python -m evoharness_jax.report --workdir=EVALUATION --versus=EARLIER_EVALUATION
    python -m evoharness_jax.report --workdir=EVALUATION --episode=TASK

A training run gives its curve; an evaluation gives its table, paired with an earlier
one on the same games if there is one. `--episode` replays a record through the arrays
and shows the workspace after every turn.
"""

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

from absl import app, flags
from ml_collections import ConfigDict
from rich.console import Console
from rich.table import Table

from evoharness_jax import build, metrics
from evoharness_jax.bpe import views
from evoharness_jax.collect import read_episodes
from evoharness_jax.experience import bank as bank_
from evoharness_jax.rollout import record as record_
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


def run(workdir: str, versus: str = "", episode: str = "", console=None) -> None:
    """Print the report.

    Raises:
        ValueError: the folder is no run, the games differ, no such episode.
    """
    console = console or Console()
    folder = Path(workdir)
    known = [n for n in ("metrics.jsonl", "summary.json") if (folder / n).exists()]
    if not known:
        raise ValueError(
            f"{workdir} is neither a training run (metrics.jsonl) nor an evaluation "
            "(summary.json)"
        )
    if (versus or episode) and "summary.json" not in known:
        raise ValueError(f"{workdir} is no evaluation: --versus and --episode need one")
    earlier = read_summary(Path(versus)) if versus else None
    if episode:
        show_episode(folder, episode, console)
        return
    if "metrics.jsonl" in known:
        console.print(curve(metrics.read(folder)))
    if "summary.json" in known:
        summary = read_summary(folder)
        console.print(table(summary))
        if earlier:
            console.print(comparison(earlier, summary))


def read_summary(folder: Path) -> dict[str, Any]:
    """Read an evaluation's summary."""
    path = folder / "summary.json"
    if not path.exists():
        raise ValueError(f"{folder} is no finished evaluation: it has no summary.json")
    try:
        return json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {error}") from error


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


def show_episode(folder: Path, task: str, console: Console) -> None:
    """Replay one recorded episode and print it turn by turn."""
    records = {r["task"]: r for r in read_episodes(folder / "episodes.jsonl")}
    if task not in records:
        some = ", ".join(list(records)[:5])
        raise ValueError(f"no episode {task!r} in {folder}; there are {some}, ...")
    record = records[task]
    config = ConfigDict(json.loads((folder / "config.json").read_text()))
    summary = read_summary(folder)
    domain = build.domain(config)
    bank = _bank_of(folder, summary, config, domain)
    arrays, words = bank_.arrays(bank.entries, record["setting"]["entries"])
    lexicon, final, every = record_.replay(domain, arrays, words, record)
    # Without markup: what stands in brackets is the agent's, not a style.
    say = partial(console.print, markup=False, highlight=False)
    say(f"{record['task']}  {record['opening']}", style="bold")
    for t, turn in enumerate(record["turns"]):
        say(f"\n{t + 1}. {turn.get('response', '')}  ({turn.get('tag')})")
        if "observation" in turn:
            say(domain.show(turn["observation"]["text"]), style="cyan")
        step = record_.pick(every, t)
        say(views.show(lexicon, step.workspace), style="dim")
    same = record_.digest(final) == record["digest"]
    say(f"\n{record['stop']}; replay equals the record: {same}")


def _bank_of(folder: Path, summary: dict, config: ConfigDict, domain):
    """Find the bank version that an evaluation was played with."""
    name = summary["bank"]
    if not name:
        return build.first_bank(config, domain)
    candidates = (config.bank.path, config.checkpoint)
    for place in filter(None, candidates):
        for bank in (Path(place) / "bank", Path(place)):
            if (bank / f"{name}.jsonl").exists():
                return bank_.read(bank, name)
    raise ValueError(f"bank version {name} of {folder} is no longer there")


def main() -> None:
    """Parse the command line and print the report."""
    workdir = flags.DEFINE_string("workdir", None, "a run, or an evaluation")
    versus = flags.DEFINE_string("versus", "", "an earlier evaluation, same games")
    episode = flags.DEFINE_string("episode", "", "task id of an episode to replay")
    flags.mark_flags_as_required(["workdir"])

    def start(argv):
        if len(argv) > 1:
            raise app.UsageError(f"what is {' '.join(argv[1:])}?")
        try:
            run(workdir.value, versus.value, episode.value)
        except (ValueError, OSError) as error:
            sys.exit(f"error: {error}")

    app.run(start)


if __name__ == "__main__":
    main()
