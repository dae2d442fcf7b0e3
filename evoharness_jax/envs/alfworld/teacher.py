"""A teacher that knows no more than an agent can: its workspace and what it reads.

Stateless: every decision follows from one `Sight`, so that the teacher can take over
any episode at any turn, also one that it would not have led there. First the
workspace (plan, recall, track, note: each where it pays), then the household:

    wrong thing in hand -> put it down     right thing -> make it so, bring it there
    right thing known   -> take it         else search, the likeliest place first

What it needs and a reader of the prompt could not know (it stands neither in the
feedback nor in the last actions) it tracks first, so that whoever learns from it is
not taught to guess.
"""

import random

from evoharness_jax.bpe.workspace import SPENT
from evoharness_jax.envs.alfworld import habits
from evoharness_jax.envs.alfworld import mind as mind_
from evoharness_jax.envs.alfworld.goals import LOOK, TWO
from evoharness_jax.envs.alfworld.mind import Mind
from evoharness_jax.envs.alfworld.read import CLOSABLE
from evoharness_jax.envs.domain import Sight
from evoharness_jax.types import COMMIT, ENV, META_VERBS, NOTE, RECALL, TRACK

Decision = tuple[str, str]  # thought, action
# How to make a thing so, and where.
MAKE = {
    "clean": ("clean", "sinkbasin"),
    "hot": ("heat", "microwave"),
    "cold": ("cool", "fridge"),
}
SEARCH = ("go to ", "open ", "examine ")  # the steps of one
IN_MIND = 6  # last actions that a prompt shows
SEARCHED = 6  # places after which a search has lost count
TRACKS = 8  # of one episode
STUBBORN = 0.3  # of mistakes behind a refusal: the same again
LATE = 40  # turns after which no more are spent on tools


def decide(sight: Sight, noise: float = 0.0, thrift: float = 0.0) -> Decision:
    """Return a thought and the action that follows from it.

    Args:
        noise: how often to err on purpose, as a learner would: a detour, a command
            that is refused, a poor guess.
        thrift: how often to go without a plan, a hint, a note. What a policy has seen
            done both ways it does both ways, and can learn what it is worth. It never
            goes without `track`: who acts on what it has not asked has guessed.

    Both are drawn from `sight.seed`.
    """
    mind = mind_.mind_of(sight)
    draw = random.Random(sight.seed)
    errs, saves = draw.random() < noise, draw.random() < thrift
    if errs:
        return _err(mind, draw)
    called = _use_workspace(mind, sight.tools)
    if called and not (saves and not called[1].startswith("track")):
        return called
    return _act(mind) or _look_again(mind, draw)


# The workspace.


def _use_workspace(mind: Mind, tools: frozenset[str]) -> Decision | None:
    if len(mind.past) >= LATE:
        return None
    off = {verb for _, verb, tag in mind.past if tag == SPENT}
    off |= {verb for verb, name in enumerate(META_VERBS, 1) if name not in tools}
    ways = ((COMMIT, _plan), (NOTE, _learn), (RECALL, _remember), (TRACK, _look_up))
    found = (way(mind) for verb, way in ways if verb not in off)
    return next((decision for decision in found if decision), None)


def _plan(mind: Mind) -> Decision | None:
    """Plan before the first step, or not at all."""
    if any(verb in (COMMIT, ENV) for _, verb, _ in mind.past):
        return None
    thing, place, state = mind.goal.thing, mind.goal.place, mind.goal.state
    parts = [f"find {thing}"]
    if mind.goal.type == LOOK:
        parts += [f"take {thing}", f"use {place}"]
    elif mind.goal.type == TWO:
        parts += [f"take {thing}", mind.objective]
    elif state:
        parts += [f"{MAKE[state][0]} {thing}", f"put {thing} in {place}"]
    else:
        parts += [f"take {thing}", f"put {thing} in {place}"]
    return "A plan first.", f"commit [{' | '.join(parts)}]"


def _remember(mind: Mind) -> Decision | None:
    """Recall where a thing tends to be, once, before it is searched."""
    kind = mind_.sought(mind)
    asked = any(v == RECALL and f"[{kind}]" in text for text, v, _ in mind.past)
    begun = any(text.startswith(SEARCH) for text, _, _ in mind.past[-1:])
    if not kind or asked or begun:
        return None
    return f"Where does a {kind} tend to be?", f"recall [{kind}]"


def _look_up(mind: Mind) -> Decision | None:
    """Track what is needed and out of sight, or what is left of a search.

    That is asked where a search is long, and where one of its steps was refused: who
    goes where nothing is has lost count.
    """
    verbs = [verb for _, verb, _ in mind.past]
    if verbs.count(TRACK) >= TRACKS or verbs[-1:] == [TRACK]:
        return None
    if kind := mind_.sought(mind):
        since = 0
        for text, verb, _ in mind.past:
            since = 0 if verb == TRACK else since + text.startswith("go to ")
        refused = any(verb == ENV and tag for _, verb, tag in mind.past[-1:])
        if (since < SEARCHED and not refused) or len(mind.unexplored) < 2:
            return None
        return f"Where have I not looked for a {kind}?", "track [unexplored]"
    thing = mind_.needed(mind)
    if not thing or mind.age[thing] == 0 or mind.at[thing] == mind.here:
        return None
    kind = mind.things[thing]
    shown = [text for text, _, _ in mind.past[-IN_MIND:]]
    # It was put there, or looked up, not long ago.
    if any(text.startswith(_puts(thing, "")) for text in shown):
        return None
    if f"track [{kind}]" in shown:
        return None
    return f"I have seen a {kind}. Where was it?", f"track [{kind}]"


