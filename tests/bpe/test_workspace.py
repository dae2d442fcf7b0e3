"""The workspace: checks in their order, counters, and which part a verb changes."""

from functools import cache, partial

import jax
import numpy as np
import pytest

from evoharness_jax.bpe import experience
from evoharness_jax.bpe import lexicon as lexicon_
from evoharness_jax.bpe import workspace as workspace_
from evoharness_jax.bpe.workspace import (
    BLANK,
    DISABLED,
    INVALID,
    MALFORMED,
    OK,
    SPENT,
    Rules,
)
from evoharness_jax.types import (
    AT,
    COMMIT,
    ENV,
    META_VERBS,
    NONE,
    NOTE,
    RECALL,
    TRACK,
    K,
)

TEXTS = ("egg: fridge", "mug: desk", "egg: pan")
WORDS = lexicon_.index_bank(TEXTS, ("",) * 3)
BANK = experience.empty_bank(3).replace(alive=np.ones(3, bool))
META = (TRACK, COMMIT, RECALL, NOTE)


@cache
def compiled(rules):
    if rules == Rules():
        return jax.jit(partial(workspace_.step, rules))
    # Compiling costs more than the few steps that the other rules are asked for.
    return lambda *args: workspace_.step(rules, *jax.device_put(args))


class World:
    """A workspace with its lexicon: words in, (tag, reply) out."""

    def __init__(self, **rules):
        self.lexicon = lexicon_.empty()
        self.workspace = workspace_.empty(3)
        self.step = compiled(Rules(**rules))

    def take(self, event):
        out = self.step(BANK, self.workspace, event)
        self.workspace, reply = jax.device_get(out)
        return int(reply.tag), reply

    def call(self, verb, argument="", **fields):
        read = lexicon_.read_meta(self.lexicon, WORDS, verb, argument)
        self.lexicon, event = read
        return self.take(event.replace(**fields))

    def act(self, valid=True, seen=(), **fields):
        """Act; what is seen stands at the shelf."""
        effects = lexicon_.no_effects()
        for word in ("shelf", *seen):
            self.lexicon, index = lexicon_.name(self.lexicon, word)
            effects.seen[index] = True
            if word != "shelf":
                effects.place[index], effects.relation[index] = 1, AT
        event = lexicon_.null_event(3).replace(
            verb=np.int8(ENV),
            well_formed=np.bool_(True),
            valid=np.bool_(valid),
            effects=effects,
        )
        return self.take(event.replace(**fields))

    def counts(self):
        """attempted, executed, failed, each by verb."""
        w = self.workspace
        return [x.tolist() for x in (w.attempted, w.executed, w.failed)]


def same(one, two):
    jax.tree.map(np.testing.assert_array_equal, one, two)


NO_CALLS = [0, 0, 0, 0]


def only(verb, count=1):
    return [count * (verb == v) for v in META]


@pytest.mark.parametrize("verb", META, ids=META_VERBS)
def test_a_call_is_counted_and_leaves_the_other_parts(verb):
    world = World()
    world.act(seen=["egg"])
    before = world.workspace
    tag, reply = world.call(verb, "egg")
    assert (tag, int(reply.verb)) == (OK, verb)
    assert world.counts() == [only(verb), only(verb), NO_CALLS]
    now = world.workspace
    same(now.belief, before.belief)
    if verb != COMMIT:
        same(now.progress, before.progress)
    if verb != RECALL:
        same(now.hints, before.hints)
    if verb not in (RECALL, NOTE):
        same(now.evidence, before.evidence)


def test_track_answers_and_changes_nothing():
    world = World()
    world.act(seen=["egg", "mug"])
    tag, reply = world.call(TRACK, "mug")
    assert tag == OK and reply.left == 0
    assert reply.nodes.tolist() == [3] + [NONE] * (K - 1)
    assert reply.slots.tolist() == [NONE] * K
    tag, reply = world.call(TRACK, "spoon")
    assert tag == OK and reply.nodes.tolist() == [NONE] * K


def test_only_the_reply_to_a_track_names_nodes():
    world = World()
    world.act(seen=["egg"])
    for verb in (COMMIT, RECALL, NOTE):
        _, reply = world.call(verb, "egg")
        assert reply.nodes.tolist() == [NONE] * K


def test_hints_stand_until_the_next_recall_that_finds_something():
    world = World()
    _, reply = world.call(RECALL, "egg")
    assert reply.slots.tolist()[:3] == [0, 2, NONE]
    assert world.workspace.hints.tolist()[:3] == [0, 2, NONE]
    tag, reply = world.call(RECALL, "spoon")
    assert tag == OK and reply.slots.tolist() == [NONE] * K
    assert world.workspace.hints.tolist()[:3] == [0, 2, NONE]
    world.act()
    world.call(RECALL, "mug")
    assert world.workspace.hints.tolist()[:2] == [1, NONE]
    assert world.workspace.evidence.uses.tolist() == [1, 1, 1]


