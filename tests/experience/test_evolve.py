"""From the evidence of episodes to the next version of the bank."""

import pytest

from evoharness_jax.bpe.experience import HINT, INSIGHT
from evoharness_jax.experience.bank import Entry
from evoharness_jax.experience.consolidators import EpisodeEvidence
from evoharness_jax.experience.evolve import Changes, count_outcomes, evolve


def episode(*notes, won=True, uses=(), split="train", task="t1", kind="heat"):
    return EpisodeEvidence(task, kind, split, won, notes, uses, "teacher")


def old(text, section=INSIGHT, uses=0, wins=0, updated_at=0, **source):
    return Entry(section, "", text, uses, wins, updated_at, source)


def texts(entries):
    return [e.text for e in entries]


def test_no_evidence_changes_nothing():
    entries = (old("a"), old("b: c", HINT))
    assert evolve(entries, [], 1, 9) == (entries, Changes())
    assert evolve(entries, [episode()], 1, 9) == (entries, Changes())


def test_outcomes_are_counted_for_what_was_shown():
    entries = (old("a", uses=2, wins=1), old("b"), old("c"))
    evidence = [episode(uses=(0, 1)), episode(uses=(0,), won=False)]
    counted = count_outcomes(entries, evidence)
    assert [(e.uses, e.wins) for e in counted] == [(4, 2), (1, 1), (0, 0)]
    assert evolve(entries, evidence, 1, 9)[0] == counted


def test_a_hint_gathers_places_by_frequency_then_name():
    evidence = [
        episode("egg: fridge", "egg: pan", "mug: desk"),
        episode("Egg : Pan", won=False),  # where things are is so in lost ones too
        episode("egg: bowl"),
    ]
    entries, changes = evolve((), evidence, 4, 9)
    assert texts(entries) == ["egg: pan, bowl, fridge", "mug: desk"]
    assert changes == Changes(added=2)
    hint = entries[0]
    assert (hint.section, hint.task_type, hint.updated_at) == (HINT, "", 4)
    assert hint.source["counts"] == {"pan": 2, "bowl": 1, "fridge": 1}


def test_a_hint_shows_its_four_best_places_and_counts_all():
    places = ("a", "b", "c", "d", "e")
    evidence = [episode(f"egg: {p}") for p in places] + [episode("egg: e")]
    (hint,), _ = evolve((), evidence, 1, 9)
    assert hint.text == "egg: e, a, b, c"
    assert hint.source["counts"] == {"e": 2, "a": 1, "b": 1, "c": 1, "d": 1}


def test_later_evidence_is_added_to_a_hint_and_can_turn_it():
    entries, _ = evolve((), [episode("egg: pan", "mug: desk")], 1, 9)
    entries = (entries[0]._replace(uses=5, wins=3), entries[1])
    evidence = [episode("egg: fridge"), episode("egg: fridge")]
    entries, changes = evolve(entries, evidence, 2, 9)
    assert texts(entries) == ["egg: fridge, pan", "mug: desk"]
    assert changes == Changes(updated=1)
    assert (entries[0].uses, entries[0].wins, entries[0].updated_at) == (5, 3, 2)
    assert entries[1].updated_at == 1
    entries, changes = evolve(entries, [episode("egg: fridge")], 3, 9)
    assert changes == Changes()  # counted, but its words are the same
    assert entries[0].source["counts"] == {"fridge": 3, "pan": 1}


def test_a_hint_from_a_manual_is_left_alone():
    entries, changes = evolve(
        (old("kilo: one", HINT, policy="manual"),), [episode("kilo: two")], 1, 9
    )
    assert texts(entries) == ["kilo: one", "kilo: two"]
    assert changes == Changes(added=1)


def test_an_insight_is_kept_once_whatever_its_wording():
    evidence = [
        episode("Open the safe, then look!", task="t1"),
        episode("open safe then look", task="t2"),
    ]
    entries, changes = evolve((), evidence, 2, 9)
    assert texts(entries) == ["Open the safe, then look!"]
    assert changes == Changes(added=1)
    insight = entries[0]
    assert (insight.section, insight.task_type) == (INSIGHT, "heat")
    assert insight.source == {
        "policy": "teacher",
        "split": "train",
        "task": "t1",
        "step": 2,
    }
    assert evolve(entries, evidence, 3, 9) == (entries, Changes())


def test_an_insight_needs_a_win_and_few_words():
    evidence = [episode("lost anyway", won=False), episode("x" * 201)]
    assert evolve((), evidence, 1, 9) == ((), Changes())


@pytest.mark.parametrize("split", ["valid_seen", "valid_unseen", "test"])
def test_the_bank_never_learns_from_an_evaluation_split(split):
    with pytest.raises(ValueError, match=f"task 't7' of '{split}'"):
        evolve((), [episode(), episode(split=split, task="t7")], 1, 9)


def test_a_full_bank_evicts_what_was_worth_least():
    entries = (
        old("good", uses=2, wins=2),  # (2 + 1)/(2 + 2) = 3/4
        old("bad", uses=2, wins=0),  # 1/4
        old("untried", updated_at=1),  # 1/2
    )
    evidence = [episode("first"), episode("second")]
    entries, changes = evolve(entries, evidence, 2, 4)
    assert texts(entries) == ["good", "untried", "first", "second"]
    assert changes == Changes(added=2, evicted=1)
    # Of equal worth the older goes, then the earlier.
    entries, changes = evolve(entries, [], 3, 2)
    assert texts(entries) == ["good", "second"]
    assert changes == Changes(evicted=2)


def test_outcomes_of_this_rollout_count_before_eviction():
    entries = (old("a"), old("b"))
    entries, _ = evolve(entries, [episode(uses=(0,)), episode("c")], 1, 2)
    assert texts(entries) == ["a", "c"]


def test_the_same_evidence_gives_the_same_bank():
    evidence = [episode("mug: desk", "egg: pan", "sing"), episode("egg: bowl")]
    assert evolve((), evidence, 1, 3) == evolve((), evidence, 1, 3)
    assert texts(evolve((), evidence, 1, 3)[0]) == [
        "sing",
        "egg: bowl, pan",
        "mug: desk",
    ]
