"""Find ALFWorld games on disk.

    $ALFWORLD_DATA/json_2.1.1/<split>/<task folder>/<trial folder>/game.tw-pddl

Several folders, with a colon between them, are one: real games beside generated ones.

What is played is what the original loader plays: a game needs a `traj_data.json`
beside it and a `solvable` that is true, no movable receptacle, nothing sliced, and a
standard task type. The rest is counted with its reason. A scan reads only the end of
each game, where `solvable` stands.

    python -m evoharness_jax.envs.alfworld.data [FOLDER]

tells what is there by release, split and type, and what is skipped and why.
"""

import json
import os
import re
import sys
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from evoharness_jax.envs.domain import Task

TASK_TYPES = (
    "pick_and_place_simple",
    "look_at_obj_in_light",
    "pick_clean_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_cool_then_place_in_recep",
    "pick_two_obj_and_place",
)
GAME, TRAJECTORY = "game.tw-pddl", "traj_data.json"
NEEDED = ("pddl_domain", "grammar", "pddl_problem")
HOW_TO_GET = (
    "alfworld-download fetches the games (pip install alfworld==0.4.2); then set "
    "ALFWORLD_DATA to the folder that holds json_2.1.1"
)
TAIL = 4096  # bytes read of each game in a scan
SOLVABLE = re.compile(rb'"solvable":\s*(true|false)')


class Scan(NamedTuple):
    """The games of a split, and why others in its folder are not among them."""

    tasks: tuple[Task, ...]
    skipped: Counter  # reason -> games


def games(split: str, root: str | None = None) -> tuple[Task, ...]:
    """Return the playable games of a split, sorted by id.

    Args:
        split: a folder of the data, such as "train" or "valid_seen".
        root: the data folder, or several; None: $ALFWORLD_DATA.
    """
    found = scan(split, root)
    if not found.tasks:
        reasons = ", ".join(f"{n} {why}" for why, n in found.skipped.most_common())
        folders = os.pathsep.join(map(str, split_folders(split, root)))
        raise ValueError(
            f"no playable games: {split=} in {folders} ({reasons or 'no game files'})"
        )
    return found.tasks


def scan(split: str, root: str | None = None) -> Scan:
    """Return the playable games of a split, and the count of the others by reason."""
    tasks: dict[str, Task] = {}
    skipped = Counter()
    for folder in split_folders(split, root):
        found = scan_folder(folder)
        skipped += found.skipped
        for task in found.tasks:
            if task.id in tasks:
                skipped["named as one of an earlier folder"] += 1
            tasks.setdefault(task.id, task)
    return Scan(tuple(sorted(tasks.values())), skipped)


def scan_folder(folder: Path) -> Scan:
    """Return what `scan` does, of a split's own folder."""
    tasks, skipped = [], Counter()
    for trial in _trials(folder):
        name = f"{trial.parent.name}/{trial.name}"
        reason = _refusal(trial)
        if reason:
            skipped[reason] += 1
        else:
            tasks.append(Task(name, _type(trial), folder.name, str(trial / GAME)))
    return Scan(tuple(sorted(tasks)), skipped)


def game(path: str, split: str = "") -> Task:
    """Return one game by its file, which is checked: a broken one is named."""
    file = Path(path)
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"no such game: {path}") from None
    except ValueError as error:  # not JSON, or not text
        raise ValueError(f"broken game file: {path}: {error}") from error
    missing = [key for key in NEEDED if key not in content]
    if missing:
        raise ValueError(f"broken game file: {path}: it lacks {', '.join(missing)}")
    trial = file.parent
    return Task(f"{trial.parent.name}/{trial.name}", _type(trial), split, str(file))


def data_roots(root: str | None = None) -> list[Path]:
    """Return the data folders, which must exist."""
    named = root or os.environ.get("ALFWORLD_DATA")
    if not named:
        raise ValueError(f"no ALFWorld data: ALFWORLD_DATA is not set. {HOW_TO_GET}")
    folders = [Path(name).expanduser() for name in named.split(os.pathsep) if name]
    for folder in folders:
        if not folder.is_dir():
            raise ValueError(
                f"no ALFWorld data: {folder} is not a folder. {HOW_TO_GET}"
            )
    return folders


