"""The figures of a page, and what it says of the bank from version to version."""

from hypothesis import given
from hypothesis import strategies as st

import runs
from evoharness_jax import evaluate
from evoharness_jax.bpe.experience import HINT, INSIGHT
from evoharness_jax.experience.bank import Entry
from evoharness_jax.experience.bank import write as write_bank
from evoharness_jax.page import charts, folder, history, marks, tables


def test_labels_are_moved_apart_and_keep_their_order():
    assert marks.apart([1.0, 0.0, 0.98, 0.02], 0.25) == [1.23, 0.0, 0.98, 0.25]
    assert marks.apart([], 1.0) == []


def test_what_is_drawn_of_many_steps_is_spread_and_ends_with_the_last():
    lines = [{"step": step} for step in range(1, 1001)]
    assert charts.thinned(lines[:400]) == lines[:400]
    drawn = charts.thinned(lines)
    assert len(drawn) == 400
    assert (drawn[0], drawn[1], drawn[-1]) == ({"step": 1}, {"step": 4}, {"step": 1000})


def test_tokens_a_solved_task_have_no_number_where_none_was_solved():
    lines = [
        {"step": 1, "env/success": 0.0, "env/tokens": 300.0},
        {"step": 2, "env/success": 0.5, "env/tokens": 300.0},
        {"step": 3, "env/success": 0.5, "env/tokens": float("nan")},
    ]
    assert charts.tokens_per_win(lines, "env") == [
        {"step": 2, "value": 600.0, "name": "tokens"}
    ]
    assert charts.tokens_per_win(lines, "eval") == []


def test_a_number_that_is_none_is_not_drawn():
    lines = [{"step": 1, "loss/kl": float("inf")}, {"step": 2, "loss/kl": 0.5}]
    assert charts.series(lines, "loss/kl") == [{"step": 2, "value": 0.5, "name": "kl"}]


def test_time_is_split_by_phase_and_the_rest_is_other():
    times = [(1.0, 4.0), (2.0, 9.0), (30.0, 31.0)]
    lines = [
        {"step": step, "time/policy": policy, "time/env": 1.0, "time/step": whole}
        for step, (policy, whole) in enumerate(times, 1)
    ]
    run = folder.read(runs.rl())._replace(lines=lines)
    # Of each phase the median: policy of 1, 2, 30; other of 2, 6, 0.
    assert charts.seconds(run) == {"policy": 2.0, "env": 1.0, "other": 2.0}


def test_figures_of_a_training_run_and_of_an_evaluation(tmp_path):
    drawn = charts.figures(folder.read(runs.rl()), {}, [])
    assert set(drawn) == {
        "annealing", "verbs", "tokens", "reward", "optimiser", "time",
    }  # fmt: skip
    names = [caption.split()[0] for caption, _ in drawn["reward"].parts]
    assert names == "total diversity efficiency invalid spam success".split()
    settings = runs.config("alfworld_eval", "env=counter,policy=teacher,debug")
    runs.make(evaluate.run, settings, tmp_path)
    assert set(charts.figures(folder.read(tmp_path), {}, [])) == {"calls", "time"}


def entry(text: str, section: int = HINT, **changes) -> Entry:
    return Entry(section, "", text, 0, 0, 1, {})._replace(**changes)


def test_what_changes_from_version_to_version(tmp_path):
    one = (entry("egg: fridge"), entry("cup: shelf"), entry("look twice", INSIGHT))
    two = (
        one[0]._replace(text="egg: fridge, shelf"),
        one[2]._replace(uses=4, wins=3),  # counted, not changed
        entry("pen: desk"),
    )
    first = write_bank(tmp_path, one, "", 0)
    second = write_bank(tmp_path, two, first.name, 3)
    found, problems = history.changes(tmp_path)
    assert problems == []
    assert found[0] == history.Change(first.name, 0, 3, (), (), ())
    assert found[1] == history.Change(
        second.name,
        3,
        3,
        added=("hint: pen: desk",),
        updated=(("hint: egg: fridge", "hint: egg: fridge, shelf"),),
        removed=("hint: cup: shelf",),
    )
    page = tables.bank(found, "")
    assert "step 3: 1 added, 1 reworded, 1 removed" in page
    assert "<s>hint: egg: fridge</s> hint: egg: fridge, shelf" in page
    drawn = charts.figures(folder.read(runs.rl()), {}, found)["bank"].parts[0][1]
    rows = next(iter(drawn["datasets"].values())) if "datasets" in drawn else None
    rows = rows or drawn["data"]["values"]
    assert [(row["what"], row["value"]) for row in rows] == [
        ("added", 1), ("reworded", 1), ("removed", -1),
    ]  # fmt: skip


def test_a_damaged_version_is_named_and_the_later_ones_are_shown(tmp_path):
    first = write_bank(tmp_path, (entry("egg: fridge"),), "", 0)
    write_bank(tmp_path, (entry("egg: shelf"),), first.name, 3)
    (tmp_path / f"{first.name}.jsonl").write_text("{")
    found, (problem,) = history.changes(tmp_path)
    assert [change.step for change in found] == [3]
    assert f"{first.name}.jsonl is damaged" in problem


ENTRIES = st.lists(st.sampled_from(["a: x", "a: y", "b: x", "c", "d"]), unique=True)


@given(ENTRIES, ENTRIES)
def test_changes_turn_one_version_into_the_next(before, after):
    one, two = ([entry(text) for text in texts] for texts in (before, after))
    added, updated, removed = history.compare(tuple(one), tuple(two))
    words = {f"hint: {text}" for text in before}
    words -= {*removed, *(old for old, _ in updated)}
    words |= {*added, *(new for _, new in updated)}
    assert words == {f"hint: {text}" for text in after}
