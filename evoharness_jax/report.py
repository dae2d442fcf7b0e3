"""Report on runs: what they learned, what it cost, and their episodes turn by turn.

    python -m evoharness_jax.report --workdir=RUN
    python -m evoharness_jax.report --workdir=EVALUATION --versus=EARLIER_EVALUATION
    python -m evoharness_jax.report --workdir=RUN --episode=TASK
    python -m evoharness_jax.report --workdir=RUN --follow

Prints a training run's curve, or an evaluation's table, paired with an earlier one on
the same games if there is one, and writes RUN/report.html: all of that, and episodes to
read with B, P and E beside each turn. The page needs the extra `report`; without it
the text comes all the same, and only `--html` makes that an error. `--follow` keeps
both up to date until the run is done.
"""

import contextlib
import importlib.util
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

from absl import app, flags
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from evoharness_jax.bpe import views
from evoharness_jax.page import episodes as episodes_
from evoharness_jax.page import folder as folder_
from evoharness_jax.page import outlines as outlines_
from evoharness_jax.page import terminal
from evoharness_jax.page.folder import Run
from evoharness_jax.page.outlines import Outline
from evoharness_jax.rollout import record as record_

EPISODES = 500  # shown in a page
NEEDS = ("altair", "vl_convert")  # what a page is drawn with: the extra `report`
SHARE = 5  # following, a page is made again after so many times what it took


def run(
    workdir: str,
    versus: str = "",
    episode: str = "",
    console: Console | None = None,
    *,
    html: bool | None = None,
    most: int = EPISODES,
) -> None:
    """Print the report, and write the page.

    Args:
        html: False: no page. True: without one it is an error. None: where it can be.

    Raises:
        ValueError: the folder is no run, the games differ, no such episode.
    """
    console = console or Console()
    found = folder_.read(workdir)
    if versus and found.stage != "evaluate":
        raise ValueError(f"{workdir} is no evaluation: --versus needs one")
    earlier = folder_.read_summary(Path(versus)) if versus else {}
    if episode:
        show_episode(found, episode, console)
        return
    for part in terminal.text(found, earlier):
        console.print(part)
    if html is not False and drawable(console, html):
        page = write_page(found, earlier, versus, most)
        console.print(said_of(page), soft_wrap=True)


def follow(
    workdir: str,
    console: Console | None = None,
    *,
    html: bool | None = None,
    most: int = EPISODES,
    every: float = 5.0,
) -> None:
    """Keep text and page up to date until the run is done, or an interrupt.

    Raises:
        ValueError: there is no such folder, or a file of the run is damaged.
    """
    console = console or Console()
    folder = Path(workdir)
    folder_.check_there(folder)
    draw = html is not False and drawable(console, html)
    seen, kept = {}, {}
    found, ended, page, due = None, "", None, 0.0
    with Live(console=console, auto_refresh=False) as live:
        with contextlib.suppress(KeyboardInterrupt):
            while not ended:
                found = _look(folder, seen, every)
                ended = _ended(folder, found)
                live.update(_view(folder, found, ended, every), refresh=True)
                if draw and found and not ended and time.monotonic() >= due:
                    begun = time.monotonic()
                    page = write_page(found, {}, "", most, every, kept)
                    # It takes a processor that the run could use.
                    due = begun + (SHARE + 1) * (time.monotonic() - begun)
                if not ended:
                    time.sleep(every)
    if draw and found:  # the last one does not load itself again
        page = write_page(found, {}, "", most, 0.0, kept)
    if page:
        console.print(said_of(page), soft_wrap=True)


def _look(folder: Path, seen: dict, every: float) -> Run | None:
    """Read a run under way; None before its first numbers."""
    if not folder_.has_begun(folder):
        return None
    try:
        return folder_.read(folder, seen)
    except ValueError:  # a file that is being written; if not, it fails again
        time.sleep(every)
        return folder_.read(folder, seen)


def _ended(folder: Path, found: Run | None) -> str:
    """Say how a run ended; "" while it goes on."""
    if found and found.finished:
        return "the run is done"
    error, config = folder / "error.txt", folder / "config.json"
    old = config.exists() and error.exists()
    if old and error.stat().st_mtime >= config.stat().st_mtime:
        lines = error.read_text(errors="replace").strip().splitlines()
        return f"the run ended with an error: {''.join(lines[-1:])}"
    return ""


