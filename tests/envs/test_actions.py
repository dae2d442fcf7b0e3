"""The response grammar. Where the original reads a response otherwise, it is said."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evoharness_jax.envs import actions
from evoharness_jax.types import COMMIT, ENV, META_VERBS, NOTE, RECALL, TRACK


def act(action):
    return actions.parse(f"<action>{action}</action>")


@pytest.mark.parametrize(
    "action, verb, argument",
    [
        ("track[egg]", TRACK, "egg"),
        ("track [egg]", TRACK, "egg"),
        ("track egg", TRACK, "egg"),
        ("Recall [X]", RECALL, "X"),
        ("NOTE Eggs are cold", NOTE, "Eggs are cold"),
        ("commit find egg", COMMIT, "find egg"),
        ("commit [find egg", COMMIT, "find egg"),  # never closed: to the end
        ("track [egg] now", TRACK, "egg"),
        ("commit [a [b] c]", COMMIT, "a [b] c"),
        ("commit [a] [b]", COMMIT, "a] [b"),  # to the last bracket
        ("commit [ a | b ]", COMMIT, "a | b"),
        ("note", NOTE, ""),
        ("note []", NOTE, ""),
        ("note [", NOTE, ""),
        # The original keeps only what stands in brackets, and so loses the word.
        ("track egg [1]", TRACK, "egg [1]"),
        # The original looks for a space alone, and passes these two to the game.
        ("track\tegg", TRACK, "egg"),
        ("track\n[egg\n1]", TRACK, "egg\n1"),
    ],
)
def test_meta_actions(action, verb, argument):
    move = act(action)
    assert (move.verb, move.argument, move.well_formed) == (verb, argument, True)


@pytest.mark.parametrize(
    "action",
    [
        "go to fridge 1",
        "track(egg)",
        "commit: x",
        "[recall x]",
        "tracks egg",
        "committed",
        "take note 1",
        "no te",
    ],
)
def test_environment_actions(action):
    move = act(action)
    assert (move.verb, move.text, move.argument) == (ENV, action, "")
    assert move.well_formed


@pytest.mark.parametrize("verb", META_VERBS)
def test_without_tools_their_verbs_go_to_the_environment(verb):
    move = actions.parse(f"<action>{verb} [x]</action>", tools=False)
    assert (move.verb, move.text, move.well_formed) == (ENV, f"{verb} [x]", True)


@pytest.mark.parametrize(
    "response, text, thought, well_formed",
    [
        # Case stays: the original lowers it, notes and names included. Environments
        # here find a command whatever its case.
        (
            "<think>hm </think><action>Go To Fridge 1</action>",
            "Go To Fridge 1",
            "hm",
            True,
        ),
        ("hm\n<action>inc</action>", "inc", "hm", True),
        ("<action>inc</action> done", "inc", "", True),
        ("<ACTION>inc</Action>", "inc", "", True),
        ("<action>\n go\n north </action>", "go\n north", "", True),
        ("""<action> "'`inc`'" </action>""", "inc", "", True),
        ("so <think>a</think> b <think>c</think><action>i</action>", "i", "a", True),
        ("<think>open <action>inc</action>", "inc", "<think>open", True),
        # Malformed: none, an empty one, or more than one. The first is read.
        ("inc", "", "inc", False),
        ("", "", "", False),
        ("<action>inc", "", "<action>inc", False),
        ("<think>a</think>", "", "<think>a</think>", False),
        ("<action> </action>", "", "", False),
        ("""<action>''</action>""", "", "", False),
        ("<action>inc</action><action>dec</action>", "inc", "", False),
        ("<action></action><action>dec</action>", "", "", False),
    ],
)
def test_responses(response, text, thought, well_formed):
    move = actions.parse(response)
    assert (move.text, move.thought, move.well_formed) == (text, thought, well_formed)
    assert move.verb == ENV


def test_two_blocks_with_a_call_first_are_a_malformed_call():
    move = actions.parse("<action>track [a]</action><action>inc</action>")
    assert (move.verb, move.argument, move.well_formed) == (TRACK, "a", False)


@pytest.mark.parametrize("thought", ["", "two  words"])
@pytest.mark.parametrize("action", ["go to fridge 1", "commit [a [b] c]"])
def test_what_is_written_is_read_back(action, thought):
    move = actions.parse(actions.write(action, thought))
    assert (move.text, move.thought, move.well_formed) == (action, thought, True)


@given(st.text(alphabet="<>/actionthk [](){}'\"\n|x", max_size=60), st.booleans())
def test_any_response_can_be_read(response, tools):
    move = actions.parse(response, tools)
    assert move.verb in (ENV, TRACK, COMMIT, RECALL, NOTE)
    assert tools or move.verb == ENV
    assert move.text or not move.well_formed
