"""Collect teacher episodes.

    python -m evoharness_jax.collect --config=configs/alfworld_sft.py --workdir=DIR

Every pass plays all chosen games. The first begins with the bank that the environment
brings (for households: none); between passes the notes are consolidated, so the next
one recalls what the last one learned. Writes DIR/episodes-<pass>.jsonl, DIR/bank and
DIR/collect.json. Killed and started again, it goes on with the games not written yet.

With `collect.student`, a run, its model plays and the teacher says at every turn what
would have been right: what a student learns from about the states it gets into itself.
"""

import json
import os
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from evoharness_jax import build, cli, hosts, metrics
from evoharness_jax.experience import bank as bank_
from evoharness_jax.experience.consolidators import EpisodeEvidence
from evoharness_jax.experience.evolve import evolve
from evoharness_jax.rollout import loop, policies
from evoharness_jax.rollout.sampling import Sampling
from evoharness_jax.rollout.slots import Rows
from evoharness_jax.rollout.summary import summarise

PASS_UIDS = 1 << 24  # uids of one pass
WAVES = 4  # episodes written at once, in batches: what a kill can lose


def run(config: ConfigDict, workdir: str) -> dict[str, Any]:
    """Play the passes; return the summary of the last one."""
    collect = config.collect
    domain = build.domain(config)
    setting = build.setting(config)
    tasks = build.choose(domain.tasks(collect.split), collect.games)
    tasks = [task for task in tasks for _ in range(collect.repeats)]
    summaries = _done(workdir)
    version = _first_bank(config, domain, workdir, summaries)
    policy, tokens = _policy(config, domain)
    for number in range(len(summaries), collect.passes):
        records = _play(
            number, config, domain, setting, version, policy, tokens, tasks, workdir
        )
        entries, changes = evolve(
            version.entries, evidence(records), number + 1, config.bank.capacity
        )
        version = bank_.write(Path(workdir) / "bank", entries, version.name, number + 1)
        summary = summarise(records) | {"bank": version.name, **changes._asdict()}
        summaries.append(summary)
        _write_done(workdir, summaries)
    return summaries[-1]


def _first_bank(config, domain, workdir, summaries):
    """Return the bank of the next pass. A kill may have left HEAD one pass ahead."""
    folder = Path(workdir) / "bank"
    if summaries:
        bank_.reset_head(folder, summaries[-1]["bank"])
        return bank_.read(folder)
    bank_.reset_head(folder, "")
    entries = build.first_bank(config, domain, config.collect.student).entries
    return bank_.write(folder, entries, "", 0)


def _policy(config: ConfigDict, domain):
    """Return who plays, and the tokenizer that it needs."""
    collect = config.collect
    if not collect.student:
        return teacher(domain, collect.noise, collect.thrift, collect.think), None
    run = build.located(collect.student)
    build.same_env(config, run, "collect.student")
    if not 0 < collect.student_share <= 1:
        raise ValueError(
            f"collect.student_share must lie in (0, 1]: {collect.student_share}"
        )
    model = build.load_run(config, run)
    batch = min(collect.batch, domain.capacity)
    sampling = Sampling(temperature=collect.student_temperature)
    engine = build.engine(config, model, batch, sampling)
    student = build.model_policy(config, model, Rows(engine), model.params, 0)
    master = teacher(domain, 0.0, collect.thrift, collect.think)
    share, seed = collect.student_share, config.seed
    return policies.corrected(student, master, share, seed), model.tokens


