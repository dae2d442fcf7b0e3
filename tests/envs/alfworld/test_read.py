"""The reader: literal feedback of both data releases, and what it says."""

import numpy as np
import pytest

from evoharness_jax.bpe import lexicon as lexicon_
from evoharness_jax.envs.alfworld import goals
from evoharness_jax.envs.alfworld.domain import offer, show, task_type
from evoharness_jax.envs.alfworld.read import ATTRIBUTES, read
from evoharness_jax.envs.domain import Observation
from evoharness_jax.types import AT, HELD, IN, NONE, ON, PLACE, SAME, THING, N

INTRO = (
    "-= Welcome to TextWorld, ALFRED! =-\n\nYou are in the middle of a room. Looking "
    "quickly around you, you see a cabinet 10, a cabinet 9, and a toaster 1.\n\n"
    "Your task is to: heat some apple and put it in diningtable."
)
WORDS = {IN: "in", ON: "on", HELD: "held", AT: "at"}


def feedback(text, valid=True, won=False):
    objective = "heat some apple and put it in diningtable"
    return Observation(text, (), objective, won, won, float(won), valid, {})


def said(text, lexicon=None, **more):
    """Return the lexicon, and the effects of one feedback as a dict of words."""
    lexicon = lexicon or lexicon_.empty(ATTRIBUTES)
    lexicon, event = read(lexicon, "", feedback(text, **more))
    effects, found = event.effects, {}
    for index in np.flatnonzero(effects.seen):
        facts = []
        if effects.place[index] != SAME:
            place = lexicon.names[effects.place[index]]
            facts.append(f"{WORDS[int(effects.relation[index])]} {place}")
        for column, (true, _) in enumerate(ATTRIBUTES):
            value = effects.attr[index, column]
            facts += [true if value else f"not {true}"] if value >= 0 else []
        if effects.listed[index]:
            facts.append("listed")
        found[lexicon.names[index]] = ", ".join(facts)
    return lexicon, found


def test_the_opening_names_places_not_yet_looked_into():
    lexicon, found = said(INTRO)
    assert found == {"cabinet 10": "", "cabinet 9": "", "toaster 1": ""}
    _, event = read(lexicon, "", feedback(INTRO))
    assert set(event.effects.role[1:4]) == {PLACE}
    assert not event.effects.listed.any()


@pytest.mark.parametrize("arrival", ["diningtable 2", "loc 12"])
def test_arrival_lists_a_surface_in_both_releases(arrival):
    text = (
        f"You arrive at {arrival}. On the diningtable 2, you see a apple 1, "
        "a bread 3, and a soapbottle 1."
    )
    lexicon, found = said(text)
    assert found == {
        "you": "at diningtable 2",
        "diningtable 2": "listed",
        "apple 1": "on diningtable 2",
        "bread 3": "on diningtable 2",
        "soapbottle 1": "on diningtable 2",
    }
    roles = read(lexicon, "", feedback(text))[1].effects.role
    assert roles[lexicon.name_ids["apple 1"]] == THING
    assert roles[lexicon.name_ids["diningtable 2"]] == PLACE