def splits(root: str | None = None) -> dict[str, list[Path]]:
    """Return the folders of every split, one of each data folder that has it.

    A split that is in two releases of a data folder is that of the first.
    """
    found: dict[str, dict[Path, Path]] = {}
    for top, folder in _every_split(root):
        found.setdefault(folder.name, {}).setdefault(top, folder)
    return {name: list(folders.values()) for name, folders in found.items()}


def _every_split(root: str | None) -> list[tuple[Path, Path]]:
    """Return (data folder, split folder) of every release, by name."""
    return [
        (top, folder)
        for top in data_roots(root)
        for folder in sorted(p for p in top.glob("json_*/*") if p.is_dir())
    ]


def split_folders(split: str, root: str | None = None) -> list[Path]:
    """Return the folders of a split, of which there must be one."""
    found = splits(root)
    if split not in found:
        known = ", ".join(sorted(found)) or "none"
        folders = os.pathsep.join(map(str, data_roots(root)))
        raise ValueError(f"unknown split: {split=} in {folders}, there are: {known}")
    return found[split]


def _trials(folder: Path):
    for task in os.scandir(folder):
        if task.is_dir():
            for trial in os.scandir(task.path):
                if trial.is_dir():
                    yield Path(trial.path)


def _refusal(trial: Path) -> str:
    """Return why a trial is not played, or nothing."""
    if "movable" in trial.parent.name:
        return "with a movable receptacle"
    if "Sliced" in trial.parent.name:
        return "with a sliced object"
    if not (trial / GAME).is_file():
        return f"without {GAME}"
    if not (trial / TRAJECTORY).is_file():
        return f"without {TRAJECTORY}"
    solvable = _solvable(trial / GAME)
    if solvable is not True:
        return {False: "unsolvable", None: "without `solvable`"}.get(solvable, "broken")
    if _type(trial) not in TASK_TYPES:
        return "of another task type"
    return ""


def _solvable(path: Path):
    """Return True, False, None where the game does not say, or "broken"."""
    with open(path, "rb") as file:
        file.seek(max(0, os.path.getsize(path) - TAIL))
        tail = file.read()
    said = SOLVABLE.findall(tail)
    if said and tail.rstrip().endswith(b"}"):
        return said[-1] == b"true"
    try:
        return json.loads(path.read_text(encoding="utf-8")).get("solvable")
    except ValueError:
        return "broken"


def _type(trial: Path) -> str:
    named = trial.parent.name.split("-")[0]
    if named in TASK_TYPES or not (trial / TRAJECTORY).is_file():
        return named
    try:
        return json.loads((trial / TRAJECTORY).read_text()).get("task_type", "")
    except ValueError:
        return ""


def spelling(path: str) -> str:
    """Return how a game's grammar has things put down: "move" or "put"."""
    grammar = json.loads(Path(path).read_text(encoding="utf-8"))["grammar"]
    return "move" if "move {o} to {r}" in grammar else "put"


def main(root: str | None = None) -> None:
    """Print what the data folder holds."""
    from rich.console import Console
    from rich.table import Table

    tops = os.pathsep.join(map(str, data_roots(root)))
    grid = Table(title=f"games under {tops}", box=None)
    grid.add_column("release/split", no_wrap=True)
    grid.add_column("says")
    for name in ("place", "look", "clean", "heat", "cool", "two", "all"):
        grid.add_column(name, justify="right")
    notes = []
    for _, folder in _every_split(root):
        found = scan_folder(folder)
        count = Counter(task.type for task in found.tasks)
        cells = [str(count[kind]) for kind in TASK_TYPES]
        where = f"{folder.parent.name}/{folder.name}"
        word = spelling(found.tasks[0].spec) if found.tasks else ""
        grid.add_row(where, word, *cells, str(len(found.tasks)))
        if found.skipped:
            why = ", ".join(f"{n} {reason}" for reason, n in found.skipped.items())
            notes.append(f"skipped in {where}: {why}")
    console = Console()
    if grid.row_count:
        console.print(grid, *notes, sep="\n")
    else:
        console.print(f"no games under {tops}. {HOW_TO_GET}")


if __name__ == "__main__":
    try:
        main(*sys.argv[1:2])
    except ValueError as error:
        sys.exit(f"error: {error}")
