"""The bank on disk: names, damage, stale parents, and a kill at any moment."""

import hashlib
import json
import os
import subprocess
import sys
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evoharness_jax.bpe.experience import HINT, INSIGHT, MISTAKE, SKILL
from evoharness_jax.envs.domain import Lesson
from evoharness_jax.experience import bank
from evoharness_jax.experience.bank import EMPTY, Entry, StaleParent


def entry(text="egg: fridge", section=HINT, task_type="", uses=0, wins=0):
    return Entry(section, task_type, text, uses, wins, 3, {"policy": "rules"})


def test_nothing_written_is_the_empty_bank(tmp_path):
    assert bank.read(tmp_path) == bank.read(tmp_path / "none") == EMPTY
    assert bank.head_name(tmp_path) == ""


def test_what_is_written_is_read_back(tmp_path):
    entries = (
        entry(),
        entry("Open the safe first", SKILL, "heat", 4, 2),
        entry("“ütf” \u2028 \x85 \\ \n", INSIGHT),
        entry("", MISTAKE),
    )
    version = bank.write(tmp_path, entries, "", 5)
    assert bank.read(tmp_path) == version == bank.read(tmp_path, version.name)
    assert version.entries == entries


@settings(max_examples=30)
@given(st.lists(st.text(st.characters(codec="utf-8"), max_size=20), max_size=4))
def test_any_text_can_be_a_lesson(tmp_path_factory, texts):
    folder = tmp_path_factory.mktemp("bank")
    entries = tuple(entry(text) for text in texts)
    bank.write(folder, entries, "", 0)
    assert bank.read(folder).entries == entries


def test_a_version_is_named_by_its_content_and_knows_its_parent(tmp_path):
    first = bank.write(tmp_path, [entry()], "", 1)
    second = bank.write(tmp_path, [entry()], first.name, 2)
    content = (tmp_path / f"{second.name}.jsonl").read_bytes()
    assert second.name == hashlib.sha256(content).hexdigest()[:16]
    header, line = map(json.loads, content.splitlines())
    assert header == {"parent": first.name, "step": 2}
    assert (line["section"], line["text"]) == ("hint", "egg: fridge")
    assert (tmp_path / "HEAD").read_text() == f"{second.name}\n"
    # The same edit in another folder has the same name.
    other = tmp_path / "other"
    assert bank.write(other, [entry()], "", 1).name == first.name
    assert bank.write(other, [entry("mug: desk")], first.name, 2).name != second.name


def test_an_old_version_stays(tmp_path):
    first = bank.write(tmp_path, [entry()], "", 1)
    bank.write(tmp_path, [], first.name, 2)
    assert bank.read(tmp_path).entries == ()
    assert bank.read(tmp_path, first.name).entries == (entry(),)


def test_rolling_back(tmp_path):
    first = bank.write(tmp_path, [entry()], "", 1)
    second = bank.write(tmp_path, [], first.name, 2)
    bank.reset_head(tmp_path, first.name)
    assert bank.read(tmp_path) == first
    # The same step taken again is the same version: a resumed run is the same run.
    assert bank.write(tmp_path, [], first.name, 2) == second
    bank.reset_head(tmp_path, "")
    assert bank.read(tmp_path) == EMPTY
    with pytest.raises(ValueError, match="no bank version 'abc'"):
        bank.reset_head(tmp_path, "abc")
    assert bank.read(tmp_path) == EMPTY
    bank.reset_head(tmp_path / "never", "")
    assert not (tmp_path / "never").exists()


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content.replace(b"fridge", b"freezer"),
        lambda content: content[:-1],
        lambda content: content[: len(content) // 2],
        lambda content: b"",
        lambda content: content + b"\xff",
    ],
)
def test_a_damaged_version_is_refused_by_name(tmp_path, damage):
    version = bank.write(tmp_path, [entry()], "", 1)
    path = tmp_path / f"{version.name}.jsonl"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ValueError, match=f"{version.name}.jsonl is damaged"):
        bank.read(tmp_path)
    path.unlink()
    with pytest.raises(ValueError, match=f"no bank version '{version.name}'"):
        bank.read(tmp_path)


