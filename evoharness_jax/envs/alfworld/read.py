"""Read ALFWorld's feedback: raw text -> what it says about the world, as an Event.

Every sentence of both data releases is matched by its own pattern, wherever it stands
in the feedback. Where the agent stands is taken from what it sees there: the older
release words an arrival by a spot ("loc 12") that has no other use. Names are learnt
as they are written ("apple 1"). What was refused ("Nothing happens.") says nothing.
Facts are phrases that feedback proves, in the words a subgoal would use, for the type
("heat apple") and for the thing ("heat apple 1").
"""

import re

from evoharness_jax.bpe import lexicon as lexicon_
from evoharness_jax.bpe.lexicon import Lexicon
from evoharness_jax.envs.domain import Observation
from evoharness_jax.types import AGENT, AT, HELD, IN, NONE, ON, PLACE, THING, Event

# Columns of Belief, each with its word where true and where false.
ATTRIBUTES = (
    ("open", "closed"),
    ("hot", ""),
    ("cold", ""),
    ("clean", ""),
    ("sliced", ""),
    ("lit", ""),
)
OPEN, HOT, COLD, CLEAN, SLICED, LIT = range(len(ATTRIBUTES))
# Places with a door: what is put there is in them, not on them.
CLOSABLE = frozenset("cabinet drawer fridge microwave safe".split())

NAME = r"[a-z]+ \d+"
INTRO = re.compile(r"Looking quickly around you, you see (.*?)\.")
ON_IT = re.compile(rf"On the ({NAME}), you see (.*?)\.")
OPENED = re.compile(rf"The ({NAME}) is open\. In it, you see (.*?)\.")
CLOSED = re.compile(rf"The ({NAME}) is closed\.")
CLOSE = re.compile(rf"You close the ({NAME})\.")
FACING = re.compile(r"You are facing the (.*?)\. Next to it, you see (.*?)\.")
TAKE = re.compile(rf"You pick up the ({NAME})(?: from the ({NAME}))?\.")
PUT = re.compile(rf"You (?:move|put) the ({NAME}) (?:to|in/on|in|on) the ({NAME})\.")
CHANGE = re.compile(rf"You (heat|cool|clean) the ({NAME}) using the ({NAME})\.")
SLICE = re.compile(rf"You sliced? the ({NAME}) with the ({NAME})\.")
SWITCH = re.compile(rf"You turn (on|off) the ({NAME})\.")
CARRY = re.compile(r"You are carrying: (.*?)\.")
CARRY_NOTHING = re.compile(r"You are not carrying anything\.")
THIS_IS = re.compile(
    rf"This is a ((?:(?:hot|cool|cold|clean|sliced) |and )+)({NAME})\."
)
NORMAL = re.compile(rf"This is a normal ({NAME})\. In it, you see (.*?)\.")
NOT_SPECIAL = re.compile(rf"There's nothing special about ({NAME})\.")
LAMP_IS = re.compile(rf"This ({NAME}) is (on|off)\.")
LISTED = re.compile(NAME)

BECOMES = {
    "heat": ((HOT, 1), (COLD, 0)),
    "cool": ((COLD, 1), (HOT, 0)),
    "clean": ((CLEAN, 1),),
}
ADJECTIVES = {"hot": HOT, "cool": COLD, "cold": COLD, "clean": CLEAN, "sliced": SLICED}


class _Reading:
    """Effects under construction. Local to one call of `read`."""

    def __init__(self, lexicon: Lexicon):
        self.lexicon = lexicon
        self.effects = lexicon_.no_effects()
        self.facts: list[str] = []
        self.dropped = 0

    def see(self, word: str, role: int) -> int:
        self.lexicon, index = lexicon_.name(self.lexicon, word)
        if index == NONE:
            self.dropped += 1
        else:
            self.effects.seen[index] = True
            self.effects.role[index] = role
        return index

    def put(self, index: int, place: int, relation: int) -> None:
        if index != NONE and place != NONE:
            self.effects.place[index] = place
            self.effects.relation[index] = relation

    def set(self, index: int, column: int, value: int) -> None:
        if index != NONE:
            self.effects.attr[index, column] = value

    def stand(self, word: str) -> int:
        place = self.see(word, PLACE)
        self.put(AGENT, place, AT)
        self.effects.seen[AGENT] = True
        self.facts += [f"{do} {of}" for do in ("go to", "find") for of in _both(word)]
        return place

    def list(self, place: int, words: str, relation: int) -> None:
        if place != NONE:
            self.effects.listed[place] = True
        for word in LISTED.findall(words):
            self.put(self.see(word, THING), place, relation)
            self.facts += [f"find {of}" for of in _both(word)]


