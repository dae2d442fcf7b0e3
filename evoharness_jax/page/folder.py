"""What lies in a run's folder, and what is wrong with it.

    fine-tuning       metrics.jsonl, collect/
    policy gradient   metrics.jsonl, episodes/<step>.jsonl, bank/
    evaluation        summary.json, episodes.jsonl
    collection        collect.json, episodes-<pass>.jsonl, bank/

A run that was killed, or goes on, has less of it: what is there is read, and `problems`
says what is missing. Only what cannot be understood at all is an error.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

from evoharness_jax import __version__, metrics
from evoharness_jax.page import outlines as outlines_
from evoharness_jax.page.outlines import Outline
from evoharness_jax.rollout.summary import games, summarise

SUMMARY = (
    "success wins n interval by_type calls calls_total turns tokens tokens_per_win "
    "games split policy errors dropped"
).split()


class Run(NamedTuple):
    folder: Path
    stage: str  # train_sft, train_rl, evaluate or collect
    config: dict[str, Any]
    version: str  # of the package that made it; "": it does not say
    lines: list[dict[str, float]]  # metrics.jsonl
    summary: dict[str, Any]  # of an evaluation
    passes: list[dict[str, Any]]  # of a collection
    outlines: list[Outline]
    finished: bool
    problems: list[str]


def read(workdir: str | Path, seen: dict | None = None) -> Run:
    """Read a run's folder.

    Args:
        seen: what earlier calls found in files that have not changed since; filled.

    Raises:
        ValueError: no run lies there, or one of its files cannot be understood.
    """
    folder = Path(workdir)
    check_there(folder)
    problems = []
    config = _config(folder, problems)
    files = outlines_.files(folder)
    outlines = [
        one
        for path, step in files
        for one in outlines_.read(path, step, problems, {} if seen is None else seen)
    ]
    stage = _stage(folder, config, files)
    passes = read_json(folder / "collect.json", list) or []
    lines, summary = [], {}
    if stage == "evaluate" and (folder / "summary.json").exists():
        finished, summary = True, read_summary(folder)
    elif stage == "evaluate":
        finished, summary = False, _unfinished(folder, outlines, config, problems)
    elif stage == "collect":
        finished = _collected(config, passes, problems)
    else:
        lines = _lines(folder, problems)
        finished = _trained(config, lines, problems)
    version = config.get("version", "") or _said(summary)
    problems += _other_version(version)
    return Run(
        folder, stage, config, version, lines, summary, passes, outlines, finished,
        problems,
    )  # fmt: skip


def check_there(folder: Path) -> None:
    """Raise ValueError where there is no such folder."""
    if not folder.is_dir():
        what = "a file, not a folder" if folder.exists() else "not there"
        raise ValueError(f"--workdir: {folder} is {what}")


def has_begun(folder: Path) -> bool:
    """Say whether a run has written anything that could be shown."""
    names = ("metrics.jsonl", "summary.json", "collect.json", "episodes.jsonl")
    return any(
        (folder / name).exists() and (folder / name).stat().st_size for name in names
    ) or bool(outlines_.files(folder))


def read_summary(folder: Path) -> dict[str, Any]:
    """Read an evaluation's summary.

    Raises:
        ValueError: it has none yet, or not one that we can read.
    """
    path = folder / "summary.json"
    if not path.exists():
        raise ValueError(f"{folder} is no finished evaluation: it has no summary.json")
    summary = read_json(path, dict)
    if missing := [name for name in SUMMARY if name not in summary]:
        raise ValueError(
            f"{path} cannot be read: it lacks {', '.join(missing)}; it was made by "
            f"version {_said(summary) or 'unknown'}, this is {__version__}"
        )
    return summary


def read_json(path: Path, kind: type) -> Any:
    """Read a JSON file of one dict or list; None where there is no such file."""
    if not path.exists():
        return None
    try:
        found = json.loads(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    if not isinstance(found, kind):
        raise ValueError(f"{path} is damaged: it holds no {kind.__name__}")
    return found


def _stage(folder: Path, config: dict, files: list) -> str:
    """Say which entry point made a run that has written something to show."""
    if not has_begun(folder):
        raise ValueError(_nothing(folder))
    if config.get("stage"):
        return config["stage"]
    if (folder / "summary.json").exists() or (folder / "episodes.jsonl").exists():
        return "evaluate"
    if files and files[0][0].parent.name == "episodes":
        return "train_rl"
    return "train_sft" if (folder / "metrics.jsonl").exists() else "collect"


def _config(folder: Path, problems: list[str]) -> dict[str, Any]:
    path, stage = folder / "config.json", {}
    if folder.name == "collect" and not path.exists():  # within a fine-tuning run
        path, stage = folder.parent / "config.json", {"stage": "collect"}
    try:
        config = read_json(path, dict)
    except ValueError as error:
        problems.append(f"{error}; what needs the settings is left out")
        return {}
    if config is None:
        problems.append("config.json is missing: what needs the settings is left out")
    return {} if config is None else config | stage


def _lines(folder: Path, problems: list[str]) -> list[dict[str, float]]:
    path = folder / "metrics.jsonl"
    if not path.exists():
        return []
    written = path.read_bytes()
    if written and not written.endswith(b"\n"):
        problems.append(f"{path}: the last line is cut short")
    return metrics.read(folder)


def _trained(config: dict, lines: list[dict], problems: list[str]) -> bool:
    at = int(lines[-1]["step"]) if lines else 0
    total = config.get("optim", {}).get("steps", 0)
    if not lines:
        problems.append("metrics.jsonl: no step is written yet")
    elif at < total:
        problems.append(f"step {at} of {total}: the run goes on, or was stopped there")
    return bool(total) and at >= total


def _collected(config: dict, passes: list[dict], problems: list[str]) -> bool:
    wanted = config.get("collect", {}).get("passes", len(passes))
    if len(passes) < wanted:
        problems.append(f"collect.json: {len(passes)} of {wanted} passes are done")
    return bool(passes) and len(passes) >= wanted


def _unfinished(
    folder: Path, outlines: list[Outline], config: dict, problems: list[str]
) -> dict[str, Any]:
    """Return a summary of the episodes that an evaluation without one has left."""
    if not outlines:
        raise ValueError(f"{folder / 'episodes.jsonl'} holds no whole episode")
    problems.append(
        "summary.json is missing: the evaluation did not end; its numbers are those of "
        f"the {len(outlines)} episodes in episodes.jsonl"
    )
    records = [outlines_.record(one) for one in outlines]
    return summarise(records) | {
        "split": records[0].get("split", ""),
        "policy": records[0].get("policy", ""),
        "bank": records[0].get("bank", ""),
        "games": games(records),
        "config": config,
    }


def _said(summary: dict[str, Any]) -> str:
    return summary.get("versions", {}).get("evoharness_jax", "")


def _other_version(version: str) -> list[str]:
    if not version:
        return ["config.json does not say which version of the package made this run"]
    if version == __version__:
        return []
    return [
        f"made by version {version} of the package, read by {__version__}: numbers are "
        "shown as they were written, replayed episodes may differ"
    ]


def _nothing(folder: Path) -> str:
    if (folder / "config.json").exists():
        return (
            f"{folder} holds a run that has written no numbers yet (config.json "
            "alone); --follow waits for them"
        )
    return (
        f"{folder} is neither a training run (metrics.jsonl) nor an evaluation "
        "(summary.json), nor a collection (collect.json)"
    )
