"""The lexicon: words <-> ids for one episode, and the reader of meta-actions.

Host code, no JAX: everything here makes numpy arrays. A Lexicon is a value; `name`
and `text` return a new one when they learn a word.
"""

import math
import re
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from evoharness_jax.types import (
    BLOCKED,
    COMMIT,
    DONE,
    DROPPED,
    ENV,
    META_VERBS,
    NONE,
    NOTE,
    NULL,
    OPEN,
    QUERY_ALL,
    QUERY_NAMES,
    QUERY_UNEXPLORED,
    RECALL,
    SAME,
    TRACK,
    A,
    C,
    Effects,
    Event,
    N,
)

WORD = re.compile(r"(?<!\w)-\d+|[a-z0-9]+")  # "-3" is a number, not a 3
# Words that carry no meaning in a subgoal or a query.
STOP_WORDS = frozenset(
    "a an the some of to in on at is are i my me and or do does it for with where "
    "what which how find look can should be this that from".split()
)
ARTICLES = frozenset("a an the some".split())
# How a commit phrase asks for a status other than open.
STATUS_WORDS = {
    "done": DONE,
    "blocked": BLOCKED,
    "drop": DROPPED,
    "dropped": DROPPED,
    "reopen": OPEN,
    "open": OPEN,
}


@dataclass(frozen=True)
class Lexicon:
    """The words of one episode. Id 0 of `names` is the agent."""

    names: tuple[str, ...] = ("you",)  # things and places; at most N
    texts: tuple[str, ...] = ()  # actions, subgoals, notes; no limit
    attributes: tuple[tuple[str, str], ...] = ()  # (word if true, word if false); <= A
    task_type: str = ""
    objective: str = ""  # what a recall without words asks about
    name_ids: dict[str, int] = field(default_factory=lambda: {"you": 0}, repr=False)
    text_ids: dict[str, int] = field(default_factory=dict, repr=False)


def empty(
    attributes: tuple[tuple[str, str], ...] = (),
    task_type: str = "",
    objective: str = "",
) -> Lexicon:
    """Return a lexicon that knows only the agent, and its attribute columns."""
    if len(attributes) > A:
        raise ValueError(f"at most {A} attribute columns: {attributes=}")
    return Lexicon(attributes=attributes, task_type=task_type, objective=objective)


def name(lexicon: Lexicon, word: str) -> tuple[Lexicon, int]:
    """Return the id of a thing or place, learning it if there is room, else NONE."""
    found = lexicon.name_ids.get(word)
    if found is not None:
        return lexicon, found
    index = len(lexicon.names)
    if index >= N:
        return lexicon, NONE
    ids = {**lexicon.name_ids, word: index}
    return replace(lexicon, names=(*lexicon.names, word), name_ids=ids), index


def text(lexicon: Lexicon, words: str) -> tuple[Lexicon, int]:
    """Return the id of a text, learning it if it is new."""
    found = lexicon.text_ids.get(words)
    if found is not None:
        return lexicon, found
    index = len(lexicon.texts)
    ids = {**lexicon.text_ids, words: index}
    return replace(lexicon, texts=(*lexicon.texts, words), text_ids=ids), index


def normalise(words: str) -> str:
    """Return what two ways of writing one subgoal have in common."""
    return " ".join(w for w in WORD.findall(words.lower()) if w not in ARTICLES)


def proved(lexicon: Lexicon, facts: list[str]) -> np.ndarray:
    """Return int32[] keys of all known phrases that equal a fact.

    Args:
        facts: canonical phrases that feedback makes true, such as "take apple".
    """
    keys = [lexicon.text_ids.get(normalise(fact), NONE) for fact in facts]
    return np.array([k for k in dict.fromkeys(keys) if k != NONE], np.int32)


def no_effects() -> Effects:
    """Return the effects of feedback that says nothing."""
    return Effects(
        seen=np.zeros(N, bool),
        role=np.zeros(N, np.int8),
        place=np.full(N, SAME, np.int16),
        relation=np.zeros(N, np.int8),
        attr=np.full((N, A), -1, np.int8),
        listed=np.zeros(N, bool),
    )


def null_event(entries: int) -> Event:
    """Return the event that changes nothing, beside a bank of `entries` slots."""
    return Event(
        verb=np.int8(NULL),
        well_formed=np.bool_(False),
        action=np.int32(NONE),
        text=_pad([]),
        key=_pad([]),
        status=np.zeros(C, np.int8),
        query=np.int8(QUERY_NAMES),
        match=np.zeros(N, bool),
        overlap=np.zeros(entries, np.float32),
        effects=no_effects(),
        proved=_pad([]),
        valid=np.bool_(False),
        won=np.bool_(False),
        ended=np.bool_(False),
        score=np.float32(0.0),
        tokens=np.int32(0),
        dropped=np.int32(0),
    )


def env_event(effects: Effects, proved_keys, observation, dropped: int = 0) -> Event:
    """Return the event of one environment action.

    Args:
        proved_keys: from `proved`; what goes beyond C of them is dropped.
        observation: anything with valid, won, done and score.
        dropped: names that found no room in the lexicon.

    `overlap` is left empty: the loop sizes it to the bank in use.
    """
    return null_event(0).replace(
        verb=np.int8(ENV),
        well_formed=np.bool_(True),
        effects=effects,
        proved=_pad(list(proved_keys[:C])),
        valid=np.bool_(observation.valid),
        won=np.bool_(observation.won),
        ended=np.bool_(observation.done),
        score=np.float32(observation.score),
        dropped=np.int32(dropped + max(len(proved_keys) - C, 0)),
    )


