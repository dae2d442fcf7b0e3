"""Records: one JSON object an episode, from which its arrays can be rebuilt.

    words of every turn -> events -> lax.scan(step, start, events) == what was played

The loop turns words into events with the same functions that `replay` uses.
"""

from functools import partial
from typing import Any
from zlib import crc32

import jax
import numpy as np

from evoharness_jax.bpe import episode as episode_
from evoharness_jax.bpe import lexicon as lexicon_
from evoharness_jax.bpe import views
from evoharness_jax.bpe.episode import Episode, Opening
from evoharness_jax.bpe.experience import Bank
from evoharness_jax.bpe.lexicon import BankText, Lexicon
from evoharness_jax.bpe.workspace import TAGS, Rules
from evoharness_jax.envs import actions
from evoharness_jax.envs.actions import Action
from evoharness_jax.envs.domain import Domain, Observation, Task
from evoharness_jax.types import ENV, META_VERBS, NONE, NULL, Event

KEPT = ("text", "objective", "done", "won", "score", "valid", "info")


def open_events(
    domain: Domain, words: BankText, always_on: bool, lexicon: Lexicon, seen
) -> tuple[Lexicon, Event, Opening]:
    """Read the first observation into what `episode.start` wants."""
    lexicon, event = domain.read(lexicon, "", seen)
    if seen.info.get("error"):  # the game would not start
        event = event.replace(ended=np.bool_(True))
    lexicon, text = lexicon_.text(lexicon, seen.objective)
    lexicon, key = lexicon_.text(lexicon, lexicon_.normalise(seen.objective))
    fit = np.zeros(len(words.texts), np.float32)
    if always_on:
        fit = lexicon_.overlap(words, seen.objective, lexicon.task_type)
    opening = Opening(np.bool_(always_on), np.int32(text), np.int32(key))
    return lexicon, event.replace(overlap=fit), opening


def read(
    domain: Domain,
    words: BankText,
    lexicon: Lexicon,
    move: Action,
    observation: Observation | None,
    tokens: int,
) -> tuple[Lexicon, Event]:
    """Read one parsed response, and the feedback to it, into an event.

    Args:
        observation: None for a meta-action, and where nothing reached the
            environment (no action block).
        tokens: what the turn cost.
    """
    entries = len(words.texts)
    if move.verb != ENV:
        lexicon, event = lexicon_.read_meta(lexicon, words, move.verb, move.argument)
    elif observation is None:
        event = lexicon_.null_event(entries).replace(verb=np.int8(ENV))
    elif observation.info.get("error"):
        event = cut(entries)
    else:
        lexicon, event = domain.read(lexicon, move.text, observation)
        event = event.replace(overlap=np.zeros(entries, np.float32))
    action = NONE
    if move.text:
        lexicon, action = lexicon_.text(lexicon, normal_action(move.text))
    return lexicon, event.replace(
        well_formed=np.bool_(move.well_formed),
        action=np.int32(action),
        tokens=np.int32(tokens),
    )


def normal_action(action: str) -> str:
    """Return an action as history keeps it: lower case, single spaces."""
    return " ".join(action.lower().split())


def cut(entries: int) -> Event:
    """Return the event that ends an episode from outside.

    Its context is full, or its environment broke: a turn, but nobody's mistake.
    """
    yes = np.bool_(True)
    return lexicon_.null_event(entries).replace(
        verb=np.int8(ENV), well_formed=yes, valid=yes, ended=yes
    )


def observed(observation: Observation) -> dict[str, Any]:
    """Return what a record keeps of an observation: all but its commands."""
    return {name: getattr(observation, name) for name in KEPT}


def outcome(episode: Episode, lexicon: Lexicon, turns: list[dict]) -> dict[str, Any]:
    """Return how an episode went, and mark each turn with what became of it."""
    workspace = episode.workspace
    for t, turn in enumerate(turns[: int(episode.turn)]):
        turn["tag"] = TAGS[int(episode.tags[t])]
    return {
        "won": bool(episode.won),
        "stop": episode_.STOPS[int(episode.stop)],
        "num_turns": int(episode.turn),
        "env_steps": int(episode.env_steps),
        "tokens": int(episode.tokens),
        "calls": dict(zip(META_VERBS, workspace.executed.tolist())),
        "attempted": dict(zip(META_VERBS, workspace.attempted.tolist())),
        "invalid": int(((episode.verbs != NULL) & ~episode.valid).sum()),
        "dropped": int(workspace.dropped),
        "notes": [lexicon.texts[i] for i in workspace.evidence.notes if i != NONE],
        "uses": np.flatnonzero(workspace.evidence.uses).tolist(),
        "workspace": views.show(lexicon, workspace),
        "digest": digest(episode),
    }


def replay(
    domain: Domain, bank: Bank, words: BankText, record: dict[str, Any]
) -> tuple[Lexicon, Episode, Episode]:
    """Rebuild a recorded episode by `lax.scan` over its events.

    Args:
        bank, words: the version that the episode was played with.

    Returns:
        The lexicon at the end, the final Episode, and the Episode after every turn
        with a leading axis [num_turns]; numpy leaves, as `views` wants them.

    Raises:
        ValueError: the record was played beside a bank of another size.
    """
    setting = record["setting"]
    rules = Rules(**setting["rules"])
    entries = len(words.texts)
    if setting["entries"] != entries:
        raise ValueError(
            f"the record was played beside a bank of {setting['entries']} slots, "
            f"not of {entries}"
        )
    mode = setting["style"]["mode"]
    seen = _observation(record["start"])
    task = Task(record["task"], record["type"], record["split"], None)
    lexicon = domain.lexicon(task, seen)
    lexicon, event, opening = open_events(
        domain, words, mode == "always_on", lexicon, seen
    )
    start = _start(rules, bank, event, opening)
    events = []
    for turn in record["turns"]:
        if "response" not in turn:
            events.append(cut(entries))
            continue
        move = actions.parse(turn["response"], mode == "inline")
        feedback = turn.get("observation")
        observation = _observation(feedback) if feedback else None
        lexicon, event = read(
            domain, words, lexicon, move, observation, turn.get("tokens", 0)
        )
        events.append(event)
    # Null events fill up to the longest episode: one compilation serves them all.
    idle = [lexicon_.null_event(entries)] * (rules.capacity - len(events))
    scanned = _scan(rules, bank, start, stack(events + idle))
    final, every = jax.device_get(scanned)
    return lexicon, final, jax.tree.map(lambda x: x[: len(events)], every)


_start = jax.jit(episode_.start, static_argnums=0)


@partial(jax.jit, static_argnums=0)
def _scan(rules: Rules, bank: Bank, start: Episode, events: Event):
    def turn_by_turn(episode, event):
        episode = episode_.step(rules, bank, episode, event)
        return episode, episode

    return jax.lax.scan(turn_by_turn, start, events)


def digest(tree: Any) -> str:
    """Return a fingerprint of every bit of a pytree's leaves."""
    leaves = (np.asarray(x).tobytes() for x in jax.tree.leaves(tree))
    return f"{crc32(b''.join(leaves)):08x}"


def stack(trees: list[Any]) -> Any:
    """Return pytrees of equal shape as one with a leading axis."""
    return jax.tree.map(lambda *leaves: np.stack(leaves), *trees)


def pick(tree: Any, index: int) -> Any:
    """Return one row of a batched pytree."""
    return jax.tree.map(lambda x: x[index], tree)


def _observation(kept: dict[str, Any]) -> Observation:
    return Observation(commands=(), **kept)
