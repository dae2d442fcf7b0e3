"""The counter: its tasks, its steps, what is read from them, and its teacher."""

from types import SimpleNamespace

import numpy as np
import pytest

from evoharness_jax.bpe import lexicon as lexicon_
from evoharness_jax.envs import counter
from evoharness_jax.envs.domain import Task
from evoharness_jax.experience import bank as bank_
from evoharness_jax.types import AT, NONE, THING, N

DOMAIN = counter.make()


@pytest.mark.parametrize("split", ["train", "test"])
def test_tasks(split):
    tasks = counter.tasks(split)
    assert list(tasks) == sorted(tasks, key=lambda t: t.id)
    assert len({t.id for t in tasks}) == len(tasks) == 23
    assert {t.split for t in tasks} == {split}
    kinds = [t.type for t in tasks]
    assert (kinds.count("coded"), kinds.count("plain")) == (13, 10)


def test_splits_share_no_code_word():
    words = [
        {t.spec for t in counter.tasks(split) if t.type == "coded"}
        for split in ("train", "test")
    ]
    assert not words[0] & words[1]
    assert words[0] | words[1] == set(counter.WORDS) == set(counter.NUMBERS)


def test_every_number_is_some_words_and_none_is_the_start():
    want = {*range(-5, 6)} - {0}
    assert set(counter.NUMBERS.values()) == set(counter.TARGETS) == want


def test_an_unknown_split_is_named():
    with pytest.raises(ValueError, match="counter has no split 'valid', only train"):
        counter.tasks("valid")


def play(spec, *actions):
    state, seen = DOMAIN.reset(Task("x", "plain", "train", spec))
    for action in actions:
        state, seen = DOMAIN.step(state, action)
    return seen


def test_reset():
    seen = play("3")
    assert (seen.text, seen.objective) == ("counter: 0", "reach 3")
    assert seen.commands == ("dec", "inc")
    assert (seen.done, seen.won, seen.score, seen.valid) == (False, False, 0.0, True)


def test_counting_to_the_number_wins():
    seen = play("2", "inc", "dec", "dec", "inc", "INC ", "inc")
    assert (seen.text, seen.done, seen.won, seen.score) == ("counter: 2", True, True, 1)
    assert play("-1", "dec").won
    assert play("delta", "inc").won  # delta: 1


@pytest.mark.parametrize("action", ["", "jump", "track [x]", "inc inc"])
def test_anything_else_is_refused_and_changes_nothing(action):
    seen = play("2", "inc", action)
    assert (seen.text, seen.valid, seen.done) == ("unknown", False, False)
    assert play("2", "inc", action, "dec").text == "counter: 0"


def test_a_state_is_a_value():
    state, _ = counter.reset(Task("x", "plain", "train", "2"))
    one, _ = counter.step(state, "inc")
    again, _ = counter.step(state, "inc")
    assert one == again and state.value == 0


def test_reading():
    words = lexicon_.empty()
    for goal in ("reach 1", "reach delta"):
        words, _ = lexicon_.text(words, goal)
    words, event = counter.read(words, "inc", play("delta", "inc"))
    assert words.names == ("you", "counter", "1")
    effects = event.effects
    assert np.flatnonzero(effects.seen).tolist() == [1]
    assert (effects.role[1], effects.place[1], effects.relation[1]) == (THING, 2, AT)
    assert event.proved.tolist() == [0, 1, NONE, NONE]
    assert (event.won, event.ended, event.score, event.dropped) == (True, True, 1.0, 0)


def test_refused_feedback_says_nothing():
    words, event = counter.read(lexicon_.empty(), "jump", play("2", "jump"))
    assert words.names == ("you",) and not event.effects.seen.any()
    assert not event.valid


def test_names_without_room_are_counted():
    words = lexicon_.empty()
    for index in range(N - 2):
        words, _ = lexicon_.name(words, f"filler {index}")
    words, event = counter.read(words, "inc", play("2", "inc"))  # counter, not 1
    assert event.dropped == 1 and not event.effects.seen.any()


@pytest.mark.parametrize(
    "objective, kind", [("reach -3", "plain"), ("reach kilo", "coded")]
)
def test_task_type(objective, kind):
    assert counter.task_type(objective) == kind


def test_task_types_are_those_of_the_tasks():
    for task in counter.tasks("train") + counter.tasks("test"):
        assert counter.task_type(counter.reset(task)[1].objective) == task.type


def test_an_objective_of_another_game():
    with pytest.raises(ValueError, match="not a counter objective: 'heat egg'"):
        counter.task_type("heat egg")


def test_prompt_names_the_tools_that_are_on():
    modules = frozenset(("belief", "progress", "experience"))
    line = "Make the counter show the number. Actions: inc, dec."
    assert counter.prompt("env_only", modules) == line
    assert counter.prompt("always_on", modules) == line
    assert counter.prompt("inline", frozenset()) == line
    assert counter.prompt("inline", modules) == (
        f"{line} Tools: track [counter], commit [subgoal], recall, note [insight]."
    )
    assert counter.prompt("inline", frozenset(["belief"])) == (
        f"{line} Tools: track [counter]."
    )


def test_offer():
    assert counter.offer(("dec", "inc"), "full") == ("dec", "inc")
    assert counter.offer(("dec", "inc"), "local") == ("dec", "inc")
    assert counter.offer(("dec", "inc"), "none") == ()


def test_the_manual_tells_every_code_word():
    entries = bank_.from_lessons(DOMAIN.manual)
    assert len(entries) == 26
    assert entries[6].text == "golf: -1" and entries[6].task_type == "coded"
    words = lexicon_.index_bank(
        tuple(e.text for e in entries), tuple(e.task_type for e in entries)
    )
    for slot, word in enumerate(counter.WORDS):
        fit = lexicon_.overlap(words, word, "coded")
        assert np.flatnonzero(fit).tolist() == [slot]


def test_the_teacher_reads_what_it_recalled_whatever_else_is_there():
    """A bank that has evolved holds insights too, which are no `word: number`."""
    words, _ = lexicon_.name(lexicon_.empty(), "counter")
    words, _ = lexicon_.name(words, "0")
    belief = SimpleNamespace(place=np.array([NONE, 2]))
    workspace = SimpleNamespace(hints=np.array([1, 0, NONE]), belief=belief)
    verbs = np.array([2, 3, 1])
    sight = SimpleNamespace(
        objective="reach zulu",
        lexicon=words,
        bank_text=("zulu: 2", "counting up helps"),
        episode=SimpleNamespace(verbs=verbs, turn=3, workspace=workspace),
        tools=frozenset(("track", "commit", "recall", "note")),
        seed=0,
    )
    assert counter.teacher(sight) == ("", "inc")


def test_a_number_and_its_negative_are_different_subgoals():
    words, _ = lexicon_.text(lexicon_.empty(), lexicon_.normalise("reach -1"))
    _, event = counter.read(words, "inc", play("2", "inc"))
    assert event.proved.tolist() == [NONE] * 4
    _, event = counter.read(words, "dec", play("2", "dec"))
    assert event.proved.tolist() == [0, NONE, NONE, NONE]


def test_both_splits_have_every_number():
    for split in ("train", "test"):
        words = [t.spec for t in counter.tasks(split) if t.type == "coded"]
        assert {counter.NUMBERS[w] for w in words} == set(counter.TARGETS)