PLACES = [
    (
        "You arrive at microwave 1. The microwave 1 is closed.",
        {"you": "at microwave 1", "microwave 1": "not open"},
    ),
    (
        "You arrive at loc 3. The fridge 1 is open. In it, you see a egg 2.",
        {
            "you": "at fridge 1",
            "fridge 1": "open, listed",
            "egg 2": "in fridge 1",
        },
    ),
    (
        "You arrive at shelf 1. On the shelf 1, you see nothing.",
        {"you": "at shelf 1", "shelf 1": "listed"},
    ),
    (
        "You open the drawer 1. The drawer 1 is open. In it, you see a keychain 2.",
        {"you": "at drawer 1", "drawer 1": "open, listed", "keychain 2": "in drawer 1"},
    ),
    (
        "You open the drawer 1. The drawer 1 is open. In it, you see nothing.",
        {"you": "at drawer 1", "drawer 1": "open, listed"},
    ),
    (
        "You close the drawer 3.",
        {"you": "at drawer 3", "drawer 3": "not open"},
    ),
    (
        "The safe 1 is closed.",
        {"you": "at safe 1", "safe 1": "not open"},
    ),
    (
        "On the bed 1, you see a book 1, and a pillow 2.",
        {
            "you": "at bed 1",
            "bed 1": "listed",
            "book 1": "on bed 1",
            "pillow 2": "on bed 1",
        },
    ),
    (
        "You are facing the armchair 1. Next to it, you see nothing.",
        {"you": "at armchair 1", "armchair 1": ""},
    ),
    # Several places share a spot: which of them the agent is at stays as it was.
    (
        "You are facing the stoveburner 2, and stoveburner 1. Next to it, you see "
        "nothing.",
        {"stoveburner 2": "", "stoveburner 1": ""},
    ),
    (
        "You are in the middle of a room. Looking quickly around you, you see nothing.",
        {},
    ),
]
THINGS = [
    (
        "You pick up the apple 1 from the diningtable 2.",
        {"you": "at diningtable 2", "diningtable 2": "", "apple 1": "held you"},
    ),
    (
        "You move the apple 1 to the diningtable 2.",
        {
            "you": "at diningtable 2",
            "diningtable 2": "",
            "apple 1": "on diningtable 2",
        },
    ),
    (
        "You put the apple 1 in/on the fridge 1.",
        {"you": "at fridge 1", "fridge 1": "", "apple 1": "in fridge 1"},
    ),
    (
        "You heat the apple 1 using the microwave 1.",
        {"you": "at microwave 1", "microwave 1": "", "apple 1": "hot, not cold"},
    ),
    (
        "You cool the apple 1 using the fridge 1.",
        {"you": "at fridge 1", "fridge 1": "", "apple 1": "not hot, cold"},
    ),
    (
        "You clean the apple 1 using the sinkbasin 1.",
        {"you": "at sinkbasin 1", "sinkbasin 1": "", "apple 1": "clean"},
    ),
    ("You sliced the apple 1 with the knife 2.", {"apple 1": "sliced", "knife 2": ""}),
    ("You turn on the desklamp 1.", {"desklamp 1": "lit"}),
    ("You turn off the desklamp 1.", {"desklamp 1": "not lit"}),
    ("This desklamp 1 is off.", {"desklamp 1": "not lit"}),
    ("You are carrying: a book 1.", {"book 1": "held you"}),
    ("You are not carrying anything.", {}),
    (
        "This is a hot apple 1.",
        {"apple 1": "hot, not cold, not clean, not sliced"},
    ),
    (
        "This is a cold apple 1.",
        {"apple 1": "not hot, cold, not clean, not sliced"},
    ),
    (
        "This is a cool and clean sliced apple 1.",
        {"apple 1": "not hot, cold, clean, sliced"},
    ),
    (
        "There's nothing special about book 1.",
        {"book 1": "not hot, not cold, not clean, not sliced"},
    ),
    (
        "This is a normal mug 1. In it, you see nothing.",
        {"mug 1": "listed"},
    ),
    (
        "This is a normal pot 1. In it, you see a spoon 1.",
        {"pot 1": "listed", "spoon 1": "in pot 1"},
    ),
    ("Available commands:\n  look:   look around your current location\n", {}),
]


@pytest.mark.parametrize("text, expected", PLACES + THINGS)
def test_every_sentence(text, expected):
    assert said(text)[1] == expected


def test_empty_hands_are_a_listing_of_the_hand():
    _, event = read(lexicon_.empty(), "", feedback("You are not carrying anything."))
    assert event.effects.listed[0] and not event.effects.listed[1:].any()


def test_a_refusal_says_nothing():
    _, found = said("Nothing happens.", valid=False)
    assert found == {}
    # Nor do words that stand beside a refusal.
    _, found = said("On the bed 1, you see a book 1.", valid=False)
    assert found == {}


