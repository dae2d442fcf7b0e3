"""Episodes: turns, prices, and how they end."""

from functools import cache, partial

import jax
import numpy as np
import pytest

from evoharness_jax.bpe import episode as episode_
from evoharness_jax.bpe import experience
from evoharness_jax.bpe import lexicon as lexicon_
from evoharness_jax.bpe.episode import (
    ENDED,
    OUT_OF_TOKENS,
    OUT_OF_TURNS,
    RUNNING,
    STOPS,
    WON,
    Opening,
)
from evoharness_jax.bpe.workspace import Rules
from evoharness_jax.types import AT, COMMIT, ENV, NONE, NULL, RECALL, THING, TRACK

WORDS = lexicon_.index_bank(("egg: fridge", "mug: desk"), ("", ""))
BANK = experience.empty_bank(2).replace(alive=np.ones(2, bool))
NULL_EVENT = lexicon_.null_event(2)

FOUR = Rules(max_turns=4)


@cache
def compiled(rules):
    if rules == FOUR:
        return jax.jit(partial(episode_.step, rules))
    # Compiling costs more than the few steps that the other rules are asked for.
    return lambda *args: episode_.step(rules, *jax.device_put(args))


def first(always_on=False, **fields):
    """The first observation: egg 1 on the table; the goal is text 0, key 1."""
    effects = lexicon_.no_effects()
    effects.seen[1] = effects.seen[2] = True
    effects.role[2] = THING
    effects.place[2], effects.relation[2] = 1, AT
    event = NULL_EVENT.replace(
        verb=np.int8(ENV),
        well_formed=np.bool_(True),
        valid=np.bool_(True),
        effects=effects,
        overlap=lexicon_.overlap(WORDS, "egg", ""),
    )
    opening = Opening(np.bool_(always_on), np.int32(0), np.int32(1))
    return event.replace(**fields), opening


def begin(rules, **fields):
    return jax.device_get(episode_.start(rules, BANK, *first(**fields)))


def call(verb, argument="", **fields):
    event = lexicon_.read_meta(lexicon_.empty(), WORDS, verb, argument)[1]
    return event.replace(**{"action": np.int32(5), **fields})


def act(valid=True, won=False, ended=False, score=0.0, **fields):
    event = NULL_EVENT.replace(
        verb=np.int8(ENV),
        well_formed=np.bool_(True),
        valid=np.bool_(valid),
        won=np.bool_(won),
        ended=np.bool_(ended),
        score=np.float32(score),
    )
    return event.replace(**{"action": np.int32(6), **fields})


NOTHING = NULL_EVENT.replace(verb=np.int8(ENV))  # no action block in the response


def play(rules, *events, **opening):
    episode = begin(rules, **opening)
    for event in events:
        episode = compiled(rules)(BANK, episode, event)
    return jax.device_get(episode)


def same(one, two):
    jax.tree.map(np.testing.assert_array_equal, one, two)


def test_start():
    episode = begin(FOUR)
    assert (episode.turn, episode.env_steps, episode.tokens) == (0, 0, 0)
    assert not episode.done and episode.stop == RUNNING
    assert episode.workspace.belief.clock == 1
    assert episode.workspace.belief.place[2] == 1
    assert episode.workspace.progress.size == 0
    assert (episode.workspace.hints == NONE).all()
    assert episode.actions.tolist() == [NONE] * 4
    assert episode.verbs.tolist() == [NULL] * 4
    assert episode.reply.verb == NULL


def test_always_on_starts_with_a_plan_and_hints():
    workspace = begin(FOUR, always_on=True).workspace
    assert (workspace.progress.text[0], workspace.progress.key[0]) == (0, 1)
    assert workspace.progress.size == 1
    assert workspace.hints.tolist()[:2] == [0, NONE]
    assert workspace.evidence.uses.tolist() == [1, 0]
    assert workspace.attempted.sum() == 0  # nobody called for it


def test_names_without_room_at_the_start_are_counted():
    assert begin(FOUR, dropped=np.int32(3)).workspace.dropped == 3


def test_a_game_that_is_over_at_once_makes_a_finished_episode():
    over = begin(FOUR, ended=np.bool_(True), valid=np.bool_(False))
    assert (over.done, over.won, over.stop) == (True, False, ENDED)
    over = begin(FOUR, won=np.bool_(True), score=np.float32(1.0))
    assert (over.done, over.won, over.stop, over.score) == (True, True, WON, 1.0)
    same(jax.device_get(compiled(FOUR)(BANK, over, act())), over)


