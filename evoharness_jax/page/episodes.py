"""The episodes that a page shows: chosen, and replayed turn by turn.

A record holds words; B, P and E after each turn come from scanning its events again
(`rollout.record.replay`), beside the bank version that it names. Of Belief a turn
keeps what it changed: most of it stays as it was, and the reader wants the news.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from ml_collections import ConfigDict

from evoharness_jax import build
from evoharness_jax.bpe import views
from evoharness_jax.bpe.episode import Episode
from evoharness_jax.bpe.lexicon import BankText, Lexicon
from evoharness_jax.envs.domain import Domain
from evoharness_jax.experience import bank as bank_
from evoharness_jax.page import outlines as outlines_
from evoharness_jax.page.folder import Run
from evoharness_jax.page.outlines import Outline
from evoharness_jax.rollout import record as record_
from evoharness_jax.types import AGENT, BLOCKED, DONE, DROPPED, NONE, OPEN

STATUS = {OPEN: "open", BLOCKED: "blocked", DROPPED: "dropped"}


class Player(NamedTuple):
    """What replays the records of one run."""

    domain: Domain | None
    bank: Callable[[str, int], tuple]  # (version, slots) -> arrays, words
    why: str  # nothing can be replayed; "" where it can


def player(run: Run) -> Player:
    """Return what replays a run's records; no games are needed for it."""
    config = ConfigDict(run.config)
    try:
        if config.env.name == "alfworld":
            # Reading feedback takes no data and no simulator, wherever it was played.
            config.env.data, config.env.engine = ".", "native"
        domain = build.domain(config)
    except (AttributeError, KeyError, ValueError) as error:
        return Player(None, _no_bank, f"config.json names no environment: {error}")
    kept: dict[tuple[str, int], tuple] = {}

    def bank(name: str, slots: int) -> tuple:
        if (name, slots) not in kept:
            version = _version(run, config, domain, name)
            kept[name, slots] = bank_.arrays(version.entries, slots)
        return kept[name, slots]

    return Player(domain, bank, "")


def replay(
    run: Run, player: Player, record: dict[str, Any]
) -> tuple[BankText, Lexicon, Episode, Episode, Episode]:
    """Rebuild a record's states.

    Returns:
        The bank's words, the lexicon, the Episode before the first turn, at the end,
        and after every turn.

    Raises:
        ValueError: it cannot be replayed, and why.
    """
    if player.why:
        raise ValueError(player.why)
    name = record.get("bank", run.summary.get("bank"))
    if name is None:
        raise ValueError(
            "its record does not say which version of the bank it was played with, as "
            "those of earlier versions of the package do not"
        )
    arrays, words = player.bank(name, record["setting"]["entries"])
    try:
        opening = record | {"turns": []}
        _, start, _ = record_.replay(player.domain, arrays, words, opening)
        lexicon, final, every = record_.replay(player.domain, arrays, words, record)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"its record is of another format: {error!r}") from error
    return words, lexicon, start, final, every


def choose(outlines: list[Outline], most: int) -> list[Outline]:
    """Return at most `most` episodes, evenly spread, hence over the steps too."""
    return build.choose(tuple(outlines), most) if most > 0 else []


def shown(run: Run, player: Player, outline: Outline) -> dict[str, Any]:
    """Return what the page shows of an episode; see `data/report/page.js`."""
    record = outlines_.record(outline)
    page = {
        "uid": outline.uid,
        "task": outline.task,
        "type": outline.type,
        "objective": record.get("objective", ""),
        "step": outline.step,
        "won": outline.won,
        "error": outline.error,
        "stop": record["stop"],
        "tokens": outline.tokens,
        "calls": outline.calls,
        "bank": record.get("bank", run.summary.get("bank")),
        "system": record.get("system", ""),
        "opening": record["opening"],
        "turns": [_turn(player, turn) for turn in record["turns"]],
    }
    try:
        words, lexicon, start, final, every = replay(run, player, record)
    except ValueError as error:
        return page | {"why": str(error)}
    if record_.digest(final) != record["digest"]:
        page["why"] = "replayed, it ends otherwise than it was recorded"
    page["names"] = list(lexicon.names)
    states = [start, *(record_.pick(every, t) for t in range(len(record["turns"])))]
    page["start"] = {}
    pages = [page["start"], *page["turns"]]
    _belief(pages, lexicon, states)
    before: dict[str, Any] = {}
    for one, state in zip(pages, states, strict=True):
        now = {
            "P": _plan(lexicon, state.workspace.progress),
            "H": [words.texts[int(s)] for s in state.workspace.hints if s != NONE],
            "N": [lexicon.texts[int(i)] for i in _notes(state.workspace.evidence)],
        }
        one.update({k: v for k, v in now.items() if v != before.get(k, [])})
        before = now
        if one is not page["start"] and "o" not in one:
            one["o"] = views.reply(lexicon, words, state)
    return page


