"""THE episode loop: the one place where policy, workspace and environment meet.

One tick, for the live episodes of a batch:

    words out (views) -> ids -> policy -> parse -> environment, for those who acted
    on it -> read -> jit(vmap(step))

A policy may leave some unanswered for a tick or more: the others go on.

Collection, training and evaluation all run this; only the policy differs.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple
from zlib import crc32

import jax
import numpy as np

from evoharness_jax.bpe import episode as episode_
from evoharness_jax.bpe import lexicon as lexicon_
from evoharness_jax.bpe.episode import Episode, Opening
from evoharness_jax.bpe.experience import Bank
from evoharness_jax.bpe.lexicon import BankText, Lexicon
from evoharness_jax.bpe.workspace import Rules, select
from evoharness_jax.envs import actions
from evoharness_jax.envs.actions import Action
from evoharness_jax.envs.domain import Domain, Observation, Sight, Task
from evoharness_jax.models.tokens import Tokens
from evoharness_jax.rollout import prompt as prompt_
from evoharness_jax.rollout import record as record_
from evoharness_jax.rollout import stream as stream_
from evoharness_jax.rollout.policies import Policy, Request, Response
from evoharness_jax.rollout.prompt import Style
from evoharness_jax.rollout.record import pick, stack
from evoharness_jax.rollout.stream import Row, Stream
from evoharness_jax.types import ENV, NONE, VERB_NAMES, Event, Turns

CONTEXT_FULL = "context full"


class Setting(NamedTuple):
    """What stays the same over a rollout beside policy, domain and bank."""

    rules: Rules = Rules()
    style: Style = Style()
    context: int = 0  # ids that a prompt and its response may have; 0: no limit
    response: int = 0  # ids of it kept free for the response


class Rollout(NamedTuple):
    """What B episodes leave."""

    turns: Turns  # training rows; none without a tokenizer
    episodes: Episode  # numpy leaves [B, ...]
    leading: np.ndarray  # int32[B, T] id of each action's first word, NONE: none
    records: list[dict[str, Any]]  # [B] one JSON object an episode
    seconds: dict[str, float]  # wall time by phase: env, text, policy, bpe


@dataclass
class _Live:
    """One episode under way."""

    row: int
    uid: int
    task: Task
    state: Any
    seen: Observation  # the last feedback to an accepted action
    lexicon: Lexicon
    record: dict[str, Any]
    head: list[int] = field(default_factory=list)  # ids of system and opening
    stream: Stream = field(default_factory=Stream)
    rows: list[Row] = field(default_factory=list)
    asked: bool = False  # the policy has its prompt and has not answered yet
    final: Episode | None = None  # numpy leaves, when it is over


class _Game(NamedTuple):
    """The arguments of `rollout`, for the functions below it."""

    policy: Policy
    domain: Domain
    bank: Bank
    words: BankText
    setting: Setting
    tokens: Tokens | None
    batch: int
    map: Callable  # over environment calls: in this thread, or in several
    seconds: dict[str, float]
    on_episode: Callable[[dict], None]
    version: str


@partial(jax.jit, static_argnums=0)
def start_batch(rules: Rules, bank: Bank, events: Event, openings: Opening) -> Episode:
    """`episode.start` over a leading batch axis, jitted."""
    start = partial(episode_.start, rules)
    return jax.vmap(start, (None, 0, 0))(bank, events, openings)


@partial(jax.jit, static_argnums=0)
def step_batch(rules: Rules, bank: Bank, episodes: Episode, events: Event) -> Episode:
    """`episode.step` over a leading batch axis, jitted."""
    return jax.vmap(partial(episode_.step, rules), (None, 0, 0))(bank, episodes, events)


def rollout(
    policy: Policy,
    domain: Domain,
    bank: Bank,
    words: BankText,
    tasks: list[Task],
    setting: Setting,
    *,
    batch: int,
    first_uid: int = 0,
    tokens: Tokens | None = None,
    on_episode: Callable[[dict], None] = lambda record: None,
    version: str = "",
) -> Rollout:
    """Play each task once; a group is the same task given several times.

    A row whose episode is over begins the next task, so nobody waits for the slowest.
    What comes out depends on neither the batch nor the rows.

    Args:
        batch: episodes under way at once. It fixes all shapes: rows for which no task
            is left do nothing.
        first_uid: uid of the first task, the others count on. Uids name the random
            streams, so a run must not use one twice.
        tokens: without it prompts are not encoded and `turns` is empty.
        on_episode: called with each record when its episode is over.
        version: name of the bank's version, for the records; "": it has none.

    Raises:
        ValueError: no tasks, a batch beyond the domain's capacity, an unknown style.
    """
    setting.style.check()
    if not tasks:
        raise ValueError("a rollout needs at least one task")
    if not 1 <= batch <= domain.capacity:
        raise ValueError(
            f"batch must lie between 1 and the {domain.capacity} episodes that "
            f"{domain.name} can keep alive: {batch=}"
        )
    seconds = {}
    with ThreadPoolExecutor(domain.workers) as threads:
        over = map if domain.workers == 1 else threads.map
        game = _Game(
            policy, domain, bank, words, setting, tokens, batch, over, seconds,
            on_episode, version,
        )  # fmt: skip
        with jax.default_device(jax.local_devices(backend="cpu")[0]):
            live = _play(game, tasks, first_uid)
    return Rollout(
        turns=stream_.turns([one.rows for one in live], policy.version),
        episodes=stack([one.final for one in live]),
        leading=_leading(live, setting.rules.capacity),
        records=[one.record for one in live],
        seconds=seconds,
    )


def _play(game: _Game, tasks: list[Task], first_uid: int) -> list[_Live]:
    """Play all tasks, as many at once as there are rows; return their episodes."""
    begun, waiting = [], []
    episodes = host = None
    try:
        while waiting or len(begun) < len(tasks):
            free = sorted(set(range(game.batch)) - {one.row for one in waiting})
            if free and len(begun) < len(tasks):
                first = len(begun)
                new = list(zip(free, tasks[first : first + len(free)]))
                opened, started = _begin(game, new, first_uid + first)
                begun += opened
                waiting += opened
                episodes = _replace(episodes, started, [one.row for one in opened])
                host = jax.device_get(episodes)
                # One that would not start is over.
                waiting = _finish(game, waiting, host)
            if waiting:
                events = _tick(game, waiting, host)
                with _timed(game, "bpe"):
                    rules = game.setting.rules
                    episodes = step_batch(rules, game.bank, episodes, events)
                    host = jax.device_get(episodes)
                waiting = _finish(game, waiting, host)
        return begun
    finally:
        for one in waiting:
            if one.final is None:
                game.domain.close(one.state)


def _replace(episodes: Episode | None, started: Episode, rows: list[int]) -> Episode:
    """Put the episodes that begin into their rows."""
    if episodes is None:
        return started
    new = np.isin(np.arange(len(started.done)), rows)
    return _where(new, started, episodes)


@jax.jit
def _where(new, started: Episode, episodes: Episode) -> Episode:
    return jax.vmap(select)(new, started, episodes)


def _begin(game: _Game, new: list[tuple[int, Task]], first_uid: int):
    """Open an episode in each of the given rows; return host side and arrays [B]."""
    with ExitStack() as undo:
        begun = _open(game, new, first_uid, undo)
        undo.pop_all()  # from here on `_play` closes them
    return begun


def _open(game: _Game, new: list[tuple[int, Task]], first_uid: int, undo: ExitStack):
    opened = []
    with _timed(game, "env"):
        for state, seen in game.map(game.domain.reset, [task for _, task in new]):
            undo.callback(game.domain.close, state)
            opened.append((state, seen))
    live = []
    # Rows that do not begin get an episode that is over, which is not looked at.
    events = [record_.cut(len(game.words.texts))] * game.batch
    openings = [Opening(np.bool_(False), np.int32(NONE), np.int32(NONE))] * game.batch
    for uid, ((row, task), (state, seen)) in enumerate(zip(new, opened), first_uid):
        lexicon, events[row], openings[row] = record_.open_events(
            game.domain,
            game.words,
            game.setting.style.mode == "always_on",
            game.domain.lexicon(task, seen),
            seen,
        )
        record = _open_record(game, uid, task, seen)
        one = _Live(row, uid, task, state, seen, lexicon, record)
        if game.tokens:
            one.head = prompt_.head_ids(
                game.tokens, record["system"], record["opening"]
            )
        live.append(one)
    rules = game.setting.rules
    return live, start_batch(rules, game.bank, stack(events), stack(openings))


def _open_record(game: _Game, uid: int, task: Task, seen: Observation) -> dict:
    rules, style = game.setting.rules, game.setting.style
    return {
        "uid": uid,
        "task": task.id,
        "split": task.split,
        "type": task.type,
        "policy": game.policy.name,
        "bank": game.version,
        "objective": seen.objective,
        "error": str(seen.info.get("error", "")),
        "setting": {
            "rules": rules._asdict(),
            "style": style._asdict(),
            "entries": len(game.words.texts),
        },
        "system": game.domain.prompt(style.mode, modules_on(rules)),
        "opening": prompt_.opening(seen.objective, game.domain.show(seen.text)),
        "start": record_.observed(seen),
        "turns": [],
    }


def _finish(game: _Game, waiting: list[_Live], host: Episode) -> list[_Live]:
    """Close what is over; return the episodes that go on."""
    over = [one for one in waiting if host.done[one.row]]
    for one in over:
        one.final = pick(host, one.row)
        game.domain.close(one.state)
        if game.tokens and game.setting.style.regime == "append" and one.stream.ids:
            one.rows.append(stream_.row(one.stream, len(one.record["turns"]) - 1))
        one.record |= record_.outcome(one.final, one.lexicon, one.record["turns"])
        game.on_episode(one.record)
    return [one for one in waiting if one.final is None]


def _tick(game: _Game, waiting: list[_Live], host: Episode) -> Event:
    """Ask for every episode that can be asked, take a turn in those that are answered.

    Returns:
        Events [B], null where an episode still waits for its answer.
    """
    with _timed(game, "text"):
        new = [one for one in waiting if not one.asked]
        asked = [(one, _ask(game, one, pick(host, one.row))) for one in new]
        full = [one for one, request in asked if request is None]
        for one in new:
            one.asked = one not in full
    with _timed(game, "policy"):
        answers = _answers(game.policy, [r for _, r in asked if r is not None])
    live = {one.row: one for one in waiting}
    with _timed(game, "text"):
        moves = [
            (live[request.row], _hear(game, live[request.row], request.turn, response))
            for request, response in answers
        ]
    acting = [
        (one.state, move.text) for one, move in moves if move.verb == ENV and move.text
    ]
    with _timed(game, "env"):
        results = iter(list(game.map(lambda pair: game.domain.step(*pair), acting)))
    with _timed(game, "text"):
        events = [lexicon_.null_event(len(game.words.texts))] * game.batch
        for one in full:
            one.record["error"] = CONTEXT_FULL
            events[one.row] = record_.cut(len(game.words.texts))
        for one, move in moves:
            observation = None
            if move.verb == ENV and move.text:
                one.state, observation = next(results)
            events[one.row] = _absorb(game, one, move, observation)
            one.asked = False
        return stack(events)


def _answers(policy: Policy, new: list[Request]) -> list[tuple[Request, Response]]:
    if policy.take is None:
        return list(zip(new, policy.act(new)))
    policy.put(new)
    return policy.take()


def _ask(game: _Game, one: _Live, episode: Episode) -> Request | None:
    """Word the next prompt; None where it no longer fits the context."""
    style = game.setting.style
    turn = int(episode.turn)
    sight = Sight(
        objective=one.seen.objective,
        observation=game.domain.show(one.seen.text),
        commands=one.seen.commands,
        lexicon=one.lexicon,
        episode=episode,
        bank_text=game.words.texts,
        tools=tools_on(game.setting),
        seed=crc32(f"{one.uid}/{turn}".encode()),
    )
    tail = prompt_.tail(
        style,
        one.lexicon,
        game.words,
        episode,
        sight.observation,
        game.domain.offer(sight.commands, style.commands),
    )
    one.record["turns"].append({"prompt": tail})
    if game.tokens and not _encode(game, one, turn, tail):
        return None
    ids, head = list(one.stream.ids), len(one.head)
    return Request(one.row, one.uid, turn, ids, head, sight)


def _encode(game: _Game, one: _Live, turn: int, tail: str) -> bool:
    """Put a prompt into ids; say whether it and a response fit the context."""
    style, stream = game.setting.style, one.stream
    if style.regime == "append" and turn:
        response = stream.ids[stream.last :]
        new = prompt_.next_ids(game.tokens, style, response, tail)
    else:
        stream = Stream()
        stream_.read(stream, one.head)
        new = prompt_.tail_ids(game.tokens, style, tail)
    limit = game.setting.context
    if limit and len(stream.ids) + len(new) + game.setting.response > limit:
        return False  # nothing is read, and nothing charged
    stream_.read(stream, new)
    one.stream = stream
    one.record["turns"][-1]["tokens"] = len(new) + (0 if turn else len(one.head))
    return True


def _hear(game: _Game, one: _Live, turn: int, response: Response) -> Action:
    """Keep a response, and parse it."""
    kept = one.record["turns"][-1]
    kept["response"] = response.text
    if response.label is not None and response.label != response.text:
        kept["label"] = response.label
    if game.tokens:
        ids = response.ids
        if ids is None:
            ids = prompt_.response_ids(game.tokens, response.text)
        stream_.write(one.stream, ids, response.logp, response.raw_logp)
        kept["tokens"] += len(ids)
        if game.setting.style.regime == "per_turn":
            one.rows.append(stream_.row(one.stream, turn))
    move = actions.parse(response.text, game.setting.style.mode == "inline")
    kept |= {"action": move.text, "verb": VERB_NAMES[move.verb]}
    return move


def _absorb(game: _Game, one: _Live, move: Action, observation) -> Event:
    turn = one.record["turns"][-1]
    if observation is not None:
        turn["observation"] = record_.observed(observation)
        one.record["error"] = str(observation.info.get("error", ""))
        if observation.valid and not one.record["error"]:
            one.seen = observation
    one.lexicon, event = record_.read(
        game.domain, game.words, one.lexicon, move, observation, turn.get("tokens", 0)
    )
    return event


def tools_on(setting: Setting) -> frozenset[str]:
    """Return the meta-verbs that an episode offers."""
    if setting.style.mode != "inline":
        return frozenset()
    verbs = {
        "belief": ("track",),
        "progress": ("commit",),
        "experience": ("recall", "note"),
    }
    return frozenset(v for m in modules_on(setting.rules) for v in verbs[m])


def modules_on(rules: Rules) -> frozenset[str]:
    """Return the names of the modules that are switched on."""
    names = ("belief", "progress", "experience")
    return frozenset(name for name in names if getattr(rules, name))


def _leading(live: list[_Live], capacity: int) -> np.ndarray:
    """Number the first words of actions over the whole rollout."""
    leading, ids = np.full((len(live), capacity), NONE, np.int32), {}
    for b, one in enumerate(live):
        for t, turn in enumerate(one.record["turns"]):
            words = record_.normal_action(turn.get("action", "")).split()
            if words:
                first = words[0].partition("[")[0]
                leading[b, t] = ids.setdefault(first, len(ids))
    return leading


@contextmanager
def _timed(game: _Game, phase: str):
    begun = perf_counter()
    yield
    spent = perf_counter() - begun
    game.seconds[phase] = game.seconds.get(phase, 0.0) + spent
