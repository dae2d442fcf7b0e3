"""What the policy reads, letter for letter."""

from types import SimpleNamespace

import jax
import numpy as np
import pytest

from evoharness_jax.bpe import episode as episode_
from evoharness_jax.bpe import experience, views
from evoharness_jax.bpe import lexicon as lexicon_
from evoharness_jax.bpe.episode import Opening
from evoharness_jax.bpe.workspace import TAGS, Rules
from evoharness_jax.types import (
    AT,
    COMMIT,
    ENV,
    HELD,
    IN,
    NONE,
    NOTE,
    ON,
    PLACE,
    RECALL,
    THING,
    TRACK,
)

TEXTS = ("egg: fridge", "mug: desk", "open doors first")
WORDS = lexicon_.index_bank(TEXTS, ("",) * 3)
BANK = experience.empty_bank(3).replace(alive=np.ones(3, bool))
ATTRIBUTES = (("open", "closed"), ("hot", ""))
step = jax.jit(episode_.step, static_argnums=0)
RULES = Rules(max_turns=12, max_meta=9)


class World:
    """One episode in which everything is said in words."""

    def __init__(self, always_on=False, seen=None):
        self.lexicon = lexicon_.empty(ATTRIBUTES)
        for text in ("Heat the egg", "heat egg"):
            self.lexicon, _ = lexicon_.text(self.lexicon, text)
        event = self.feedback(seen or {}).replace(
            overlap=lexicon_.overlap(WORDS, "egg", "")
        )
        opening = Opening(np.bool_(always_on), np.int32(0), np.int32(1))
        start = jax.jit(episode_.start, static_argnums=0)
        self.episode = jax.device_get(start(RULES, BANK, event, opening))

    def feedback(self, seen, proves=(), **flags):
        """`seen`: name -> (role, place, relation, *attributes)."""
        effects = lexicon_.no_effects()
        for word, (role, place, relation, *attributes) in seen.items():
            self.lexicon, index = lexicon_.name(self.lexicon, word)
            effects.seen[index], effects.role[index] = True, role
            if place:
                self.lexicon, where = lexicon_.name(self.lexicon, place)
                effects.place[index], effects.relation[index] = where, relation
            for column, value in enumerate(attributes):
                effects.attr[index, column] = value
        for word in flags.pop("listed", ()):
            self.lexicon, index = lexicon_.name(self.lexicon, word)
            effects.listed[index] = True
        flags = {"valid": True, "won": False, "done": False, "score": 0.0} | flags
        keys = lexicon_.proved(self.lexicon, list(proves))
        event = lexicon_.env_event(effects, keys, SimpleNamespace(**flags))
        return event.replace(overlap=np.zeros(3, np.float32))

    def turn(self, action, event):
        self.lexicon, index = (
            lexicon_.text(self.lexicon, action)
            if action
            else (
                self.lexicon,
                NONE,
            )
        )
        event = event.replace(action=np.int32(index))
        self.episode = jax.device_get(step(RULES, BANK, self.episode, event))
        return views.reply(self.lexicon, WORDS, self.episode)

    def act(self, action="go", seen=None, **flags):
        return self.turn(action, self.feedback(seen or {}, **flags))

    def call(self, verb, argument="", **fields):
        read = lexicon_.read_meta(self.lexicon, WORDS, verb, argument)
        self.lexicon, event = read
        return self.turn(f"call {argument}".strip(), event.replace(**fields))

    def standing(self, always_on=False):
        return views.standing(self.lexicon, WORDS, self.episode, always_on)


KITCHEN = {
    "you": (0, "fridge 1", AT),
    "fridge 1": (PLACE, "", 0, 0),
    "desk 1": (PLACE, "", 0),
    "egg 1": (THING, "desk 1", ON),
    "mug 1": (THING, "you", HELD, -1, 1),
    "pan 1": (THING, "", 0),
    "pea 1": (THING, "fridge 1", IN),
}


