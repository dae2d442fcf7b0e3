"""The episode: a workspace, its history, and when it is over.

`step` is THE transition: `scan(step, start, events)` rebuilds any state of a recorded
episode, and stepping a finished episode, or with the null event, is the identity.
"""

from typing import NamedTuple

import jax.numpy as jnp
from flax import struct

from evoharness_jax.bpe import experience as experience_
from evoharness_jax.bpe import progress as progress_
from evoharness_jax.bpe import workspace as workspace_
from evoharness_jax.bpe.experience import Bank
from evoharness_jax.bpe.workspace import OK, Reply, Rules, Workspace, select
from evoharness_jax.types import ENV, NONE, NULL, Event

# Why an episode is over.
RUNNING, WON, ENDED, OUT_OF_TURNS, OUT_OF_TOKENS = 0, 1, 2, 3, 4
STOPS = ("running", "won", "ended", "out of turns", "out of tokens")


@struct.dataclass
class Episode:
    workspace: Workspace
    reply: Reply  # to the last turn
    turn: jnp.ndarray  # int32[] turns taken
    env_steps: jnp.ndarray  # int32[] turns that were environment actions
    tokens: jnp.ndarray  # int32[] tokens used
    done: jnp.ndarray  # bool[]
    won: jnp.ndarray  # bool[]
    stop: jnp.ndarray  # int8[] RUNNING, or why it is over
    score: jnp.ndarray  # f32[] the environment's own score
    actions: jnp.ndarray  # int32[T] text ids of the actions, NONE behind the last
    tags: jnp.ndarray  # int8[T] what became of each (workspace.TAGS)
    verbs: jnp.ndarray  # int8[T] NULL behind the last
    valid: jnp.ndarray  # bool[T] well formed, and accepted or carried out


class Opening(NamedTuple):
    """What an episode begins with, beside the first observation."""

    seed_plan: jnp.ndarray  # bool[] always_on: the plan starts with the objective
    text: jnp.ndarray  # int32[] text id of the objective
    key: jnp.ndarray  # int32[] of the objective, normalised


def start(rules: Rules, bank: Bank, event: Event, opening: Opening) -> Episode:
    """Begin an episode from its first observation.

    Args:
        event: `read` of the first feedback; no turn is charged. A game that is over
            with it (it would not start) makes a finished episode. `event.overlap` is
            the fit of the bank to the objective; it is used where the workspace is
            always shown (`opening.seed_plan`).
    """
    workspace = workspace_.empty(bank.alive.shape[0])
    workspace = workspace_.observe(workspace, event.effects, event.proved)
    shown = workspace_.recall(workspace, bank, event.overlap, rules.top_k)[0]
    shown = shown.replace(progress=progress_.seeded(opening.text, opening.key))
    workspace = select(opening.seed_plan, shown, workspace)
    workspace = workspace.replace(dropped=event.dropped.astype(jnp.int32))
    turns = rules.capacity
    zero = jnp.zeros((), jnp.int32)
    return Episode(
        workspace=workspace,
        reply=workspace_.no_reply(),
        turn=zero,
        env_steps=zero,
        tokens=zero,
        done=jnp.asarray(event.ended | event.won),
        won=jnp.asarray(event.won),
        stop=jnp.where(event.won, WON, jnp.where(event.ended, ENDED, RUNNING)).astype(
            jnp.int8
        ),
        score=jnp.asarray(event.score, jnp.float32),
        actions=jnp.full(turns, NONE, jnp.int32),
        tags=jnp.zeros(turns, jnp.int8),
        verbs=jnp.full(turns, NULL, jnp.int8),
        valid=jnp.zeros(turns, bool),
    )


def step(rules: Rules, bank: Bank, episode: Episode, event: Event) -> Episode:
    """Take one turn. The identity where the episode is done or the event is null."""
    workspace, reply = workspace_.step(rules, bank, episode.workspace, event)
    acted = event.verb == ENV
    valid = (reply.tag == OK) & event.well_formed
    here = jnp.arange(episode.actions.shape[0]) == episode.turn
    turn = episode.turn + 1
    env_steps = episode.env_steps + acted
    tokens = episode.tokens + event.tokens
    won = acted & event.won
    stop = _stop(rules, turn, env_steps, tokens, won, acted & event.ended)
    workspace = workspace.replace(evidence=experience_.settle(workspace.evidence, won))
    after = Episode(
        workspace=workspace,
        reply=reply,
        turn=turn,
        env_steps=env_steps,
        tokens=tokens,
        done=stop != RUNNING,
        won=won,
        stop=stop,
        # Feedback to nothing, or a refusal, has no score of its own.
        score=jnp.where(acted & event.valid, event.score, episode.score),
        actions=jnp.where(here, event.action, episode.actions),
        tags=jnp.where(here, reply.tag, episode.tags),
        verbs=jnp.where(here, event.verb, episode.verbs),
        valid=jnp.where(here, valid, episode.valid),
    )
    return select(~episode.done & (event.verb != NULL), after, episode)


def _stop(rules: Rules, turn, env_steps, tokens, won, ended):
    if rules.charge:
        out = turn >= rules.max_turns
    else:
        out = (env_steps >= rules.max_turns) | (turn >= rules.capacity)
    over = (tokens >= rules.max_tokens) if rules.max_tokens > 0 else jnp.bool_(False)
    reason = jnp.where(over, OUT_OF_TOKENS, RUNNING)
    reason = jnp.where(out, OUT_OF_TURNS, reason)
    return jnp.where(won, WON, jnp.where(ended, ENDED, reason))


def calls(episode: Episode) -> jnp.ndarray:
    """Return int32[4]: executed calls by meta-verb."""
    return episode.workspace.executed
