"""TrainState: make it, say where it lies, advance it.

    update(state, batch [accum, W, L]) -> (state, metrics)

One jitted function: the weight of the whole batch is counted first, a scan adds up
the microbatches' gradients in float32, one optimiser step follows. The state is
donated, so its memory is the new state's; the old one cannot be used again.

A loss is `(params, batch [W, L], count, *frozen) -> (loss f32[], metrics)`, where loss
and metrics are sums over the tokens divided by `count`, so that microbatches add up.
`frozen` are trees that the loss reads and nobody trains, such as the base under LoRA.
"""

import contextlib
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from evoharness_jax import mesh as meshes
from evoharness_jax.types import Batch, TrainState


class Differentiated(NamedTuple):
    """What a loss is differentiated by, in place of the parameters themselves."""

    choose: Callable[[Any], Any]  # params -> a tree of their structure
    join: Callable[[Any, Any], Any]  # (params, chosen) -> what the loss reads


def make_state(
    params: Any, tx: optax.GradientTransformation, key: jax.Array
) -> TrainState:
    """Make the state before the first update.

    Moments are float32 whatever the parameters are, as the gradients given to `tx` are.
    jit it with `out_shardings` (see `state_shardings`) to make a large one in place.
    """
    return TrainState(
        step=jnp.zeros((), jnp.int32),
        params=params,
        opt_state=tx.init(_float32(params)),
        key=key,
    )


def state_shardings(mesh: Mesh, logical_axes: Any, shapes: TrainState) -> TrainState:
    """Say where every leaf of a state lies: moments with their parameters.

    Args:
        mesh: (fsdp, tp).
        logical_axes: tree of the parameters' logical axis names.
        shapes: `jax.eval_shape` of `make_state`; the optimiser state may hold any
            number of trees that look like the parameters, the rest is on every device.
    """
    params = meshes.shardings(mesh, logical_axes, shapes.params)
    like_params = jax.tree.structure(shapes.params)
    everywhere = NamedSharding(mesh, PartitionSpec())

    def is_moment(tree):
        return jax.tree.structure(tree) == like_params

    opt_state = jax.tree.map(
        lambda tree: params if is_moment(tree) else everywhere,
        shapes.opt_state,
        is_leaf=is_moment,
    )
    return TrainState(
        step=everywhere, params=params, opt_state=opt_state, key=everywhere
    )


def microbatch_sharding(mesh: Mesh) -> NamedSharding:
    """Shard the rows of [accum, W, L]; every device goes through all microbatches."""
    return NamedSharding(mesh, PartitionSpec(None, *meshes.batch_sharding(mesh).spec))


def make_update(
    loss: Callable[..., tuple[jax.Array, dict[str, jax.Array]]],
    tx: optax.GradientTransformation,
    mesh: Mesh | None = None,
    shardings: TrainState | None = None,
    *,
    schedule: Callable[[jax.Array], jax.Array] | None = None,
    frozen_shardings: tuple = (),
    by: Differentiated | None = None,
) -> Callable[..., tuple[TrainState, dict[str, jax.Array]]]:
    """Make the jitted update of a loss.

    Args:
        loss: see the top of this module.
        tx: optimiser.
        mesh: (fsdp, tp); None: one device.
        shardings: of the state, from `state_shardings`; wanted with a mesh.
        schedule: the learning rate that `tx` follows, to report it.
        frozen_shardings: one tree for each of `frozen`, with a mesh.
        by: what the loss is differentiated by; None: the parameters.

    Returns:
        update(state, batch [accum, W, L], *frozen) -> (state, metrics f32[]): those of
        the loss, and loss/total, loss/weight (of the batch), optim/grad_norm (before
        it is clipped), optim/lr, and optim/finite (bool[]: loss and gradient are; if
        not, the new state is spoilt and training must go back to a checkpoint).
    """

    def update(state, batch, *frozen):
        count = jnp.sum(batch.weight)
        with within(mesh):
            grads, metrics = _accumulate(
                loss, state.params, batch, count, frozen, shardings, by
            )
        updates, opt_state = tx.update(grads, state.opt_state, state.params)
        norm = optax.global_norm(grads)
        metrics["loss/weight"] = count
        metrics["optim/grad_norm"] = norm
        metrics["optim/finite"] = jnp.isfinite(metrics["loss/total"] + norm)
        if schedule is not None:
            metrics["optim/lr"] = jnp.asarray(schedule(state.step), jnp.float32)
        return state.replace(
            step=state.step + 1,
            params=optax.apply_updates(state.params, updates),
            opt_state=opt_state,
        ), metrics

    if mesh is None:
        return jax.jit(update, donate_argnums=0)
    return jax.jit(
        update,
        in_shardings=(shardings, microbatch_sharding(mesh), *frozen_shardings),
        out_shardings=(shardings, NamedSharding(mesh, PartitionSpec())),
        donate_argnums=0,
    )


