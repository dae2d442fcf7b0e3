"""Random episodes: the arrays against the oracle, replay, batches, compilations."""

from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import oracle
from evoharness_jax.bpe import episode as episode_
from evoharness_jax.bpe import lexicon as lexicon_
from evoharness_jax.bpe.episode import Opening
from evoharness_jax.bpe.experience import Bank
from evoharness_jax.bpe.workspace import Rules
from evoharness_jax.envs import counter
from evoharness_jax.types import AGENT, ENV, META_VERBS, NONE, PLACE, SAME, THING

PLACES = [f"{kind} {n}" for kind in ("shelf", "drawer") for n in (1, 2, 3)]
THINGS = [f"{kind} {n}" for kind in ("egg", "mug", "pen") for n in (1, 2, 3, 4)]
GOALS = ["find the egg", *(f"{do} {what}" for do in "wash heat take".split()
                          for what in "egg mug pen".split())]  # fmt: skip
FACTS = [goal.replace("the ", "") for goal in GOALS]
SCORES = [0.0, 0.25, 1.0]
# Uses and wins that make every rank exact in float32, whoever computes it.
ENTRIES = [oracle.Entry(*e) for e in [(1, 0, 0), (1, 2, 0), (1, 2, 2), (0, 0, 0),
                                      (1, 6, 0), (1, 0, 0)]]  # fmt: skip
BANK = Bank(
    alive=np.array([e.alive for e in ENTRIES], bool),
    section=np.ones(len(ENTRIES), np.int8),
    uses=np.array([e.uses for e in ENTRIES], np.int32),
    wins=np.array([e.wins for e in ENTRIES], np.int32),
)
WORDS = lexicon_.index_bank(("",) * len(ENTRIES), ("",) * len(ENTRIES))
NULL_EVENT = lexicon_.null_event(len(ENTRIES))
EVENTS = 16  # events of one scan, null ones at its end
RULES = [
    Rules(max_turns=12),
    Rules(max_turns=5, charge=False, max_meta=4, top_k=2),
    Rules(max_turns=12, max_tokens=40, progress=False, max_meta=6),
]

start = jax.jit(episode_.start, static_argnums=0)
step = jax.jit(episode_.step, static_argnums=0)


@partial(jax.jit, static_argnums=0)
def replay(rules, episode, events):
    def turn(episode, event):
        episode = episode_.step(rules, BANK, episode, event)
        return episode, episode

    return jax.lax.scan(turn, episode, events)


@st.composite
def feedback(draw):
    names = draw(st.lists(st.sampled_from(PLACES + THINGS), max_size=9, unique=True))
    seen = {n: "place" if n in PLACES else "thing" for n in names}
    here = [n for n in names if n in PLACES]
    placed = {}
    for name in [n for n in names if n in THINGS]:
        where = draw(st.sampled_from(["same", None, "you", *here]))
        if where != "same":
            seen |= {"you": ""} if where == "you" else {}
            how = "held" if where == "you" else draw(st.sampled_from(["in", "on"]))
            placed[name] = (where, how)
    if here and draw(st.booleans()):
        seen["you"], placed["you"] = "", (here[0], "at")
    state = st.dictionaries(st.sampled_from([0, 1, 7]), st.booleans(), max_size=2)
    return oracle.Feedback(
        seen=seen,
        placed=placed,
        states={n: draw(state) for n in names[:3]},
        listed=frozenset(draw(st.sets(st.sampled_from(list(seen)))) if seen else ()),
        facts=tuple(draw(st.lists(st.sampled_from(FACTS), max_size=2))),
        valid=draw(st.integers(0, 5)) > 0,
        won=draw(st.integers(0, 19)) == 19,
        ended=draw(st.integers(0, 19)) == 19,
        score=draw(st.sampled_from(SCORES)),
    )


@st.composite
def turn(draw):
    verb = draw(st.sampled_from(["env", "env", "env", *META_VERBS, "commit"]))
    status = st.sampled_from(["open", "open", "done", "blocked", "dropped"])
    phrase = st.tuples(status, st.sampled_from(GOALS))
    queries = ["", "unexplored", "egg", "1", "you", "shelf 2, mug", *PLACES, "x"]
    fits = st.sampled_from([0.0, 0.0, 1.0, 2.0, 3.0])
    count = len(ENTRIES)
    given = {
        "env": {"feedback": st.none() | feedback()},
        "track": {"query": st.sampled_from(queries)},
        "commit": {"phrases": st.lists(phrase, max_size=4).map(tuple)},
        "recall": {"fit": st.lists(fits, min_size=count, max_size=count).map(tuple)},
        "note": {"text": st.sampled_from(["", "eggs", "mugs", "pens"])},
    }[verb]
    return oracle.Turn(
        verb,
        f"{verb} {draw(st.integers(0, 2))}",
        well_formed=draw(st.integers(0, 7)) > 0,
        tokens=draw(st.integers(0, 9)),
        **{name: draw(strategy) for name, strategy in given.items()},
    )