def _play(number, config, domain, setting, version, policy, tokens, tasks, workdir):
    """Play the games of one pass that have no record yet; return all its records."""
    path = episodes_path(workdir, number)
    records = read_episodes(path) if path.exists() else []
    path.write_text("".join(json.dumps(r) + "\n" for r in records))  # whole lines only
    arrays, words = bank_.arrays(version.entries, config.bank.capacity)
    batch = min(config.collect.batch, domain.capacity)
    first = len(records)
    with metrics.bar(f"pass {number + 1}", len(tasks), first) as done:
        for at in range(first, len(tasks), batch * WAVES):
            played = loop.rollout(
                policy,
                domain,
                arrays,
                words,
                tasks[at : at + batch * WAVES],
                setting,
                batch=batch,
                first_uid=number * PASS_UIDS + at,
                tokens=tokens,
                on_episode=partial(_count, done),
                version=version.name,
            )
            with path.open("a") as file:
                file.writelines(json.dumps(r) + "\n" for r in played.records)
            records += played.records
    return records


def _count(done, record: dict) -> None:
    done(record["won"])
    if hosts.asked_to_stop():  # the waves that are written are not lost
        raise hosts.Stopped


def teacher(
    domain, noise: float = 0.0, thrift: float = 0.0, think: bool = False
) -> policies.Policy:
    """Return the domain's teacher.

    Args:
        noise: share of its turns in which it errs on purpose.
        thrift: of its plans, hints and notes, the share that it goes without.

    Raises:
        ValueError: the domain has no teacher, or one that does not do this.
    """
    if domain.teacher is None:
        raise ValueError(f"{domain.name} has no teacher")
    clean = _with_habits(domain, thrift=thrift)
    if not noise:
        return policies.teacher(clean, think=think)
    noisy = _with_habits(domain, thrift=thrift, noise=noise)
    return policies.teacher(noisy, clean, think)


def _with_habits(domain, **shares: float):
    habits = {name: share for name, share in shares.items() if share}
    for name, share in habits.items():
        if not 0 < share < 1:
            raise ValueError(f"collect.{name} must lie in [0, 1): {share}")
        if name not in signature(domain.teacher).parameters:
            raise ValueError(
                f"collect.{name}: the teacher of {domain.name} has no such habit"
            )
    return partial(domain.teacher, **habits)


def evidence(records: list[dict]) -> list[EpisodeEvidence]:
    """Return what episodes leave for consolidation; broken ones leave nothing."""
    return [
        EpisodeEvidence(
            task=r["task"],
            task_type=r["type"],
            split=r["split"],
            won=r["won"],
            notes=tuple(r["notes"]),
            uses=tuple(r["uses"]),
            policy=r["policy"],
        )
        for r in records
        if not r["error"]
    ]


def episodes_path(workdir: str, number: int) -> Path:
    """Return the file of one pass's records."""
    return Path(workdir) / f"episodes-{number}.jsonl"


def last_episodes(folders: str) -> list[dict]:
    """Return the records of a collect run's last pass, or of several, as a:b.

    Raises:
        ValueError: a folder holds no finished collect run.
    """
    records = []
    for folder in filter(None, folders.split(os.pathsep)):
        if not (Path(folder) / "collect.json").exists():
            raise ValueError(f"data.episodes: {folder} holds no finished collect run")
        records += read_episodes(episodes_path(folder, len(_done(folder)) - 1))
    return records


def read_episodes(path: str | Path) -> list[dict]:
    """Read records; a last line that a kill cut short is left out.

    Raises:
        ValueError: another line is damaged; it is named by its number.
    """
    records, lines = [], Path(path).read_text().splitlines()
    for number, line in enumerate(lines, 1):
        try:
            records.append(json.loads(line))
        except ValueError as error:
            if number < len(lines):
                raise ValueError(f"{path}, line {number}: {error}") from error
    return records


def _done(workdir: str) -> list[dict]:
    path = Path(workdir) / "collect.json"
    return json.loads(path.read_text()) if path.exists() else []


def _write_done(workdir: str, summaries: list[dict]) -> None:
    path = Path(workdir) / "collect.json"
    temporary = path.with_suffix(".new")
    temporary.write_text(json.dumps(summaries, indent=1))
    os.replace(temporary, path)


def main() -> None:
    """Run from the command line."""
    cli.main(run, "collect", ("collect",))


if __name__ == "__main__":
    main()