def test_history_keeps_what_became_of_every_turn():
    two_blocks = act(well_formed=np.bool_(False))
    episode = play(FOUR, call(TRACK), act(), act(valid=False), two_blocks)
    assert episode.verbs.tolist() == [TRACK, ENV, ENV, ENV]
    assert episode.actions.tolist() == [5, 6, 6, 6]
    # The environment took the two blocks' first action; the turn is invalid still.
    assert episode.tags.tolist() == [0, 0, 1, 0]
    assert episode.valid.tolist() == [True, True, False, False]
    assert (episode.turn, episode.env_steps) == (4, 3)


def test_winning():
    episode = play(FOUR, call(RECALL, "egg"), act(won=True, ended=True, score=1.0))
    assert (episode.done, episode.won, STOPS[episode.stop]) == (True, True, "won")
    assert episode.score == 1.0
    assert episode.workspace.evidence.wins.tolist() == [1, 0]
    assert episode_.calls(episode).tolist() == [0, 0, 1, 0]


def test_losing_credits_nothing():
    episode = play(FOUR, call(RECALL, "egg"), act(ended=True))
    assert (episode.done, episode.won, STOPS[episode.stop]) == (True, False, "ended")
    assert episode.workspace.evidence.uses.tolist() == [1, 0]
    assert episode.workspace.evidence.wins.tolist() == [0, 0]


def test_only_an_environment_action_can_win_or_end():
    event = call(TRACK, won=np.bool_(True), ended=np.bool_(True))
    assert not play(FOUR, event).done


def test_the_score_is_that_of_the_last_accepted_action():
    half = act(score=0.5)
    assert play(FOUR, half, call(TRACK)).score == 0.5
    assert play(FOUR, half, NOTHING).score == 0.5
    assert play(FOUR, half, act(valid=False)).score == 0.5
    assert play(FOUR, half, act(score=0.25)).score == 0.25


def test_charged_calls_use_up_turns():
    events = [call(TRACK), call(TRACK), act()]
    episode = play(Rules(max_turns=3), *events, act(won=True))
    assert STOPS[episode.stop] == "out of turns" and not episode.won
    assert (episode.turn, episode.env_steps) == (3, 1)


def test_a_malformed_turn_is_an_environment_action_that_failed():
    episode = play(FOUR, NOTHING)
    assert (episode.turn, episode.env_steps) == (1, 1)
    assert (episode.tags[0], episode.valid[0], episode.verbs[0]) == (2, False, ENV)


def test_free_calls_do_not():
    free = Rules(max_turns=2, charge=False)
    calls = [call(TRACK), call(TRACK)]
    episode = play(free, *calls, act())
    assert (episode.turn, episode.env_steps, episode.done) == (3, 1, False)
    episode = play(free, *calls, act(), act())
    assert STOPS[episode.stop] == "out of turns" and episode.turn == 4


def test_free_calls_end_with_the_room_for_turns():
    free = Rules(max_turns=2, charge=False, max_meta=1)
    episode = play(free, call(TRACK), call(TRACK))
    assert (episode.turn, episode.done) == (2, False)
    assert episode.workspace.failed.tolist() == [1, 0, 0, 0]
    episode = play(free, call(TRACK), call(TRACK), call(TRACK))
    assert STOPS[episode.stop] == "out of turns" and episode.env_steps == 0


def test_a_win_on_the_last_turn_counts():
    episode = play(Rules(max_turns=2), act(), act(won=True))
    assert (episode.stop, episode.won) == (WON, True)


def test_tokens_are_added_up_and_can_run_out():
    budget = Rules(max_turns=4, max_tokens=30)
    ten, twenty = np.int32(10), np.int32(20)
    episode = play(budget, act(tokens=ten), call(TRACK, tokens=ten))
    assert (episode.tokens, episode.done) == (20, False)
    episode = play(budget, call(TRACK, tokens=ten), act(tokens=twenty))
    assert (episode.tokens, episode.stop) == (30, OUT_OF_TOKENS)
    assert play(FOUR, act(tokens=twenty), act(tokens=twenty)).stop == RUNNING


def test_why_it_is_over_in_order():
    last = Rules(max_turns=1, max_tokens=1)
    one = np.int32(1)
    assert play(last, act(won=True, ended=True, tokens=one)).stop == WON
    assert play(last, act(ended=True, tokens=one)).stop == ENDED
    assert play(last, act(tokens=one)).stop == OUT_OF_TURNS


@pytest.mark.parametrize("event", [act(), call(COMMIT, "x"), NOTHING, NULL_EVENT])
def test_a_step_of_a_finished_episode_is_the_identity(event):
    over = play(FOUR, act(ended=True))
    same(jax.device_get(compiled(FOUR)(BANK, over, event)), over)


def test_a_step_with_the_null_event_is_the_identity():
    episode = play(FOUR, call(COMMIT, "x"), act(valid=False))
    null = NULL_EVENT.replace(dropped=np.int32(1), tokens=np.int32(1))
    for event in (NULL_EVENT, null):
        same(jax.device_get(compiled(FOUR)(BANK, episode, event)), episode)
