"""Words to ids, and what the words of a meta-action ask for."""

import numpy as np
import pytest

from evoharness_jax.bpe import lexicon as lexicon_
from evoharness_jax.types import (
    BLOCKED,
    COMMIT,
    DONE,
    DROPPED,
    ENV,
    NONE,
    NOTE,
    NULL,
    OPEN,
    QUERY_ALL,
    QUERY_NAMES,
    QUERY_UNEXPLORED,
    RECALL,
    TRACK,
    A,
    C,
    N,
)

NO_BANK = lexicon_.index_bank((), ())


def test_the_agent_is_the_first_name():
    words = lexicon_.empty()
    assert (words.names, words.texts) == (("you",), ())
    assert lexicon_.name(words, "you") == (words, 0)


def test_words_get_ids_once_and_the_old_lexicon_stays():
    old = lexicon_.empty()
    words, egg = lexicon_.name(old, "egg 1")
    words, mug = lexicon_.name(words, "mug 1")
    again, same = lexicon_.name(words, "egg 1")
    assert (egg, mug, same) == (1, 2, 1) and again is words
    words, first = lexicon_.text(words, "find egg")
    words, second = lexicon_.text(words, "find egg")
    assert (first, second, words.texts) == (0, 0, ("find egg",))
    assert old == lexicon_.empty()


def test_names_beyond_the_capacity_have_no_id():
    words = lexicon_.empty()
    for index in range(1, N):
        words, got = lexicon_.name(words, f"egg {index}")
        assert got == index
    full, got = lexicon_.name(words, "one more")
    assert got == NONE and full is words
    assert lexicon_.name(words, "egg 7") == (words, 7)


def test_too_many_attribute_columns():
    with pytest.raises(ValueError, match=f"at most {A} attribute columns"):
        lexicon_.empty((("open", "closed"),) * (A + 1))


@pytest.mark.parametrize(
    "words, want",
    [
        ("Find the Egg", "find egg"),
        ("find  an egg!", "find egg"),
        ("put some/egg 1, in:fridge 1", "put egg 1 in fridge 1"),
        ("the", ""),
        ("", ""),
    ],
)
def test_normalise(words, want):
    assert lexicon_.normalise(words) == want


def read(verb, argument, words=None, bank=NO_BANK):
    return lexicon_.read_meta(words or lexicon_.empty(), bank, verb, argument)


def phrases(event, words):
    """The phrases of an event as (text, key, status)."""
    n = int((event.text != NONE).sum())
    assert (event.text[n:] == NONE).all() and (event.key[n:] == NONE).all()
    return [
        (words.texts[event.text[c]], words.texts[event.key[c]], int(event.status[c]))
        for c in range(n)
    ]


@pytest.mark.parametrize(
    "argument, want",
    [
        ("find the Egg", [("find the Egg", "find egg", OPEN)]),
        ("a b|c  d", [("a b", "b", OPEN), ("c d", "c d", OPEN)]),
        ("done: find egg", [("find egg", "find egg", DONE)]),
        ("DONE :find egg", [("find egg", "find egg", DONE)]),
        ("blocked: x|drop: y", [("x", "x", BLOCKED), ("y", "y", DROPPED)]),
        ("dropped: x", [("x", "x", DROPPED)]),
        ("reopen: x|open: y", [("x", "x", OPEN), ("y", "y", OPEN)]),
        ("note: x", [("note: x", "note x", OPEN)]),  # not a status word
        ("done", [("done", "done", OPEN)]),
        ("done:", []),
        ("", []),
        (" | |", []),
        ("the", []),
        ("|x||y|", [("x", "x", OPEN), ("y", "y", OPEN)]),
    ],
)
def test_commit(argument, want):
    words, event = read(COMMIT, argument)
    assert phrases(event, words) == want
    assert (event.verb, event.well_formed, event.dropped) == (COMMIT, True, 0)


def test_phrases_beyond_the_capacity_are_counted():
    words, event = read(COMMIT, "|".join("pqrstu"))
    assert [text for text, _, _ in phrases(event, words)] == list("pqrs")
    assert event.dropped == 2


def test_note_keeps_its_words_with_single_spaces():
    words, event = read(NOTE, "  Eggs are\n in the Fridge ")
    assert phrases(event, words)[0][0] == "Eggs are in the Fridge"
    words, event = read(NOTE, " ")
    assert event.text.tolist() == [NONE] * C and words.texts == ()


@pytest.fixture
def kitchen():
    words = lexicon_.empty()
    for name in ("fridge 1", "egg 1", "egg 2", "desk lamp 1"):
        words, _ = lexicon_.name(words, name)
    return words


@pytest.mark.parametrize(
    "argument, query, names",
    [
        ("", QUERY_ALL, ""),
        ("the", QUERY_ALL, ""),
        ("unexplored", QUERY_UNEXPLORED, ""),
        ("What is unexplored?", QUERY_UNEXPLORED, ""),
        ("egg", QUERY_NAMES, "egg 1, egg 2"),
        ("the Egg 2", QUERY_NAMES, "egg 2"),
        ("2", QUERY_NAMES, "egg 2"),
        ("lamp", QUERY_NAMES, "desk lamp 1"),
        ("lamp desk", QUERY_NAMES, "desk lamp 1"),
        ("eg", QUERY_NAMES, ""),  # whole words only
        ("mug", QUERY_NAMES, ""),
        ("egg 1, fridge", QUERY_NAMES, "fridge 1, egg 1"),
        ("egg 1|fridge", QUERY_NAMES, "fridge 1, egg 1"),
        ("egg,", QUERY_NAMES, "egg 1, egg 2"),  # an empty part means nothing
        ("you", QUERY_NAMES, "you"),
    ],
)
def test_track(kitchen, argument, query, names):
    words, event = read(TRACK, argument, kitchen)
    assert words is kitchen and event.query == query
    found = [kitchen.names[i] for i in np.flatnonzero(event.match)]
    assert ", ".join(found) == names