def _learn(mind: Mind) -> Decision | None:
    """Note where a thing was found, while it still lies there, if that is news."""
    lamp = mind.goal.place if mind.goal.type == LOOK else ""
    for thing, kind in mind.things.items():
        place = mind.at.get(thing)
        if place is None or place != mind.here or kind not in (mind.goal.thing, lamp):
            continue
        if kind == mind.goal.thing and (mind.held or mind_.settled(mind, thing)):
            continue
        if any(text.startswith(_puts(thing, "")) for text, _, _ in mind.past):
            continue
        where = mind.places.get(place, "")
        told = habits.told_places(kind, mind.hints, set(mind.places.values()))
        told += [n.partition(": ")[2] for n in mind.notes if n.startswith(f"{kind}: ")]
        if where and where not in told:
            return f"A {kind} at a {where}: worth knowing.", f"note [{kind}: {where}]"
    return None


# The household.


def _act(mind: Mind) -> Decision | None:
    wanted, held = mind.goal, mind.held
    if not held:
        for thing in mind_.candidates(mind):
            place = mind.at[thing]
            if way := _visit(mind, place, f"take {thing} from {place}"):
                return f"The {thing} is at {place}.", way
        return _search(mind, wanted.thing)
    if mind.things[held] != wanted.thing:
        return _put_down(mind)
    if wanted.type == LOOK:
        for lamp in mind_.lamps(mind):
            if way := _visit(mind, mind.at[lamp], f"use {lamp}"):
                return f"I hold the {held}; now the {lamp}.", way
        return _search(mind, wanted.place)
    if held not in mind.so:
        verb, kind = MAKE[wanted.state]
        for place in (p for p, k in mind.places.items() if k == kind):
            if way := _visit(mind, place, f"{verb} {held} with {place}"):
                return f"The {held} must be {wanted.state}: {place}.", way
    target = mind_.target(mind)
    way = _visit(mind, target, *_puts(held, target))
    return (f"The {held} belongs to {target}.", way) if way else None


def _puts(thing: str, place: str) -> tuple[str, str]:
    """Return how the two data releases word it."""
    return f"move {thing} to {place}", f"put {thing} in/on {place}"


def _visit(mind: Mind, place: str, *wanted: str) -> str | None:
    """Return the next step on the way to a command at a place."""
    ways = (*wanted, f"go to {place}", f"open {place}")
    return next((way for way in ways if way in mind.commands), None)


def _search(mind: Mind, kind: str) -> Decision | None:
    """Look into the unexplored place that is most worth the turns."""
    kinds = list(mind.places.values())
    told = habits.told_places(kind, mind.hints, set(kinds))

    def worth(place):
        what = mind.places[place]
        near = f"go to {place}" not in mind.commands
        turns = 2 if what in CLOSABLE and not near else 1
        chance = habits.weight(kind, what, told) / kinds.count(what)
        return -chance / turns, mind_.number_of(place)

    for place in sorted(mind.unexplored, key=worth):
        # Of places that share a spot, the second can only be examined.
        if way := _visit(mind, place) or _visit(mind, place, f"examine {place}"):
            return f"No {kind} yet; try {place}.", way
    return None


def _put_down(mind: Mind) -> Decision | None:
    """Get rid of a thing that nobody asked for."""
    for place in sorted(mind.places, key=lambda p: p != mind.here):
        for way in _puts(mind.held, place):
            if way in mind.commands:
                return f"I do not need the {mind.held}.", way
    lately = {text for text, _, _ in mind.past[-IN_MIND:]}
    for kind in habits.SURFACES:
        for place in (p for p, k in mind.places.items() if k == kind):
            way = _visit(mind, place)
            if way and way not in lately:
                return f"Somewhere to leave the {mind.held}.", way
    return None


def _look_again(mind: Mind, draw: random.Random) -> Decision:
    """Go back to where the agent has not been for longest."""
    ways = {c: c.removeprefix("go to ") for c in mind.commands if c.startswith("go to")}
    if not ways:
        return "Where am I?", "look"
    oldest = max(mind.age.get(place, 0) for place in ways.values())
    old = [way for way, place in ways.items() if mind.age.get(place, 0) == oldest]
    return "I may have missed it.", draw.choice(old)


def _err(mind: Mind, draw: random.Random) -> Decision:
    """Return a mistake that a learner could make, often the last one once more."""
    last, _, tag = mind.past[-1] if mind.past else ("", 0, 0)
    if tag and last and draw.random() < STUBBORN:
        return "Once more.", last
    ways = [c for c in mind.commands if c.startswith("go to ")]
    guesses = [way for way in ways if way.removeprefix("go to ") in mind.unexplored]
    refused = [
        f"take {mind.goal.thing} from {mind.here or mind.goal.place}",
        f"go to {mind.goal.thing}",
        f"put {mind.goal.thing} in {mind.goal.place}",
    ]
    slips = [_slip(draw, c) for c in mind.commands if c.startswith(("go to ", "take "))]
    kinds = [kind for kind in (ways, guesses, refused, slips) if kind]
    return "Maybe this.", draw.choice(draw.choice(kinds))


def _slip(draw: random.Random, command: str) -> str:
    """Return a command with one of its numbers one or two too high or too low."""
    words = command.split()
    at = draw.choice([i for i, word in enumerate(words) if word.isdigit()] or [-1])
    if at >= 0:
        words[at] = str(max(1, int(words[at]) + draw.choice((-2, -1, 1, 2))))
    return " ".join(words)
