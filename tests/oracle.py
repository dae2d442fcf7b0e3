"""The rules of the workspace over dicts and lists of words: what the arrays must equal.

Written apart from the package, and kept dull on purpose. `as_words` puts an Episode's
arrays into the same terms, so that the two compare with `==`.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

SUBGOALS, NOTES, SHOWN = 8, 16, 8
VERBS = ("track", "commit", "recall", "note")


class Feedback(NamedTuple):
    """What the environment said, already understood."""

    seen: dict[str, str] = {}  # name -> "place", "thing" or "" for the agent
    placed: dict[str, tuple[str | None, str]] = {}  # name -> where it is, and how
    states: dict[str, dict[int, bool]] = {}
    listed: frozenset[str] = frozenset()  # places whose whole content was told
    facts: tuple[str, ...] = ()  # normalised phrases that are now proved
    valid: bool = True
    won: bool = False
    ended: bool = False
    score: float = 0.0


class Turn(NamedTuple):
    verb: str  # "env" or one of VERBS
    action: str  # as history keeps it
    well_formed: bool = True
    tokens: int = 0
    feedback: Feedback | None = None  # env; None: nothing reached the environment
    query: str = ""  # track
    phrases: tuple[tuple[str, str], ...] = ()  # commit: (status, subgoal)
    fit: tuple[float, ...] = ()  # recall: of each entry of the bank
    text: str = ""  # note


class Entry(NamedTuple):
    alive: bool
    uses: int
    wins: int


class Limits(NamedTuple):
    max_turns: int
    charge: bool = True
    max_meta: int = -1
    max_tokens: int = 0
    belief: bool = True
    progress: bool = True
    experience: bool = True
    top_k: int = 4


@dataclass
class Node:
    role: str = ""
    states: dict[int, bool] = field(default_factory=dict)
    place: str | None = None
    how: str = ""
    placed_at: int = -1
    last_seen: int = -1
    explored: bool = False


@dataclass
class Subgoal:
    text: str
    key: str
    status: str
    proved_at: int | None = None


class Oracle:
    """One episode."""

    def __init__(self, limits: Limits, bank: list[Entry]):
        self.limits, self.bank = limits, bank
        self.nodes: dict[str, Node] = {}  # in the order in which names were learnt
        self.clock = 0
        self.plan: list[Subgoal] = []
        self.notes: list[str] = []
        self.used: set[int] = set()
        self.credited: set[int] = set()
        self.hints: list[int] = []
        self.attempted = dict.fromkeys(VERBS, 0)
        self.executed = dict.fromkeys(VERBS, 0)
        self.failed = dict.fromkeys(VERBS, 0)
        self.dropped = 0
        self.history: list[tuple[str, str, str, bool]] = []
        self.env_steps = self.tokens = 0
        self.won, self.stop, self.score = False, "running", 0.0
        self.reply: tuple = ("", "ok", [], 0, [])

    def observe(self, feedback: Feedback) -> None:
        for name, node in self.nodes.items():
            told = name in feedback.placed or name == "you"
            if node.place in feedback.listed and not told:
                node.place, node.how, node.placed_at = None, "", self.clock
        for name, role in feedback.seen.items():
            node = self.nodes.setdefault(name, Node())
            node.role = role or node.role
            node.last_seen = self.clock
        for name, (place, how) in feedback.placed.items():
            node = self.nodes[name]
            if place != node.place:
                node.placed_at = self.clock
            node.place, node.how = place, how if place is not None else ""
        for name, states in feedback.states.items():
            self.nodes[name].states |= states
        for name in feedback.listed:
            self.nodes[name].explored = True
        for goal in self.plan:
            claimed = goal.status == "done" and goal.proved_at is None
            waiting = goal.status in ("open", "blocked")
            if goal.key in feedback.facts and (claimed or waiting):
                goal.status, goal.proved_at = "done", self.clock
        self.clock += 1

    def track(self, query: str) -> tuple[list[str], int]:
        order = ["you", *self.nodes]  # the agent is the first name there is
        asked = [set(part.split()) for part in query.split(",")]

        def meant(name):
            return any(words and words <= set(name.split()) for words in asked)

        if query == "unexplored":
            nodes = self.nodes.items()
            found = [n for n, x in nodes if x.role == "place" and not x.explored]
            first = {}
        elif not query:
            found = [n for n, x in self.nodes.items() if x.place is not None]
            first = {}
        else:
            first = {name for name in order if meant(name)}
            found = [n for n, x in self.nodes.items() if n in first or x.place in first]
        found.sort(
            key=lambda n: (n not in first, -self.nodes[n].last_seen, order.index(n))
        )
        return found[:SHOWN], max(len(found) - SHOWN, 0)

    def commit(self, phrases) -> None:
        for status, text in phrases:
            key = " ".join(w for w in text.lower().split() if w not in ("a", "the"))
            goal = next((g for g in self.plan if g.key == key), None)
            if goal is None:
                if len(self.plan) == SUBGOALS:
                    settled = [g for g in self.plan if g.status in ("done", "dropped")]
                    self.dropped += not settled
                    self.plan.remove(settled[0] if settled else self.plan[0])
                goal = Subgoal(text, key, status)
                self.plan.append(goal)
            goal.status = status
            if status != "done":
                goal.proved_at = None

    def recall(self, fit) -> list[int]:
        def rank(slot):
            entry = self.bank[slot]
            return entry.alive * fit[slot] * (entry.wins + 1) / (entry.uses + 2)

        fitting = [slot for slot in range(len(self.bank)) if rank(slot) > 0]
        slots = sorted(fitting, key=lambda s: (-rank(s), s))[: self.limits.top_k]
        self.used |= set(slots)
        self.hints = slots or self.hints
        return slots

    def note(self, text: str) -> None:
        if text in self.notes:
            return
        if len(self.notes) == NOTES:
            self.dropped += 1
        else:
            self.notes.append(text)

    def refusal(self, turn: Turn) -> str:
        module = {"track": "belief", "commit": "progress"}.get(turn.verb, "experience")
        limit = self.limits.max_meta
        if not turn.well_formed:
            return "bad format"
        if not getattr(self.limits, module):
            return "off"
        if 0 <= limit <= sum(self.attempted.values()):
            return "budget spent"
        if turn.verb == "commit" and not turn.phrases:
            return "no argument"
        if turn.verb == "note" and not turn.text:
            return "no argument"
        return "ok"

    def step(self, turn: Turn) -> None:
        if self.stop != "running":
            return
        nodes, left, slots, ended = [], 0, [], False
        if turn.verb == "env":
            tag, ended = self.act(turn)
        else:
            tag = self.refusal(turn)
            self.attempted[turn.verb] += 1
            counter = self.executed if tag == "ok" else self.failed
            counter[turn.verb] += 1
            if tag == "ok" and turn.verb == "track":
                nodes, left = self.track(turn.query)
            elif tag == "ok" and turn.verb == "commit":
                self.commit(turn.phrases)
            elif tag == "ok" and turn.verb == "recall":
                slots = self.recall(turn.fit)
            elif tag == "ok":
                self.note(turn.text)
        valid = tag == "ok" and turn.well_formed
        self.history.append((turn.action, turn.verb, tag, valid))
        self.tokens += turn.tokens
        self.reply = (turn.verb, tag, nodes, left, slots)
        self.stop = self.why_over(ended)
        self.credited = self.used if self.won else set()

    def act(self, turn: Turn) -> tuple[str, bool]:
        self.env_steps += 1
        said = turn.feedback
        if said is None:
            return "bad format", False
        if said.valid:
            self.observe(said)
            self.score = said.score
        self.won = said.won
        refused = "refused" if turn.well_formed else "bad format"
        return "ok" if said.valid else refused, said.ended

    def why_over(self, ended: bool) -> str:
        turns, limits = len(self.history), self.limits
        most = limits.max_turns
        if not limits.charge:
            extra = limits.max_turns if limits.max_meta < 0 else limits.max_meta
            most += extra
        out = turns >= most or (
            not limits.charge and self.env_steps >= limits.max_turns
        )
        if self.won:
            return "won"
        if ended:
            return "ended"
        if out:
            return "out of turns"
        if limits.max_tokens and self.tokens >= limits.max_tokens:
            return "out of tokens"
        return "running"

    def words(self) -> dict:
        """Return all that can be observed of the episode."""
        return {
            "nodes": {n: vars(x) for n, x in self.nodes.items()},
            "clock": self.clock,
            "plan": [vars(goal) for goal in self.plan],
            "notes": self.notes,
            "used": self.used,
            "credited": self.credited,
            "hints": self.hints,
            "attempted": self.attempted,
            "executed": self.executed,
            "failed": self.failed,
            "dropped": self.dropped,
            "history": self.history,
            "env_steps": self.env_steps,
            "tokens": self.tokens,
            "done": self.stop != "running",
            "won": self.won,
            "stop": self.stop,
            "score": self.score,
            "reply": self.reply,
        }


ROLES = ("", "place", "thing")
HOW = ("", "in", "on", "held", "at")
STATUS = ("", "open", "done", "blocked", "dropped")
TAGS = ("ok", "refused", "bad format", "off", "budget spent", "no argument")
STOPS = ("running", "won", "ended", "out of turns", "out of tokens")


def as_words(lexicon, episode) -> dict:
    """Return an Episode (numpy leaves) in the terms of `Oracle.words`."""
    workspace, last = episode.workspace, episode.reply
    belief, progress, evidence = (
        workspace.belief,
        workspace.progress,
        workspace.evidence,
    )
    names, texts = lexicon.names, lexicon.texts

    def listed(ids, words=None):
        kept = [int(i) for i in ids if i >= 0]
        # NONE stands behind the last id, never between two.
        assert list(ids[: len(kept)]) == kept
        return kept if words is None else [words[i] for i in kept]

    def node(i):
        place = int(belief.place[i])
        return {
            "role": ROLES[belief.role[i]],
            "states": {a: bool(v) for a, v in enumerate(belief.attr[i]) if v >= 0},
            "place": names[place] if place >= 0 else None,
            "how": HOW[belief.relation[i]],
            "placed_at": int(belief.placed_at[i]),
            "last_seen": int(belief.last_seen[i]),
            "explored": bool(belief.explored[i]),
        }

    def subgoal(i):
        proved = int(progress.evidence[i])
        return {
            "text": texts[progress.text[i]],
            "key": texts[progress.key[i]],
            "status": STATUS[progress.status[i]],
            "proved_at": proved if proved >= 0 else None,
        }

    def turn(t):
        action = int(episode.actions[t])
        return (
            texts[action] if action >= 0 else "",
            ("env", *VERBS)[episode.verbs[t]],
            TAGS[episode.tags[t]],
            bool(episode.valid[t]),
        )

    def counts(array):
        return dict(zip(VERBS, array.tolist(), strict=True))

    verb = ("env", *VERBS)[last.verb] if last.verb >= 0 else ""
    return {
        "nodes": {names[i]: node(i) for i in np.flatnonzero(belief.known)},
        "clock": int(belief.clock),
        "plan": [subgoal(i) for i in range(int(progress.size))],
        "notes": listed(evidence.notes, texts)[: int(evidence.num_notes)],
        "used": set(np.flatnonzero(evidence.uses).tolist()),
        "credited": set(np.flatnonzero(evidence.wins).tolist()),
        "hints": listed(workspace.hints),
        "attempted": counts(workspace.attempted),
        "executed": counts(workspace.executed),
        "failed": counts(workspace.failed),
        "dropped": int(workspace.dropped),
        "history": [turn(t) for t in range(int(episode.turn))],
        "env_steps": int(episode.env_steps),
        "tokens": int(episode.tokens),
        "done": bool(episode.done),
        "won": bool(episode.won),
        "stop": STOPS[episode.stop],
        "score": float(episode.score),
        "reply": (
            verb,
            TAGS[last.tag],
            listed(last.nodes, names),
            int(last.left),
            listed(last.slots),
        ),
    }
