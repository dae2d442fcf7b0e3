"""Evaluate a policy: every game of a split once, in sorted order.

    python -m evoharness_jax.evaluate --workdir=DIR \
        --config=configs/alfworld_eval.py:checkpoint=RUN,split=valid_seen

Writes DIR/summary.json and DIR/episodes.jsonl, one record a game with every turn.
"""

import json
import platform
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
from ml_collections import ConfigDict

from evoharness_jax import __version__, build, cli, collect, metrics
from evoharness_jax.experience import bank as bank_
from evoharness_jax.rollout import loop, policies
from evoharness_jax.rollout.sampling import Sampling
from evoharness_jax.rollout.slots import Rows
from evoharness_jax.rollout.summary import games, summarise

EVALUATION_UID = 1 << 30  # evaluation draws from streams that training never uses
PACKAGES = ("jax", "flax", "numpy", "alfworld", "textworld")


def run(config: ConfigDict, workdir: str) -> dict[str, Any]:
    """Evaluate; return what `summary.json` holds."""
    begun = time.monotonic()
    domain = build.domain(config)
    setting = build.setting(config)
    tasks = chosen(config, domain)
    run_folder = build.located(config.checkpoint) if config.policy == "model" else ""
    if run_folder:
        build.same_env(config, run_folder, "checkpoint")
    elif config.policy == "model":
        raise ValueError("checkpoint: name the run to evaluate, checkpoint=RUN")
    bank = build.first_bank(config, domain, run_folder)
    batch = min(config.evaluate.batch, domain.capacity)
    policy, tokens = _policy(config, domain, run_folder, batch)
    with metrics.bar(config.evaluate.split, len(tasks)) as done:
        played = play(config, policy, domain, bank, tasks, setting, batch, tokens, done)
    summary = result(config, played, bank, time.monotonic() - begun)
    write(workdir, summary, played.records)
    print(line(summary))
    return summary


def chosen(config: ConfigDict, domain) -> list:
    """Return the games to evaluate on: the sorted split, or its first few."""
    tasks = list(domain.tasks(config.evaluate.split))
    return tasks[: config.evaluate.games] if config.evaluate.games else tasks


def play(config, policy, domain, bank, tasks, setting, batch, tokens, done=None):
    """Play each task once; returns the Rollout."""
    arrays, words = bank_.arrays(bank.entries, config.bank.capacity)
    played = loop.rollout(
        policy,
        domain,
        arrays,
        words,
        tasks,
        setting,
        batch=batch,
        first_uid=EVALUATION_UID,
        tokens=tokens,
        on_episode=lambda r: done(r["won"]) if done else None,
        version=bank.name,
    )
    check_context(config, played.records)
    return played


def check_context(config: ConfigDict, records: list[dict]) -> None:
    """Raise ValueError where not one episode had room for a first response."""
    if any(r["error"] != loop.CONTEXT_FULL or len(r["turns"]) > 1 for r in records):
        return
    raise ValueError(
        f"model.context: {config.model.context} ids hold no first prompt and a "
        f"response, for which model.response = {config.model.response} are kept free"
    )


def result(config: ConfigDict, played, bank, seconds: float) -> dict[str, Any]:
    """Return the contents of `summary.json`."""
    return summarise(played.records) | {
        "seconds": round(seconds, 1),
        "seconds_by_phase": {k: round(v, 2) for k, v in played.seconds.items()},
        "split": config.evaluate.split,
        "policy": played.records[0]["policy"],
        "bank": bank.name,
        "games": games(played.records),
        "seed": config.seed,
        "config": config.to_dict(),
        "versions": versions(),
    }


def write(workdir: str, summary: dict[str, Any], records: list[dict]) -> None:
    """Write summary.json and episodes.jsonl."""
    folder = Path(workdir)
    with (folder / "episodes.jsonl").open("w") as file:
        file.writelines(json.dumps(record) + "\n" for record in records)
    (folder / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")


def line(summary: dict[str, Any]) -> str:
    """Say a summary in one line."""
    low, high = summary["interval"]
    calls = "  ".join(f"{verb} {n:.2f}" for verb, n in summary["calls"].items())
    more = ""
    if summary["success_charged"] < summary["success"]:
        more = f"  if calls cost turns {100 * summary['success_charged']:.1f} %"
    if summary["errors"]:
        more += f"  errors {summary['errors']}"
    return (
        f"{summary['split']}: {summary['wins']} of {summary['n']} won "
        f"({100 * summary['success']:.1f} %, 95 % interval {100 * low:.1f} to "
        f"{100 * high:.1f})  turns {summary['turns']:.1f}  calls "
        f"{summary['calls_total']:.2f} ({calls})  tokens {summary['tokens']:.0f}"
        f"{more}"
    )


def versions() -> dict[str, str]:
    """Return the versions that a result depends on."""
    found = {name: version(name) for name in PACKAGES}
    return {
        "evoharness_jax": __version__,
        "python": platform.python_version(),
        "device": jax.devices()[0].device_kind,
        **found,
    }


def _policy(config: ConfigDict, domain, run_folder: str, batch: int):
    if config.policy == "teacher":
        return collect.teacher(domain), None
    if config.policy == "random":
        return policies.random_choice(config.seed), None
    if config.policy != "model":
        raise ValueError(
            f"policy: {config.policy!r}, not one of model, teacher, random"
        )
    model = build.load_run(config, run_folder, config.model.init)
    sampling = Sampling(config.evaluate.temperature, 0, config.evaluate.top_p)
    engine = build.engine(config, model, batch, sampling)
    policy = build.model_policy(config, model, Rows(engine), model.params, 0)
    return policy, model.tokens


def main() -> None:
    """Run from the command line."""
    cli.main(run, "evaluate", ("evaluate", "checkpoint", "policy"))


if __name__ == "__main__":
    main()