def make_score(
    logprobs: Callable[..., tuple[jax.Array, jax.Array]],
    mesh: Mesh | None = None,
    shardings: Any = None,
    *,
    stacked: bool = False,
    frozen_shardings: tuple = (),
) -> Callable[..., jax.Array]:
    """Make the jitted log-probabilities of packed rows.

    Args:
        logprobs: (params, tokens, positions, segment_ids, parents, *frozen) ->
            (logp, entropy).
        mesh: (fsdp, tp); None: one device.
        shardings: of the parameters (a TrainState's `.params`); wanted with a mesh.
        stacked: for batches [accum, W, L], one microbatch after the other; what comes
            out then lies as the update wants it.
        frozen_shardings: one tree for each of `frozen`, with a mesh.

    Returns:
        score(params, batch, *frozen) -> logp f32, [W, L] or [accum, W, L].
    """

    def rows(params, batch, *frozen):
        with within(mesh):
            logp, _ = logprobs(params, *texts(batch), *frozen)
        return logp.astype(jnp.float32)

    def score(params, batch, *frozen):
        if stacked:
            return jax.lax.map(lambda micro: rows(params, micro, *frozen), batch)
        return rows(params, batch, *frozen)

    if mesh is None:
        return jax.jit(score)
    where = microbatch_sharding(mesh) if stacked else meshes.batch_sharding(mesh)
    return jax.jit(
        score,
        in_shardings=(shardings, where, *frozen_shardings),
        out_shardings=where,
    )


def texts(batch: Batch) -> tuple:
    """Return what a model reads of a batch, in the order of its arguments."""
    return batch.tokens, batch.positions, batch.segment_ids, batch.parents


def within(mesh: Mesh | None):
    """Let model code name the mesh's axes while it is traced."""
    if mesh is None:
        return contextlib.nullcontext()
    return jax.sharding.use_abstract_mesh(mesh.abstract_mesh)


def _accumulate(loss, params, batch, count, frozen, shardings, by):
    """Add up gradients (placed as the parameters) and metrics, in float32."""
    by = by or Differentiated(lambda params: params, lambda params, same: same)

    def placed(tree):
        if shardings is None:
            return tree
        return jax.lax.with_sharding_constraint(tree, shardings.params)

    def one(micro):
        def value(chosen):
            return loss(by.join(params, chosen), micro, count, *frozen)

        chosen = placed(by.choose(params))
        (total, metrics), grads = jax.value_and_grad(value, has_aux=True)(chosen)
        return placed(grads), {"loss/total": total, **metrics}

    if batch.tokens.shape[0] == 1:
        grads, metrics = one(jax.tree.map(lambda x: x[0], batch))
        return _float32(grads), metrics

    def add(total, micro):
        return jax.tree.map(lambda x, y: x + y.astype(x.dtype), total, one(micro)), None

    shapes = jax.eval_shape(one, jax.tree.map(lambda x: x[0], batch))
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float32), shapes)
    if shardings is not None:
        grads = jax.lax.with_sharding_constraint(zeros[0], shardings.params)
        zeros = grads, zeros[1]
    return jax.lax.scan(add, zeros, batch)[0]


def _float32(tree):
    return jax.tree.map(lambda x: x.astype(jnp.float32), tree)