def read(
    lexicon: Lexicon, action: str, observation: Observation
) -> tuple[Lexicon, Event]:
    """Read the feedback on an action, or the opening feedback of an episode."""
    reading = _Reading(lexicon)
    if observation.valid:
        _places(reading, observation.text)
        _things(reading, observation.text)
    if observation.won:
        reading.facts.insert(0, observation.objective)
    event = lexicon_.env_event(
        reading.effects,
        lexicon_.proved(reading.lexicon, reading.facts),
        observation,
        reading.dropped,
    )
    return reading.lexicon, event


def _places(reading: _Reading, text: str) -> None:
    """Read where the agent stands, and what a place shows."""
    if found := INTRO.search(text):
        for word in LISTED.findall(found[1]):
            reading.see(word, PLACE)
    if found := FACING.search(text):
        # Several places can share a spot: then this does not say at which one.
        words = LISTED.findall(found[1])
        places = [reading.see(word, PLACE) for word in words]
        if len(words) == 1:
            reading.stand(words[0])
        for word in LISTED.findall(found[2]):
            reading.put(reading.see(word, THING), places[0], AT)
    if found := ON_IT.search(text):
        reading.list(reading.stand(found[1]), found[2], ON)
    if found := OPENED.search(text):
        place = reading.stand(found[1])
        reading.set(place, OPEN, 1)
        reading.list(place, found[2], IN)
        reading.facts += [f"open {of}" for of in _both(found[1])]
    if found := CLOSED.search(text) or CLOSE.search(text):
        place = reading.stand(found[1])
        reading.set(place, OPEN, 0)
        reading.facts += [f"close {of}" for of in _both(found[1])]


def _things(reading: _Reading, text: str) -> None:
    """Read what became of a thing, and what the agent carries."""
    facts = reading.facts
    if found := TAKE.search(text):
        thing = reading.see(found[1], THING)
        reading.put(thing, AGENT, HELD)
        if found[2]:
            reading.stand(found[2])
        ways = ("find", "take", "pick up", "get")
        facts += [f"{do} {of}" for do in ways for of in _both(found[1])]
    if found := PUT.search(text):
        thing, place = reading.see(found[1], THING), reading.stand(found[2])
        closable = found[2].split()[0] in CLOSABLE
        reading.put(thing, place, IN if closable else ON)
        facts += _put_facts(found[1], found[2])
    if found := CHANGE.search(text):
        thing = reading.see(found[2], THING)
        reading.stand(found[3])
        for column, value in BECOMES[found[1]]:
            reading.set(thing, column, value)
        facts += [f"{found[1]} {of}" for of in _both(found[2])]
    if found := SLICE.search(text):
        reading.set(reading.see(found[1], THING), SLICED, 1)
        reading.see(found[2], THING)
        facts += [f"slice {of}" for of in _both(found[1])]
    if found := SWITCH.search(text):
        reading.set(reading.see(found[2], THING), LIT, int(found[1] == "on"))
        ways = ("use", f"turn {found[1]}")
        facts += [f"{do} {of}" for do in ways for of in _both(found[2])]
    if found := CARRY.search(text):
        reading.list(AGENT, found[1], HELD)
    elif CARRY_NOTHING.search(text):
        reading.list(AGENT, "", HELD)
    _examined(reading, text)


def _examined(reading: _Reading, text: str) -> None:
    if found := NORMAL.search(text):
        reading.list(reading.see(found[1], THING), found[2], IN)
    if found := LAMP_IS.search(text):
        reading.set(reading.see(found[1], THING), LIT, int(found[2] == "on"))
    # An examined thing names every state it has: the others it has not.
    if found := THIS_IS.search(text):
        words, thing = found[1].split(), reading.see(found[2], THING)
    elif found := NOT_SPECIAL.search(text):
        words, thing = [], reading.see(found[1], THING)
    else:
        return
    for column in (HOT, COLD, CLEAN, SLICED):
        reading.set(thing, column, 0)
    for word in words:
        if word in ADJECTIVES:
            reading.set(thing, ADJECTIVES[word], 1)


def _put_facts(thing: str, place: str) -> list[str]:
    kinds = (thing.split()[0], place.split()[0])
    pairs = ((thing, place), kinds)
    return [
        f"{do} {what} {link} {where}"
        for do in ("put", "place", "move")
        for link in ("in", "on", "to")
        for what, where in pairs
    ]


def _both(name: str) -> tuple[str, str]:
    """Return a name and its type."""
    return name, name.rpartition(" ")[0]