def effects_of(lexicon, said):
    effects = lexicon_.no_effects()
    for name, role in said.seen.items():
        lexicon, i = lexicon_.name(lexicon, name)
        effects.seen[i] = True
        effects.role[i] = {"place": PLACE, "thing": THING, "": 0}[role]
    ids = lexicon.name_ids
    for name, (place, how) in said.placed.items():
        effects.place[ids[name]] = NONE if place is None else ids[place]
        effects.relation[ids[name]] = oracle.HOW.index(how)
    for name, states in said.states.items():
        for column, value in states.items():
            effects.attr[ids[name], column] = value
    for name in said.listed:
        effects.listed[ids[name]] = True
    return lexicon, effects


PREFIX = {"open": "", "done": "done: ", "blocked": "blocked: ", "dropped": "drop: "}


def event_of(lexicon, taken):
    """Read a turn of the oracle as the package does."""
    said = taken.feedback
    if taken.verb != "env":
        verb = 1 + META_VERBS.index(taken.verb)
        asked = " | ".join(PREFIX[status] + goal for status, goal in taken.phrases)
        argument = asked or taken.query or taken.text
        lexicon, event = lexicon_.read_meta(lexicon, WORDS, verb, argument)
        if taken.verb == "recall":
            event = event.replace(overlap=np.array(taken.fit, np.float32))
    elif said is None:
        event = NULL_EVENT.replace(verb=np.int8(ENV))
    else:
        lexicon, effects = effects_of(lexicon, said)
        seen = SimpleNamespace(
            valid=said.valid, won=said.won, done=said.ended, score=said.score
        )
        proved = lexicon_.proved(lexicon, list(said.facts))
        event = lexicon_.env_event(effects, proved, seen)
        event = event.replace(overlap=NULL_EVENT.overlap)
    lexicon, action = lexicon_.text(lexicon, taken.action)
    well_formed = taken.well_formed and (taken.verb != "env" or said is not None)
    return lexicon, event.replace(
        well_formed=np.bool_(well_formed),
        action=np.int32(action),
        tokens=np.int32(taken.tokens),
    )


def opened(rules):
    lexicon, opening = lexicon_.empty(), []
    for text in ("Find the egg", "find egg"):
        lexicon, index = lexicon_.text(lexicon, text)
        opening.append(np.int32(index))
    event = NULL_EVENT.replace(verb=np.int8(ENV), valid=np.bool_(True))
    opening = Opening(np.bool_(False), *opening)
    return lexicon, start(rules, BANK, event, opening)


def read_all(lexicon, turns):
    events, known = [], []
    for taken in turns:
        lexicon, event = event_of(lexicon, taken)
        events.append(event)
        known.append(lexicon)
    return events, known


def scanned(rules, episode, events):
    """Every state after `events`, one by one, as a list."""
    events = events + [NULL_EVENT] * (EVENTS - len(events))
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *events)
    final, every = jax.device_get(replay(rules, episode, stacked))
    return final, [jax.tree.map(lambda x: x[t], every) for t in range(EVENTS)]


def same(one, two):
    jax.tree.map(np.testing.assert_array_equal, one, two)


episodes = st.lists(turn(), min_size=1, max_size=EVENTS)


@pytest.mark.parametrize("rules", RULES)
@settings(max_examples=40)
@given(turns=episodes)
def test_arrays_equal_the_oracle(rules, turns):
    limits = oracle.Limits(**rules._asdict())
    want = oracle.Oracle(limits, ENTRIES)
    want.observe(oracle.Feedback())
    lexicon, episode = opened(rules)
    events, known = read_all(lexicon, turns)
    final, every = scanned(rules, episode, events)
    for taken, words, got in zip(turns, known, every):
        want.step(taken)
        assert oracle.as_words(words, got) == want.words()
    # Null events behind the last one leave it as it is.
    same(final, every[len(turns) - 1])


@settings(max_examples=10)
@given(turns=episodes)
def test_replay_equals_the_loop_bit_for_bit(turns):
    lexicon, episode = opened(RULES[0])
    events, _ = read_all(lexicon, turns)
    final, every = scanned(RULES[0], episode, events)
    for event, got in zip(events, every):
        episode = step(RULES[0], BANK, episode, event)
        same(jax.device_get(episode), got)
    same(jax.device_get(episode), final)


