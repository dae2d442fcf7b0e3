"""Cost-aware policy gradient: the update that follows a rollout.

    rollout -> reward -> advantages -> packing -> score (old, ref) -> update

Old and reference log-probabilities come from `make_score`, the same forward pass that
is differentiated, and not from the sampler: its arithmetic differs.
"""

from collections.abc import Callable
from dataclasses import dataclass

import jax
import optax
from jax.sharding import Mesh

from evoharness_jax.train import losses, state
from evoharness_jax.types import TrainState

make_state = state.make_state
state_shardings = state.state_shardings
make_score = state.make_score

OLD = ("batch", "current")
AVERAGES = ("tokens", "sequences", "constant")


@dataclass(frozen=True)
class Settings:
    """The loss's settings; formulas in `losses.policy_gradient`.

    `clip_high` above `clip_low` leaves room for unlikely tokens to grow
    (arXiv 2503.14476). `old` says where the old log-probabilities come from: the
    batch, or "current": the parameters now, for one update per rollout, where both are
    the same and a scoring pass is saved.

    `average` is what the loss counts alike: every token of the batch, or every sequence
    (gspo's paper), or tokens over a `constant` that does not change from batch to batch
    (Dr. GRPO's), so that a batch of long episodes weighs more than one of short ones.
    Sequences are counted alike by the weights in the batch: `packing.from_turns`.
    """

    objective: str = "clip"  # clip | gspo
    average: str = "tokens"  # tokens | sequences | constant
    constant: float = 0.0  # for "constant": what sums over an update are divided by
    clip_low: float = 0.2
    clip_high: float = 0.28
    dual_clip: float | None = 3.0
    kl_kind: str = "k2"
    kl_coef: float = 0.01
    entropy_coef: float = 0.001
    sampler_cap: float = 0.0  # exp(old - sampler) per token, at most this; 0: 1
    old: str = "batch"

    def __post_init__(self):
        losses.known(self.objective, "objective", losses.OBJECTIVES)
        losses.known(self.average, "average", AVERAGES)
        losses.known(self.kl_kind, "kl_kind", losses.KL_KINDS)
        losses.known(self.old, "old", OLD)
        if self.average == "constant" and self.constant <= 0:
            raise ValueError(f"loss.average: 'constant' wants one: {self.constant}")


REFERENCE = Settings(clip_high=0.2, kl_kind="k1")


def make_update(
    logprobs: Callable[..., tuple[jax.Array, jax.Array]],
    tx: optax.GradientTransformation,
    settings: Settings,
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
            (logp f32[W, L], entropy f32[W, L]), at the temperature of the sampler.
        settings: Settings.
        tx, mesh, shardings, schedule, frozen_shardings, by: see `state.make_update`.
    """

    def loss(params, batch, count, *frozen):
        logp, entropy = logprobs(params, *state.texts(batch), *frozen)
        return losses.policy_gradient(
            logp,
            batch.old_logp if settings.old == "batch" else None,
            batch.ref_logp,
            batch.advantage,
            batch.weight,
            count,
            entropy=entropy,
            sampler_logp=batch.sampler_logp,
            segments=batch.segment_ids,
            objective=settings.objective,
            clip_low=settings.clip_low,
            clip_high=settings.clip_high,
            dual_clip=settings.dual_clip,
            kl_kind=settings.kl_kind,
            kl_coef=settings.kl_coef,
            entropy_coef=settings.entropy_coef,
            sampler_cap=settings.sampler_cap,
            constant=settings.constant if settings.average == "constant" else None,
        )

    return state.make_update(
        loss,
        tx,
        mesh,
        shardings,
        schedule=schedule,
        frozen_shardings=frozen_shardings,
        by=by,
    )