def _view(folder: Path, found: Run | None, ended: str, every: float) -> Group:
    parts = terminal.text(found, {}) if found else []
    if ended:
        last = ended
    elif found:
        last = f"looking again every {every:g} s; Ctrl-C ends this, not the run"
    else:
        last = f"waiting for the first numbers of {folder}"
    return Group(*parts, Text(last, style="dim"))


def drawable(console: Console, html: bool | None) -> bool:
    """Say whether pages can be drawn; if not, tell how to install what is missing.

    Raises:
        ValueError: they cannot, and one was asked for.
    """
    missing = [name for name in NEEDS if importlib.util.find_spec(name) is None]
    if not missing:
        return True
    words = (
        f"no report.html: {' and '.join(missing)} not installed; "
        "pip install 'evoharness_jax[report]'"
    )
    if html:
        raise ValueError(words)
    console.print(Text(words), soft_wrap=True)
    return False


def write_page(
    found: Run,
    earlier: dict[str, Any],
    earlier_name: str,
    most: int,
    reload: float = 0.0,
    kept: dict | None = None,
):
    """Write RUN/report.html; see `page.build.write`."""
    from evoharness_jax.page import build  # what it draws with may not be there

    return build.write(found, earlier, earlier_name, most, reload, kept)


def said_of(page) -> Text:
    """Say where a page is, and how much of the run it holds."""
    size = f"{page.bytes / 1e6:.1f} MB"
    return Text(f"{page.path}  ({size}, {page.episodes:,} of {page.of:,} episodes)")


def show_episode(run: Run, wanted: str, console: Console) -> None:
    """Replay one recorded episode and print it turn by turn."""
    outline, count = find(run, wanted)
    record = outlines_.record(outline)
    player = episodes_.player(run)
    words, lexicon, start, final, every = episodes_.replay(run, player, record)
    # Without markup: what stands in brackets is the agent's, not a style.
    say = partial(console.print, markup=False, highlight=False)
    say(f"{record['task']}  {record['opening']}", style="bold")
    if count > 1:
        say(f"the last of {count} episodes of this task; --episode=UID names another")
    if outline.step:
        say(f"step {outline.step}, uid {outline.uid}, bank {record.get('bank')}")
    for t, turn in enumerate(record["turns"]):
        say(f"\n{t + 1}. {turn.get('response', '')}  ({turn.get('tag')})")
        if "observation" in turn:
            say(player.domain.show(turn["observation"]["text"]), style="cyan")
        step = record_.pick(every, t)
        say(views.show(lexicon, step.workspace), style="dim")
    same = record_.digest(final) == record["digest"]
    say(f"\n{record['stop']}; replay equals the record: {same}")


def find(run: Run, wanted: str) -> tuple[Outline, int]:
    """Return the last episode of a task, or the one of a uid; and how many it has.

    Raises:
        ValueError: there is none.
    """
    of_task = [one for one in run.outlines if one.task == wanted]
    of_uid = [one for one in run.outlines if str(one.uid) == wanted]
    if not of_task and not of_uid:
        some = ", ".join(list({one.task: None for one in run.outlines})[:5])
        raise ValueError(
            f"no episode {wanted!r} in {run.folder}; there are {some}, ..."
        )
    return (of_task or of_uid)[-1], len(of_task)


def main() -> None:
    """Parse the command line and print the report."""
    workdir = flags.DEFINE_string("workdir", None, "a run, or an evaluation")
    versus = flags.DEFINE_string("versus", "", "an earlier evaluation, same games")
    episode = flags.DEFINE_string("episode", "", "task id or uid: replay that episode")
    html = flags.DEFINE_boolean(
        "html", None, "write report.html; by default where the extra is installed"
    )
    most = flags.DEFINE_integer("episodes", EPISODES, "episodes in the page", 0)
    going = flags.DEFINE_boolean("follow", False, "keep up with a run under way")
    every = flags.DEFINE_float("every", 5.0, "seconds between two looks", 0.1)
    flags.mark_flags_as_required(["workdir"])

    def start(argv):
        if len(argv) > 1:
            raise app.UsageError(f"what is {' '.join(argv[1:])}?")
        folder, pages = workdir.value, {"html": html.value, "most": most.value}
        try:
            if going.value and (versus.value or episode.value):
                raise ValueError("--follow goes with neither --versus nor --episode")
            if going.value:
                follow(folder, every=every.value, **pages)
            else:
                run(folder, versus.value, episode.value, **pages)
        except (ValueError, OSError) as error:
            sys.exit(f"error: {error}")

    app.run(start)


if __name__ == "__main__":
    main()