@pytest.mark.parametrize(
    "phrase, text",
    [
        ("find the apple", "On the bed 1, you see a apple 1."),
        ("find apple 1", "You open the safe 1. The safe 1 is open. In it, you see a "
         "apple 1."),
        ("find the safe", "The safe 1 is closed."),
        ("take an apple", "You pick up the apple 1 from the bed 1."),
        ("pick up apple 1", "You pick up the apple 1 from the bed 1."),
        ("heat the apple", "You heat the apple 1 using the microwave 1."),
        ("cool apple", "You cool the apple 1 using the fridge 1."),
        ("clean apple 1", "You clean the apple 1 using the sinkbasin 1."),
        ("put apple in fridge", "You put the apple 1 in/on the fridge 1."),
        ("put apple on bed", "You move the apple 1 to the bed 1."),
        ("move apple 1 to bed 1", "You move the apple 1 to the bed 1."),
        ("use the desklamp", "You turn on the desklamp 1."),
        ("turn on desklamp", "You turn on the desklamp 1."),
        ("open the safe", "You open the safe 1. The safe 1 is open. In it, you see "
         "nothing."),
        ("go to bed 1", "On the bed 1, you see nothing."),
    ],
)  # fmt: skip
def test_feedback_proves_a_subgoal_in_its_own_words(phrase, text):
    lexicon, key = lexicon_.text(lexicon_.empty(), lexicon_.normalise(phrase))
    _, event = read(lexicon, "", feedback(text))
    assert key in event.proved
    other, _ = lexicon_.text(lexicon_.empty(), "heat bread")
    assert (read(other, "", feedback(text))[1].proved == NONE).all()


def test_a_win_proves_the_objective():
    words = lexicon_.normalise("heat some apple and put it in diningtable")
    lexicon, key = lexicon_.text(lexicon_.empty(), words)
    text = "You move the apple 1 to the diningtable 1."
    assert key not in read(lexicon, "", feedback(text))[1].proved
    event = read(lexicon, "", feedback(text, won=True))[1]
    assert key in event.proved and bool(event.won)


def test_names_beyond_the_capacity_are_counted():
    listing = ", ".join(f"a mug {n}" for n in range(N))
    _, event = read(lexicon_.empty(), "", feedback(f"On the bed 1, you see {listing}."))
    assert int(event.dropped) == 2  # the agent and the bed have taken two


def test_the_policy_sees_neither_banner_nor_goal():
    assert show(INTRO) == (
        "You are in the middle of a room. Looking quickly around you, you see "
        "a cabinet 10, a cabinet 9, and a toaster 1."
    )
    assert show("You close the drawer 3.") == "You close the drawer 3."


def test_commands_are_offered_in_three_styles():
    commands = ("examine bed 1", "go to desk 1", "help", "inventory", "look")
    assert offer(commands, "full") == commands[:2] + commands[3:]
    assert offer(commands, "local") == ("examine bed 1",)
    assert offer(commands, "none") == ()
    with pytest.raises(ValueError, match="'some'"):
        offer(commands, "some")


@pytest.mark.parametrize(
    "objective, type, rest",
    [
        ("put a mug in desk", goals.PLACE, ("mug", "desk", "", 1)),
        ("put some mug on desk", goals.PLACE, ("mug", "desk", "", 1)),
        ("clean some mug and put it in desk", goals.CLEAN, ("mug", "desk", "clean", 1)),
        ("put a clean mug in desk", goals.CLEAN, ("mug", "desk", "clean", 1)),
        ("heat some mug and put it in desk", goals.HEAT, ("mug", "desk", "hot", 1)),
        ("put a hot mug in desk", goals.HEAT, ("mug", "desk", "hot", 1)),
        ("cool some mug and put it in desk", goals.COOL, ("mug", "desk", "cold", 1)),
        ("put a cool mug in desk", goals.COOL, ("mug", "desk", "cold", 1)),
        ("look at mug under the desklamp", goals.LOOK, ("mug", "desklamp", "", 1)),
        ("examine the mug with the desklamp", goals.LOOK, ("mug", "desklamp", "", 1)),
        ("put two mug in desk", goals.TWO, ("mug", "desk", "", 2)),
        ("find two mug and put them in desk", goals.TWO, ("mug", "desk", "", 2)),
    ],
)
def test_both_wordings_of_every_task_type(objective, type, rest):
    assert goals.goal(objective) == (type, *rest)
    assert task_type(objective) == type


def test_an_unknown_objective_is_named():
    with pytest.raises(ValueError, match="'juggle three mugs'"):
        task_type("juggle three mugs")
