"""The dimension legend, and the pytrees that cross packages.

Legend, the same in every module:

    B  episodes on this host = G groups x R rollouts     T  turns an episode may take
    L  tokens    V  vocabulary    D  model width         W  training rows
    N  names an episode may use   A  attribute columns   C  phrases in one event
    P  subgoals  M  notes         X  bank entries        K  entries one recall returns

Words never enter an array. An id in an array points into the episode's `Lexicon`
(`bpe.lexicon`): `names` for things and places, `texts` for actions, subgoals and
notes. Functions are written for ONE episode; a batch is `jax.vmap` at the call.
"""

from typing import Any, NamedTuple

import jax
import numpy as np
from flax import struct

NONE = -1  # no name, no text, nowhere: an id that points at nothing
SAME = -2  # Effects.place: this event says nothing about the place
AGENT = 0  # name id of the agent itself, in every lexicon

# Verbs. The meta-actions are numbered from 1 so that `verb - 1` indexes int32[4].
NULL, ENV, TRACK, COMMIT, RECALL, NOTE = -1, 0, 1, 2, 3, 4
META_VERBS = ("track", "commit", "recall", "note")  # in counter order
VERB_NAMES = ("env", *META_VERBS)  # indexed by verb

# How a thing is at its place.
UNRELATED, IN, ON, HELD, AT = 0, 1, 2, 3, 4
# What a name is.
UNKNOWN_ROLE, PLACE, THING = 0, 1, 2
# What a `track` asks for: names, places not yet looked into, or an overview.
QUERY_NAMES, QUERY_UNEXPLORED, QUERY_ALL = 0, 1, 2
# Status of a subgoal.
EMPTY, OPEN, DONE, BLOCKED, DROPPED = 0, 1, 2, 3, 4

N, A, C, P, M, K = 256, 8, 4, 8, 16, 8  # default capacities


@struct.dataclass
class Effects:
    """What one turn's feedback says about the world, dense over names.

    Dense rather than a list: every rule becomes one `where`, the order of effects
    cannot matter, and nothing can overflow.
    """

    seen: Any  # bool[N] named in the feedback
    role: Any  # int8[N] PLACE or THING; UNKNOWN_ROLE: no news
    place: Any  # int16[N] name id where it now is; NONE: nowhere known; SAME: no news
    relation: Any  # int8[N] IN, ON, HELD or AT; read only where `place` has news
    attr: Any  # int8[N, A] 1 or 0; -1: no news
    listed: Any  # bool[N] places whose whole content stands in the feedback


@struct.dataclass
class Event:
    """One turn of one episode, as arrays. The null Event leaves an episode as it is."""

    verb: Any  # int8[] NULL, ENV, TRACK, COMMIT, RECALL or NOTE
    well_formed: Any  # bool[] exactly one action block, not empty
    action: Any  # int32[] text id of the normalised action
    text: Any  # int32[C] text ids: subgoals (commit) or the insight in [0] (note)
    key: Any  # int32[C] text ids of the same phrases, normalised
    status: Any  # int8[C] commit: the status each phrase asks for
    query: Any  # int8[] track: QUERY_NAMES, QUERY_UNEXPLORED or QUERY_ALL
    match: Any  # bool[N] track: names that the query means
    overlap: Any  # f32[X] recall: fit of each bank entry to the query; 0: none
    effects: Effects  # env: what the feedback says
    proved: Any  # int32[C] env: keys of the subgoals that this feedback proves
    valid: Any  # bool[] env: the environment accepted the action
    won: Any  # bool[] env: the task is solved
    ended: Any  # bool[] env: the environment will take no more actions
    score: Any  # f32[] env: the environment's own score
    tokens: Any  # int32[] tokens this turn cost: newly read prompt + response
    dropped: Any  # int32[] words or phrases that did not fit the capacities above


class Turns(NamedTuple):
    """Training rows of one rollout: W rows, ragged; ids as sampled, never re-tokenised.

    One row per policy turn in the `per_turn` regime, one per episode in `append`.
    """

    tokens: list[np.ndarray]  # int32[L] prompt and response
    response_mask: list[np.ndarray]  # bool[L] ids that the policy produced
    logp: list[np.ndarray]  # f32[L] under the distribution sampled from; 0 elsewhere
    raw_logp: list[np.ndarray]  # f32[L] at temperature 1, nothing filtered
    episode: np.ndarray  # int32[W] index of the episode in the rollout
    turn: np.ndarray  # int32[W] turn of the episode; `append`: its last
    policy_version: np.ndarray  # int32[W] update count of the weights that sampled


class Batch(NamedTuple):
    """Packed rows for one update. The first token of a segment is never a target."""

    tokens: Any  # int32[W, L]
    positions: Any  # int32[W, L] restart in every segment, behind its parent's end
    segment_ids: Any  # int32[W, L] 1, 2, ... within a row; 0: padding
    parents: Any  # int32[W, L] the segment that it continues; its own: none
    weight: Any  # f32[W, L] 0 where no loss is taken
    advantage: Any  # f32[W, L]
    old_logp: Any  # f32[W, L] before the first update on this rollout
    ref_logp: Any  # f32[W, L] under the reference policy
    sampler_logp: Any  # f32[W, L] as the sampler reported them


@struct.dataclass
class TrainState:
    """All that an update changes; model, optimiser and config are closed over."""

    step: jax.Array  # int32[]
    params: Any
    opt_state: Any
    key: jax.Array  # typed PRNG key