BANK = lexicon_.index_bank(
    ("egg: fridge", "mug: desk", "egg egg pan", "", "heat the egg in a microwave"),
    ("", "", "", "", "heat"),
)


def test_bm25():
    """Four entries with words, of 2, 2, 3 and 3: mean length 2.5.

    rarity     egg, in 3 of 4: log(1 + 1.5/3.5) = 0.356675
               mug and microwave, in 1: log(1 + 3.5/1.5) = 1.203973
    norm       2 words: 1.2 * (0.25 + 0.75 * 2/2.5) = 1.02;  3 words: 1.38
    egg        0.356675 * 2.2/2.02 = 0.388458
    egg egg    0.356675 * 2 * 2.2/3.38 = 0.464310
    in 3       0.356675 * 2.2/2.38 = 0.329699
    """
    assert BANK.mean_length == 2.5
    assert BANK.rarity["egg"] == pytest.approx(0.356675, abs=1e-6)
    fit = lexicon_.overlap(BANK, "where is the egg?", "cool")
    want = [0.388458, 0.0, 0.464310, 0.0, 0.329699 * 0.5]
    np.testing.assert_allclose(fit, want, atol=1e-6)
    assert fit.dtype == np.float32
    # For its own task type an entry counts a quarter more.
    fit = lexicon_.overlap(BANK, "egg", "heat")
    assert fit[4] == pytest.approx(0.329699 * 1.25, abs=1e-6)
    # 0.388458 for egg, and for mug 1.203973 * 2.2/2.02 in another entry.
    fit = lexicon_.overlap(BANK, "egg mug", "cool")
    assert fit[:2].tolist() == pytest.approx([0.388458, 1.311258], abs=1e-6)


@pytest.mark.parametrize("query", ["", "where is the", "spoon", "1 2", "egs"])
def test_a_query_that_shares_no_word_fits_nothing(query):
    assert not lexicon_.overlap(BANK, query, "heat").any()


def test_numbers_and_stop_words_are_not_indexed():
    bank = lexicon_.index_bank(("the egg 1 is in fridge 1", ""), ("", ""))
    assert dict(bank.words[0]) == {"egg": 1, "fridge": 1}
    assert bank.mean_length == 2.0


def test_an_empty_bank_has_no_fits():
    assert lexicon_.overlap(NO_BANK, "egg", "heat").shape == (0,)
    empty = lexicon_.index_bank(("", ""), ("", ""))
    assert lexicon_.overlap(empty, "egg", "heat").tolist() == [0.0, 0.0]


def test_recall_of_nothing_asks_about_the_objective():
    words = lexicon_.empty(task_type="heat", objective="heat some egg")
    _, event = read(RECALL, "", words, BANK)
    want = lexicon_.overlap(BANK, "heat egg", "heat")
    assert event.overlap.tolist() == want.tolist()
    assert np.flatnonzero(event.overlap).tolist() == [0, 2, 4]


def test_only_meta_verbs_are_read():
    with pytest.raises(ValueError, match="verb=0"):
        read(ENV, "x")


def test_proved_finds_committed_phrases_whatever_their_wording():
    words, event = read(COMMIT, "Find the egg | heat egg")
    keys = lexicon_.proved(words, ["heat an egg", "cool egg", "find egg", "find egg"])
    assert keys.tolist() == [event.key[1], event.key[0]]


class Feedback:
    valid, won, done, score = True, False, True, 0.5


def test_env_event():
    words, event = read(COMMIT, "find egg")
    keys = lexicon_.proved(words, ["find egg"])
    event = lexicon_.env_event(lexicon_.no_effects(), keys, Feedback, 3)
    assert (event.verb, event.valid, event.won, event.ended) == (ENV, True, False, True)
    assert (event.score, event.dropped) == (0.5, 3)
    assert event.proved.tolist() == [0, NONE, NONE, NONE]


def test_proofs_beyond_the_capacity_are_counted():
    words = lexicon_.empty()
    for argument in ("p|q|r|s", "t|u"):
        words, _ = read(COMMIT, argument, words)
    keys = lexicon_.proved(words, list("pqrstu"))
    event = lexicon_.env_event(lexicon_.no_effects(), keys, Feedback)
    assert [words.texts[key] for key in event.proved] == list("pqrs")
    assert event.dropped == 2


def test_every_kind_of_event_has_the_same_shapes_and_types():
    import jax

    def form(event):
        return jax.tree.map(lambda x: (x.shape, x.dtype), event)

    want = form(lexicon_.null_event(5))
    assert lexicon_.null_event(5).verb == NULL
    for verb in (TRACK, COMMIT, RECALL, NOTE):
        assert form(read(verb, "egg", bank=BANK)[1]) == want
    keys = lexicon_.proved(lexicon_.empty(), ["x"])
    event = lexicon_.env_event(lexicon_.no_effects(), keys, Feedback)
    assert form(event.replace(overlap=np.zeros(5, np.float32))) == want