def _turn(player: Player, turn: dict[str, Any]) -> dict[str, Any]:
    page = {
        "p": turn.get("prompt", ""),
        "r": turn.get("response", ""),
        "a": turn.get("action", ""),
        "v": turn.get("verb", ""),
        "t": turn.get("tag", ""),
        "k": turn.get("tokens", 0),
    }
    if seen := turn.get("observation"):
        page["o"] = player.domain.show(seen["text"]) if player.domain else seen["text"]
    return page


def _belief(pages: list[dict], lexicon: Lexicon, states: list[Episode]) -> None:
    """Put into each page under "B" the rows of Belief that are new or now otherwise.

    A row is [name id, words, clock when last seen]; without words, they are as before.
    """
    before: dict[int, tuple] = {}
    for page, state in zip(pages, states, strict=True):
        belief, news = state.workspace.belief, []
        rows = _rows(belief)
        for name in np.flatnonzero(belief.known):
            mark, old = rows[name].tobytes(), before.get(int(name))
            seen = int(belief.last_seen[name])
            if old and old[:2] == (mark, seen):
                continue
            words = old[2] if old and old[0] == mark else None
            if words is None:
                words = _where(lexicon, belief, int(name))
            same = old is not None and old[2] == words
            news.append([int(name), None if same else words, seen])
            before[int(name)] = mark, seen, words
        if news:
            page["B"] = news


def _rows(belief) -> np.ndarray:
    """Return what a name's words depend on, int[N, columns]."""
    there = belief.known & (belief.place >= 0)
    there[AGENT] = False
    held = np.bincount(belief.place[there], minlength=len(belief.known))
    columns = (belief.role, belief.place, belief.relation, belief.explored, held)
    return np.concatenate([np.stack(columns, 1), belief.attr], 1, dtype=np.int32)


def _where(lexicon: Lexicon, belief, name: int) -> str:
    if name == AGENT:
        here = int(belief.place[AGENT])
        return f"at {lexicon.names[here]}" if here >= 0 else "place unknown"
    words = views.node(lexicon, belief, name)
    return words.removeprefix(f"{lexicon.names[name]}: ")


def _plan(lexicon: Lexicon, progress) -> list[list[str]]:
    """Return [status, words] of each subgoal; what is done is claimed or proven."""
    rows = []
    for row in range(int(progress.size)):
        status = int(progress.status[row])
        proven = "claimed" if progress.evidence[row] == NONE else "proven"
        words = lexicon.texts[int(progress.text[row])]
        rows.append([proven if status == DONE else STATUS[status], words])
    return rows


def _notes(evidence) -> np.ndarray:
    return evidence.notes[: int(evidence.num_notes)]


def _no_bank(name: str, slots: int) -> tuple:
    raise ValueError(f"bank version {name} is not looked for")


def _version(run: Run, config: ConfigDict, domain: Domain, name: str):
    """Find a version of the bank: in the run, or where the run took it from."""
    if not name:
        return build.first_bank(config, domain)
    for place in _places(run, config):
        if (place / f"{name}.jsonl").exists():
            return bank_.read(place, name)
    raise ValueError(f"bank version {name} of {run.folder} is no longer there")


def _places(run: Run, config: ConfigDict) -> list[Path]:
    roots = [run.folder, run.folder / "collect"]
    named = [config.get("checkpoint"), config.get("bank", {}).get("path")]
    named.append(config.get("model", {}).get("init"))
    named.append(config.get("collect", {}).get("student"))
    named = [name for name in named if isinstance(name, str) and name]
    roots += [Path(build.located(name)) for name in named]
    return [place for root in roots for place in (root / "bank", root)]