def test_nodes():
    world = World(seen=KITCHEN)

    def node(word):
        belief = world.episode.workspace.belief
        return views.node(world.lexicon, belief, world.lexicon.name_ids[word])

    assert node("you") == "you: at fridge 1"
    assert node("egg 1") == "egg 1: on desk 1"
    assert node("mug 1") == "mug 1: in hand, hot"
    assert node("pan 1") == "pan 1: seen, place unknown"
    assert node("pea 1") == "pea 1: in fridge 1"
    assert node("fridge 1") == "fridge 1: closed, unexplored"
    world.act(seen={"fridge 1": (PLACE, "", 0, 1)}, listed=["fridge 1", "desk 1"])
    # The agent stands at the fridge, but is not in it.
    assert node("fridge 1") == "fridge 1: open, empty"
    assert node("desk 1") == "desk 1: empty"
    assert node("pea 1") == "pea 1: seen, place unknown"
    world.act(seen={"egg 1": (THING, "desk 1", ON, -1, 0)}, listed=["desk 1"])
    assert node("desk 1") == "desk 1: holds 1"
    assert node("egg 1") == "egg 1: on desk 1"


def test_plan():
    world = World()

    def plan():
        return views.plan(world.lexicon, world.episode.workspace.progress)

    assert plan() == ""
    reply = world.call(COMMIT, "find egg | blocked: open safe | drop: sing")
    assert reply == "plan updated"
    assert plan() == "[ ] find egg; [!] open safe; [-] sing"
    world.call(COMMIT, "done: find egg")
    assert plan() == "[?] find egg; [!] open safe; [-] sing"  # claimed, not proved
    world.act(proves=["find the egg"])
    assert plan() == "[x] find egg; [!] open safe; [-] sing"
    world.call(COMMIT, "reopen: find egg")
    assert plan() == "[ ] find egg; [!] open safe; [-] sing"


def test_replies():
    world = World(seen=KITCHEN)
    assert views.reply(world.lexicon, WORDS, world.episode) == ""
    assert world.call(TRACK, "egg") == "tracked: egg 1: on desk 1"
    assert world.call(TRACK, "spoon") == "tracked: nothing known"
    assert world.call(TRACK, "unexplored") == "unexplored: fridge 1, desk 1"
    assert world.call(TRACK) == (
        "tracked: you: at fridge 1; egg 1: on desk 1; mug 1: in hand, hot; "
        "pea 1: in fridge 1"
    )
    assert world.call(RECALL, "egg mug") == "recalled: egg: fridge; mug: desk"
    assert world.call(RECALL, "spoon") == "recalled: nothing fits"
    assert world.call(NOTE, "eggs are cold") == "noted: 1 kept"
    assert world.act() == ""


def test_track_says_how_much_it_leaves_out():
    many = {f"pea {n}": (THING, "desk 1", ON) for n in range(1, 12)}
    reply = World(seen=many).call(TRACK)
    peas = "; ".join(f"pea {n}: on desk 1" for n in range(1, 9))
    assert reply == f"tracked: {peas} (+3 more)"
    many = {f"box {n}": (PLACE, "", 0) for n in range(1, 11)}
    assert World(seen=many).call(TRACK, "unexplored") == (
        "unexplored: box 1, box 2, box 3, box 4, box 5, box 6, box 7, box 8 (+2 more)"
    )


def test_every_refusal_names_its_rule():
    assert set(views.REFUSALS) == set(range(1, len(TAGS)))
    world = World()
    assert world.act(valid=False) == "refused: not a command here"
    bad = {"well_formed": np.bool_(False)}
    format_line = "refused: write exactly one <action>...</action>"
    assert world.call(TRACK, **bad) == format_line
    nothing = lexicon_.null_event(3).replace(verb=np.int8(ENV))
    assert world.turn("", nothing) == format_line
    assert world.call(COMMIT) == "refused: this tool needs words in [ ]"
    for _ in range(7):
        world.call(TRACK)
    assert world.call(TRACK) == (
        "refused: no tool calls are left, act on the environment"
    )


