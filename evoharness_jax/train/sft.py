"""Supervised fine-tuning: raise the likelihood of what the teacher wrote.

    loss = sum(-logp weight) / sum(weight)

summed over the whole batch, however it is split. Prompts have weight 0.
"""

from collections.abc import Callable

import jax
import optax
from jax.sharding import Mesh

from evoharness_jax.train import losses, state
from evoharness_jax.types import TrainState

make_state = state.make_state
state_shardings = state.state_shardings


def make_update(
    logprobs: Callable[..., tuple[jax.Array, jax.Array]],
    tx: optax.GradientTransformation,
    mesh: Mesh | None = None,
    shardings: TrainState | None = None,
    *,
    schedule: Callable[[jax.Array], jax.Array] | None = None,
    frozen_shardings: tuple = (),
    by: state.Differentiated | None = None,
) -> Callable[..., tuple[TrainState, dict[str, jax.Array]]]:
    """Make update(state, batch [accum, W, L], *frozen) -> (state, metrics).

    Args:
        logprobs: (params, tokens, positions, segment_ids, parents, *frozen) ->
            (logp f32[W, L], entropy f32[W, L]), logp[:, t] that of token t given what
            stands before it.
        tx, mesh, shardings, schedule, frozen_shardings, by: see `state.make_update`.
    """

    def loss(params, batch, count, *frozen):
        logp, _ = logprobs(params, *state.texts(batch), *frozen)
        return losses.sft(logp, batch.weight, count)

    return state.make_update(
        loss,
        tx,
        mesh,
        shardings,
        schedule=schedule,
        frozen_shardings=frozen_shardings,
        by=by,
    )