class BankText(NamedTuple):
    """The words of a bank, slot by slot, indexed for BM25."""

    texts: tuple[str, ...]  # [X] "" for an empty slot
    task_types: tuple[str, ...]  # [X] "" for an entry that fits every type
    words: tuple[Counter, ...]  # [X] word counts
    rarity: dict[str, float]  # inverse document frequency
    mean_length: float


def index_bank(texts: tuple[str, ...], task_types: tuple[str, ...]) -> BankText:
    """Index entry texts for retrieval."""
    words = tuple(Counter(_content_words(t)) for t in texts)
    filled = sum(1 for t in texts if t)
    counts = Counter(word for entry in words for word in entry)
    rarity = {
        w: math.log(1 + (filled - n + 0.5) / (n + 0.5)) for w, n in counts.items()
    }
    total = sum(sum(entry.values()) for entry in words)
    return BankText(texts, task_types, words, rarity, total / max(filled, 1))


def overlap(bank: BankText, query: str, task_type: str) -> np.ndarray:
    """Return f32[X]: BM25 of each entry to a query.

    k1 = 1.2, b = 0.75 (Robertson and Zaragoza, 2009). An entry for this task type
    counts a quarter more, one for another type a half; an entry that shares no word
    with the query is not a match.
    """
    wanted = _content_words(query)
    scores = np.zeros(len(bank.texts), np.float32)
    for slot, counts in enumerate(bank.words):
        norm = 1.2 * (0.25 + 0.75 * sum(counts.values()) / max(bank.mean_length, 1e-6))
        fit = sum(
            bank.rarity[w] * counts[w] * 2.2 / (counts[w] + norm)
            for w in wanted
            if w in counts
        )
        kind = bank.task_types[slot]
        if kind:
            fit *= 1.25 if kind == task_type else 0.5
        scores[slot] = fit
    return scores


def read_meta(
    lexicon: Lexicon, bank: BankText, verb: int, argument: str
) -> tuple[Lexicon, Event]:
    """Read a meta-action's words into an event.

    track:  things, places, `unexplored`, or nothing for an overview
    commit: one or more subgoals split by `|`; `done: x`, `blocked: x`, `drop: x` and
            `reopen: x` set the status of one
    recall: any words; nothing asks about the objective
    note:   one sentence
    """
    event = null_event(len(bank.texts)).replace(
        verb=np.int8(verb), well_formed=np.bool_(True), valid=np.bool_(True)
    )
    argument = " ".join(argument.split())
    if verb == TRACK:
        query, match = _read_track(lexicon, argument)
        return lexicon, event.replace(query=query, match=match)
    if verb == COMMIT:
        return _read_commit(lexicon, event, argument)
    if verb == RECALL:
        fit = overlap(bank, argument or lexicon.objective, lexicon.task_type)
        return lexicon, event.replace(overlap=fit)
    if verb == NOTE:
        if not argument:
            return lexicon, event
        lexicon, index = text(lexicon, argument)
        return lexicon, event.replace(text=_pad([index]), key=_pad([index]))
    raise ValueError(f"not a meta-action: {verb=}, expected one of {META_VERBS}")


def _read_track(lexicon: Lexicon, argument: str) -> tuple[np.int8, np.ndarray]:
    match = np.zeros(N, bool)
    wanted = normalise(argument)
    if not wanted:
        return np.int8(QUERY_ALL), match
    if wanted in ("unexplored", "what is unexplored", "unexplored places"):
        return np.int8(QUERY_UNEXPLORED), match
    groups = [set(normalise(part).split()) for part in re.split(r",|\|", argument)]
    for index, known in enumerate(lexicon.names):
        words = set(known.split())
        match[index] = any(group and group <= words for group in groups)
    return np.int8(QUERY_NAMES), match


def _read_commit(lexicon: Lexicon, event: Event, argument: str):
    phrases = [p.strip() for p in argument.split("|")]
    phrases = [p for p in phrases if normalise(p)]
    texts, keys, status = [], [], []
    for phrase in phrases[:C]:
        head, colon, rest = phrase.partition(":")
        asked = STATUS_WORDS.get(head.strip().lower()) if colon else None
        wording = rest.strip() if asked is not None else phrase
        normal = normalise(wording)
        if not normal:
            continue
        lexicon, index = text(lexicon, wording)
        lexicon, key = text(lexicon, normal)
        texts.append(index)
        keys.append(key)
        status.append(OPEN if asked is None else asked)
    return lexicon, event.replace(
        text=_pad(texts),
        key=_pad(keys),
        status=np.array(status + [0] * (C - len(status)), np.int8),
        dropped=np.int32(max(len(phrases) - C, 0)),
    )


def _content_words(words: str) -> list[str]:
    found = WORD.findall(words.lower())
    return [w for w in found if w not in STOP_WORDS and not w.lstrip("-").isdigit()]


def _pad(ids: list[int]) -> np.ndarray:
    return np.array(ids + [NONE] * (C - len(ids)), np.int32)