def test_history():
    world = World()
    assert views.history(world.lexicon, world.episode, 6) == ""
    world.act("go to fridge 1")
    world.call(TRACK)
    world.act("jump", valid=False)
    nothing = lexicon_.null_event(3).replace(verb=np.int8(ENV))
    world.turn("", nothing)
    assert views.history(world.lexicon, world.episode, 6) == (
        "go to fridge 1; call; jump (refused); (none) (refused)"
    )
    assert views.history(world.lexicon, world.episode, 2) == (
        "jump (refused); (none) (refused)"
    )
    assert views.history(world.lexicon, world.episode, 0) == ""


def test_standing_inline():
    world = World(seen=KITCHEN)
    assert world.standing() == []
    world.call(COMMIT, "find egg")
    assert world.standing() == ["plan: [ ] find egg", "plan updated"]
    world.call(RECALL, "egg")  # the reply says the hints, once is enough
    assert world.standing() == ["plan: [ ] find egg", "recalled: egg: fridge"]
    world.act()
    assert world.standing() == ["plan: [ ] find egg", "hints: egg: fridge"]
    world.call(RECALL, "spoon")  # nothing new: the old hints stand
    assert world.standing() == [
        "plan: [ ] find egg",
        "hints: egg: fridge",
        "recalled: nothing fits",
    ]
    world.act(valid=False)
    assert world.standing()[2] == "refused: not a command here"


def test_standing_always_on():
    world = World(always_on=True, seen=KITCHEN)
    assert world.standing(always_on=True) == [
        "plan: [ ] Heat the egg",
        "hints: egg: fridge",
        "known: you: at fridge 1; egg 1: on desk 1; mug 1: in hand, hot; "
        "pea 1: in fridge 1; unexplored: fridge 1, desk 1",
    ]


def test_known_is_cut_at_the_most_recent():
    world = World(seen={f"pea {n}": (THING, "desk 1", ON) for n in range(1, 5)})
    boxes = {f"box {n}": (PLACE, "", 0) for n in range(1, 5)}
    world.act(seen={"pea 3": (THING, "desk 1", ON)} | boxes)
    belief = world.episode.workspace.belief
    assert views.known(world.lexicon, belief, most=2) == (
        "pea 3: on desk 1; pea 1: on desk 1; unexplored: box 1, box 2 (+2 more)"
    )


def test_known_of_nothing():
    world = World()
    assert views.known(world.lexicon, world.episode.workspace.belief) == ""
    assert World().standing(always_on=True) == []


def test_show():
    world = World(seen=KITCHEN)
    world.call(COMMIT, "find egg; quickly")
    world.call(NOTE, "eggs are cold")
    world.call(NOTE)
    assert views.show(world.lexicon, world.episode.workspace) == (
        """belief  (clock 1)
  you: at fridge 1
  fridge 1: closed, unexplored, seen at 0
  desk 1: unexplored, seen at 0
  egg 1: on desk 1, seen at 0
  mug 1: in hand, hot, seen at 0
  pan 1: seen, place unknown, seen at 0
  pea 1: in fridge 1, seen at 0
progress  (1 subgoals)
  [ ] find egg; quickly
experience  (1 notes)
  eggs are cold
calls  track 0/0, commit 1/1, recall 0/0, note 1/2  dropped 0"""
    )
    assert views.show(lexicon_.empty(), episode_workspace()).splitlines()[:2] == [
        "belief  (clock 0)",
        "  you: place unknown",
    ]


def episode_workspace():
    from evoharness_jax.bpe import workspace

    return jax.device_get(workspace.empty(3))


@pytest.mark.parametrize(
    "slots, want",
    [([1, 0, NONE], "mug: desk; egg: fridge"), ([NONE] * 3, "")],
)
def test_hints(slots, want):
    assert views.hints(WORDS, slots) == want