def test_a_stale_parent_is_refused(tmp_path):
    first = bank.write(tmp_path, [entry()], "", 1)
    second = bank.write(tmp_path, [], first.name, 2)
    for stale in ("", first.name, "abc"):
        with pytest.raises(StaleParent, match=f"HEAD is '{second.name}'"):
            bank.write(tmp_path, [entry("late")], stale, 3)
    assert bank.read(tmp_path) == second


def test_of_many_writers_with_one_parent_one_wins(tmp_path):
    """Each writer starts from the same parent at the same moment."""
    parent = ""
    for round_ in range(10):
        barrier, wrote, refused = threading.Barrier(6), [], []

        def write(number):
            barrier.wait()
            try:
                text = f"{round_} {number}"
                wrote.append(bank.write(tmp_path, [entry(text)], parent, round_))
            except StaleParent:
                refused.append(number)

        threads = [threading.Thread(target=write, args=(n,)) for n in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (len(wrote), len(refused)) == (1, 5)
        assert bank.read(tmp_path) == wrote[0]
        parent = wrote[0].name


KILLER = """
import os, random, signal, sys, time
from evoharness_jax.experience import bank

folder, chance, seen, kills = sys.argv[1], random.Random(0), set(), 0

def write_for_ever():
    parent = bank.head_name(folder)
    for step in range(100000):
        entries = [bank.Entry(3, "", f"{step} {i}", 0, 0, step, {}) for i in range(99)]
        parent = bank.write(folder, entries, parent, step).name

while kills < 10 or len(seen) < 5:
    child = os.fork()
    if not child:
        write_for_ever()
    time.sleep(chance.uniform(0.0, 0.06))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    version = bank.read(folder)  # whole, or this raises
    assert len(version.entries) in (0, 99), version
    seen.add(version.name)
    kills += 1
bank.write(folder, [], version.name, 0)  # the lock has died with its holder
"""


def test_a_kill_at_any_moment_leaves_a_whole_version(tmp_path):
    """Writers are killed one after the other, each going on from what the last left."""
    subprocess.run([sys.executable, "-c", KILLER, str(tmp_path)], check=True)
    assert bank.read(tmp_path).entries == ()


def test_a_full_disk_leaves_the_old_version(tmp_path, monkeypatch):
    first = bank.write(tmp_path, [entry()], "", 1)
    files = sorted(tmp_path.iterdir())

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        bank.write(tmp_path, [], first.name, 2)
    assert sorted(tmp_path.iterdir()) == files
    assert bank.read(tmp_path) == first


def test_arrays():
    entries = (entry(uses=3, wins=2), entry("open doors", SKILL, "heat"))
    arrays, words = bank.arrays(entries, 4)
    assert arrays.alive.tolist() == [True, True, False, False]
    assert arrays.section.tolist() == [HINT, SKILL, 0, 0]
    assert arrays.uses.tolist() == [3, 0, 0, 0] and arrays.wins.tolist() == [2, 0, 0, 0]
    assert arrays.uses.dtype == arrays.wins.dtype == np.int32
    assert words.texts == ("egg: fridge", "open doors", "", "")
    assert words.task_types == ("", "heat", "", "")


def test_more_entries_than_slots():
    with pytest.raises(ValueError, match="bank: 2 entries, but capacity=1 slots"):
        bank.arrays((entry(), entry()), 1)


def test_lessons_become_entries_without_a_record():
    lessons = (Lesson(SKILL, "heat", "open doors"),)
    assert bank.from_lessons(lessons) == (
        Entry(SKILL, "heat", "open doors", 0, 0, 0, {"policy": "manual"}),
    )