@settings(max_examples=10)
@given(turns=episodes, after=turn())
def test_calls_add_up_and_an_end_is_final(turns, after):
    lexicon, episode = opened(RULES[1])
    events, known = read_all(lexicon, turns)
    final, every = scanned(RULES[1], episode, events)
    for got in every:
        calls = got.workspace
        assert (calls.attempted == calls.executed + calls.failed).all()
        assert calls.attempted.sum() + got.env_steps == got.turn
        assert (got.turn <= RULES[1].capacity) and (got.done == (got.stop > 0))
    if final.done:
        _, event = event_of(known[-1], after)
        same(jax.device_get(step(RULES[1], BANK, final, event)), final)
    same(jax.device_get(step(RULES[1], BANK, final, NULL_EVENT)), final)


@settings(max_examples=10)
@given(one=episodes, two=episodes)
def test_a_batch_plays_every_row_as_if_it_were_alone(one, two):
    lexicon, episode = opened(RULES[0])
    alone, rows = [], []
    for turns in (one, two):
        events, _ = read_all(lexicon, turns)
        events += [NULL_EVENT] * (EVENTS - len(events))
        alone.append(scanned(RULES[0], episode, events)[0])
        rows.append(jax.tree.map(lambda *leaves: np.stack(leaves), *events))
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *rows)
    batch = jax.device_get(replay_batch(episode, stacked))
    for row, want in enumerate(alone):
        same(jax.tree.map(lambda x: x[row], batch), want)


@jax.jit
def replay_batch(episode, events):
    return jax.vmap(lambda e: replay(RULES[0], episode, e)[0])(events)


@settings(max_examples=5)
@given(turns=episodes)
def test_vmap_of_one_equals_one(turns):
    lexicon, episode = opened(RULES[0])
    one = jax.tree.map(lambda x: jnp.asarray(x)[None], episode)
    for event in read_all(lexicon, turns)[0]:
        episode = step(RULES[0], BANK, episode, event)
        one = step_one(one, jax.tree.map(lambda x: np.asarray(x)[None], event))
    same(jax.device_get(jax.tree.map(lambda x: x[0], one)), jax.device_get(episode))


@jax.jit
def step_one(episodes, events):
    taken = partial(episode_.step, RULES[0], BANK)
    return jax.vmap(taken)(episodes, events)


def test_one_compilation_serves_every_game_and_turn():
    """Words never enter an array, so that no word makes a new program."""
    traces = []

    @jax.jit
    def jitted(*args):
        traces.append(args)
        return episode_.step(RULES[0], *args)

    for task in counter.tasks("train")[::5]:
        state, seen = counter.reset(task)
        domain = counter.make()
        lexicon, event = domain.read(domain.lexicon(task, seen), "", seen)
        event = event.replace(overlap=NULL_EVENT.overlap)
        opening = Opening(np.bool_(False), np.int32(NONE), np.int32(NONE))
        episode = start(RULES[0], BANK, event, opening)
        for action in ("inc", "dec", "jump"):
            state, seen = counter.step(state, action)
            lexicon, event = domain.read(lexicon, action, seen)
            event = event.replace(overlap=NULL_EVENT.overlap)
            episode = jitted(BANK, episode, event)
        for verb, _ in enumerate(META_VERBS, 1):
            read = lexicon_.read_meta(lexicon, WORDS, verb, f"{task.spec} | counter")
            lexicon, event = read
            episode = jitted(BANK, episode, event)
        episode = jitted(BANK, episode, NULL_EVENT)
    assert (len(traces), jitted._cache_size()) == (1, 1)


@settings(max_examples=30)
@given(st.lists(st.lists(st.text("pqrs |:", max_size=9), max_size=9), max_size=5))
def test_every_phrase_is_committed_or_counted(calls):
    """Whatever is written, phrases are kept, refused as blank, or in `dropped`."""
    lexicon = lexicon_.empty()
    for phrases in calls:
        argument = "|".join(phrases)
        lexicon, event = lexicon_.read_meta(lexicon, WORDS, 2, argument)
        written = [p for p in argument.split("|") if p.strip()]
        words = [p for p in written if lexicon_.normalise(p)]
        kept = int((event.text != NONE).sum())
        assert kept + event.dropped <= len(written)
        assert kept + event.dropped >= len(words)


@settings(max_examples=30)
@given(st.text(max_size=30), st.sampled_from([1, 2, 3, 4]))
def test_any_words_can_be_read(argument, verb):
    _, event = lexicon_.read_meta(lexicon_.empty(), WORDS, verb, argument)
    form = jax.tree.map(lambda x: (x.shape, x.dtype), event)
    assert form == jax.tree.map(lambda x: (x.shape, x.dtype), NULL_EVENT)
    assert (event.effects.place == SAME).all() and not event.match[AGENT + 1 :].any()
