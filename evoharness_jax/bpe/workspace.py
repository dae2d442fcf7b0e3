"""The workspace: Belief, Progress and Evidence, and the dispatch of one event.

    environment action  ->  observe (belief) and prove (progress)
    track / commit / recall / note  ->  checked, counted, then carried out

A meta-action is checked in a fixed order: format, module switched on, budget,
argument. Refused ones change nothing but the counters. All verbs are computed and
selected by mask, which is what `vmap` of a branch does anyway.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from evoharness_jax.bpe import belief as belief_
from evoharness_jax.bpe import experience as experience_
from evoharness_jax.bpe import progress as progress_
from evoharness_jax.bpe.belief import Belief
from evoharness_jax.bpe.experience import Bank, Evidence
from evoharness_jax.bpe.progress import Progress
from evoharness_jax.types import (
    COMMIT,
    ENV,
    NONE,
    NOTE,
    NULL,
    RECALL,
    TRACK,
    Effects,
    Event,
    K,
)

# What became of a turn. The first is the only one that changes the workspace.
OK, INVALID, MALFORMED, DISABLED, SPENT, BLANK = 0, 1, 2, 3, 4, 5
TAGS = ("ok", "refused", "bad format", "off", "budget spent", "no argument")


class Rules(NamedTuple):
    """What an episode may do. Plain numbers: static under jit."""

    max_turns: int = 50  # turns (charged) or environment steps (free)
    charge: bool = True  # a meta-action costs a turn
    max_meta: int = -1  # meta-actions attempted; -1: no limit beyond the turns
    max_tokens: int = 0  # tokens an episode may use; 0: no limit
    belief: bool = True  # module switches: off, the verb is refused
    progress: bool = True
    experience: bool = True
    top_k: int = 4  # entries a recall returns, at most K

    @property
    def capacity(self) -> int:
        """Turns an episode can have: T of its arrays."""
        if self.charge:
            return self.max_turns
        extra = self.max_turns if self.max_meta < 0 else self.max_meta
        return self.max_turns + extra


@struct.dataclass
class Reply:
    """What the last turn selected; `views` words it in the next prompt."""

    verb: jnp.ndarray  # int8[] the verb answered, NULL before the first turn
    tag: jnp.ndarray  # int8[] OK or why it was refused
    query: jnp.ndarray  # int8[] track: what was asked
    nodes: jnp.ndarray  # int16[K] track: name ids, NONE behind the last
    left: jnp.ndarray  # int32[] track: how many more there were
    slots: jnp.ndarray  # int16[K] recall: bank slots, NONE behind the last


@struct.dataclass
class Workspace:
    belief: Belief
    progress: Progress
    evidence: Evidence
    attempted: jnp.ndarray  # int32[4] calls per meta-verb, refused ones included
    executed: jnp.ndarray  # int32[4]
    failed: jnp.ndarray  # int32[4]
    hints: jnp.ndarray  # int16[K] slots of the last recall that found something
    dropped: jnp.ndarray  # int32[] what did not fit the capacities


def empty(entries: int) -> Workspace:
    """Return the workspace of a new episode beside a bank of X = `entries` slots."""
    zeros = jnp.zeros(4, jnp.int32)
    return Workspace(
        belief=belief_.empty(),
        progress=progress_.empty(),
        evidence=experience_.empty_evidence(entries),
        attempted=zeros,
        executed=zeros,
        failed=zeros,
        hints=jnp.full(K, NONE, jnp.int16),
        dropped=jnp.zeros((), jnp.int32),
    )


def no_reply() -> Reply:
    """Return the reply that stands before the first turn."""
    none = jnp.full(K, NONE, jnp.int16)
    zero = jnp.zeros((), jnp.int8)
    return Reply(
        verb=jnp.full((), NULL, jnp.int8),
        tag=zero,
        query=zero,
        nodes=none,
        left=jnp.zeros((), jnp.int32),
        slots=none,
    )


def observe(workspace: Workspace, effects: Effects, proved) -> Workspace:
    """Absorb accepted feedback: what is so, and which subgoals it proves."""
    clock = workspace.belief.clock
    return workspace.replace(
        belief=belief_.observe(workspace.belief, effects),
        progress=progress_.prove(workspace.progress, proved, clock),
    )


def track(workspace: Workspace, query, match) -> tuple[Workspace, tuple]:
    """Read Belief. Returns the workspace as it was, and (nodes, left)."""
    return workspace, belief_.track(workspace.belief, query, match)


def commit(workspace: Workspace, text, key, status) -> Workspace:
    """Set subgoals (int32[C] text and key ids, int8[C] status)."""
    progress, lost = progress_.commit(workspace.progress, text, key, status)
    return workspace.replace(progress=progress, dropped=workspace.dropped + lost)


def recall(
    workspace: Workspace, bank: Bank, overlap, top_k: int
) -> tuple[Workspace, jnp.ndarray]:
    """Read Experience. Returns the workspace with its hints, and int16[K] slots."""
    slots = experience_.recall(bank, overlap, top_k)
    return workspace.replace(
        evidence=experience_.use(workspace.evidence, slots),
        hints=jnp.where(slots[0] >= 0, slots, workspace.hints),
    ), slots


def note(workspace: Workspace, text) -> Workspace:
    """Keep an insight (text id) for consolidation."""
    evidence, lost = experience_.note(workspace.evidence, text)
    return workspace.replace(evidence=evidence, dropped=workspace.dropped + lost)


def step(
    rules: Rules, bank: Bank, workspace: Workspace, event: Event
) -> tuple[Workspace, Reply]:
    """Carry out one event on the workspace of a live episode.

    A malformed environment action (more than one block) still counts for what the
    environment made of its first block; a malformed meta-action does nothing.
    """
    verb = event.verb
    meta = verb >= TRACK
    tag = _tag(rules, workspace, event, meta)
    ok = tag == OK

    calls = (jnp.arange(4) == verb - 1).astype(jnp.int32)
    workspace = workspace.replace(
        attempted=workspace.attempted + calls,
        executed=workspace.executed + calls * ok,
        failed=workspace.failed + calls * ~ok,
        dropped=workspace.dropped + jnp.where(verb != NULL, event.dropped, 0),
    )
    after_recall, slots = recall(workspace, bank, event.overlap, rules.top_k)
    _, (nodes, left) = track(workspace, event.query, event.match)
    absorbed = event.valid & (verb == ENV)
    cases = (
        (absorbed, observe(workspace, event.effects, event.proved)),
        (ok & (verb == COMMIT), commit(workspace, event.text, event.key, event.status)),
        (ok & (verb == RECALL), after_recall),
        (ok & (verb == NOTE), note(workspace, event.text[0])),
    )
    for chosen, outcome in cases:
        workspace = select(chosen, outcome, workspace)
    tracked = ok & (verb == TRACK)
    recalled = ok & (verb == RECALL)
    return workspace, Reply(
        verb=verb.astype(jnp.int8),
        tag=tag.astype(jnp.int8),
        query=event.query.astype(jnp.int8),
        nodes=jnp.where(tracked, nodes, NONE).astype(jnp.int16),
        left=jnp.where(tracked, left, 0).astype(jnp.int32),
        slots=jnp.where(recalled, slots, NONE).astype(jnp.int16),
    )


def _tag(rules: Rules, workspace: Workspace, event: Event, meta):
    verb = event.verb
    switches = jnp.array(
        [rules.belief, rules.progress, rules.experience, rules.experience]
    )
    enabled = switches[jnp.clip(verb - 1, 0, 3)]
    spent = (rules.max_meta >= 0) & (workspace.attempted.sum() >= rules.max_meta)
    # `track` and `recall` without an argument have a meaning; the others do not.
    needs_text = (verb == COMMIT) | (verb == NOTE)
    blank = needs_text & (event.text[0] == NONE)
    refused = jnp.where(
        ~event.well_formed,
        MALFORMED,
        jnp.where(
            ~enabled, DISABLED, jnp.where(spent, SPENT, jnp.where(blank, BLANK, OK))
        ),
    )
    acted = jnp.where(event.valid, OK, jnp.where(event.well_formed, INVALID, MALFORMED))
    return jnp.where(meta, refused, acted)


def select(chosen, yes, no):
    """Return `yes` where the scalar `chosen` holds, else `no`, leaf by leaf."""
    return jax.tree.map(lambda y, n: jnp.where(chosen, y, n).astype(n.dtype), yes, no)