def test_top_k_limits_a_recall():
    world = World(top_k=1)
    _, reply = world.call(RECALL, "egg mug")
    assert reply.slots.tolist() == [1] + [NONE] * (K - 1)


def refused(world, verb, argument, want, **fields):
    """A refused call changes nothing but the counters."""
    before = world.workspace
    tag, reply = world.call(verb, argument, **fields)
    assert tag == want
    assert reply.nodes.tolist() == reply.slots.tolist() == [NONE] * K
    after = world.workspace
    calls = np.array(only(verb))
    same(after.attempted, before.attempted + calls)
    same(after.failed, before.failed + calls)
    after = after.replace(attempted=before.attempted, failed=before.failed)
    same(after, before)


@pytest.mark.parametrize("verb", META, ids=META_VERBS)
def test_a_malformed_call_is_refused(verb):
    world = World()
    world.act(seen=["egg"])
    refused(world, verb, "egg", MALFORMED, well_formed=np.bool_(False))


@pytest.mark.parametrize(
    "module, verbs",
    [("belief", [TRACK]), ("progress", [COMMIT]), ("experience", [RECALL, NOTE])],
)
def test_a_module_that_is_off_refuses_its_verbs(module, verbs):
    world = World(**{module: False})
    world.act(seen=["egg"])
    for verb in META:
        if verb in verbs:
            refused(world, verb, "egg", DISABLED)
        else:
            assert world.call(verb, "egg")[0] == OK


def test_calls_beyond_the_budget_are_refused():
    world = World(max_meta=2)
    assert world.call(TRACK)[0] == OK
    assert world.call(RECALL, "egg")[0] == OK
    refused(world, TRACK, "", SPENT)
    refused(world, NOTE, "x", SPENT)
    assert world.counts() == [[2, 0, 1, 1], [1, 0, 1, 0], [1, 0, 0, 1]]


def test_refused_calls_use_the_budget_up_too():
    world = World(max_meta=1)
    refused(world, COMMIT, "", BLANK)
    refused(world, TRACK, "", SPENT)


def test_a_budget_of_none_refuses_all():
    refused(World(max_meta=0), TRACK, "", SPENT)


@pytest.mark.parametrize("verb", [COMMIT, NOTE])
def test_commit_and_note_need_words(verb):
    for argument in ("", " ", "|" if verb == COMMIT else "\n"):
        refused(World(), verb, argument, BLANK)


@pytest.mark.parametrize("verb", [TRACK, RECALL])
def test_track_and_recall_do_not(verb):
    assert World().call(verb)[0] == OK


def test_checks_come_in_order_format_module_budget_argument():
    off = World(progress=False, max_meta=0)
    refused(off, COMMIT, "", MALFORMED, well_formed=np.bool_(False))
    refused(off, COMMIT, "", DISABLED)
    refused(World(max_meta=0), COMMIT, "", SPENT)
    refused(World(), COMMIT, "", BLANK)


def test_accepted_feedback_is_absorbed_and_proves():
    world = World()
    world.call(COMMIT, "find egg")
    key = lexicon_.proved(world.lexicon, ["find egg"])
    proved = np.array([*key, NONE, NONE, NONE], np.int32)
    tag, reply = world.act(seen=["egg"], proved=proved)
    assert (tag, int(reply.verb)) == (OK, ENV)
    assert world.workspace.belief.clock == 1
    assert world.workspace.progress.evidence[0] == 0  # the clock of that observation
    assert world.counts()[0] == only(COMMIT)  # an environment action is no call


def test_refused_feedback_is_not_absorbed():
    world = World()
    before = world.workspace
    tag, _ = world.act(valid=False, seen=["egg"])
    assert tag == INVALID
    same(world.workspace, before)


@pytest.mark.parametrize("valid, want", [(True, OK), (False, MALFORMED)])
def test_a_malformed_action_counts_for_what_the_environment_made_of_it(valid, want):
    world = World()
    tag, _ = world.act(valid=valid, seen=["egg"], well_formed=np.bool_(False))
    assert tag == want
    assert world.workspace.belief.clock == int(valid)


def test_what_does_not_fit_is_counted():
    world = World()
    world.call(COMMIT, "|".join("bcdefg"))  # two phrases too many
    assert world.workspace.dropped == 2
    world.call(COMMIT, "|".join("hijk"))
    world.call(COMMIT, "l|m")  # two open subgoals give way
    assert world.workspace.dropped == 4
    for n in range(17):  # one note too many
        world.call(NOTE, f"note {n}")
    assert world.workspace.dropped == 5
    world.act(dropped=np.int32(3))
    assert world.workspace.dropped == 8


def test_capacity_is_the_most_turns_there_can_be():
    assert Rules(max_turns=7).capacity == 7
    assert Rules(max_turns=7, charge=False, max_meta=3).capacity == 10
    assert Rules(max_turns=7, charge=False).capacity == 14
