"""Gradients of the layers' matrices in the compute dtype, not in that of the weights.

The gradient of `weight.astype(bfloat16)` is a bfloat16 array turned into the float32
of the weight: no more is known, but a stack of all layers takes twice the memory. So
the loss is differentiated with respect to stand-ins, which have the dtype that the
gradient has, and whose values nobody reads: they cost nothing, only their gradients
are ever made.

    stand_ins(params, dtype) -> params' structure, the layers' matrices in dtype
    lend(params, stand_ins) -> for every function of `models.qwen3`

Differentiate by the second argument of `lend`. What is not a matrix of a layer stands
for itself.
"""

from typing import Any

import jax
import jax.numpy as jnp

KEY = "narrow"  # where the params of `lend` hold the stand-ins


def stand_ins(params: Any, dtype: Any) -> Any:
    """Return params with the layers' matrices replaced by zeros of `dtype`."""
    layers = dict(params["layers"])
    for name in _matrices(params):
        layers[name] = jnp.zeros(layers[name].shape, dtype)
    return {**params, "layers": layers}


def lend(params: Any, standing: Any) -> dict[str, Any]:
    """Return params whose gradient arrives at `standing`, in the dtypes there."""
    names = _matrices(params)
    layers = dict(standing["layers"])
    lent = {name: layers[name] for name in names}
    layers |= {name: jax.lax.stop_gradient(params["layers"][name]) for name in names}
    return {**standing, "layers": layers, KEY: lent}


def _matrices(params):
    # Stacked on layers: a norm's scales have two dimensions.
    return [name for name, leaf in params["layers"].items() if leaf.ndim > 2]


def unit(positions: jax.Array) -> jax.Array:
    """Return 1.0, f32[], in a way that no compiler can know: see `cast`."""
    known = jnp.min(positions, initial=0) > jnp.iinfo(jnp.int32).min
    return known.astype(jnp.float32)


def cast(weight: jax.Array, one: jax.Array, dtype: Any) -> jax.Array:
    """Cast the weight of one layer, in that layer of a loop over layers.

    XLA would rather cast the whole stack before the loop, and keep that copy through
    the forward and the backward pass: it moves a cast past a slice, and past a barrier
    too. It cannot move it past a product with `one`, from `unit`, which changes no bit.
    """
    if weight.dtype == dtype:
        return weight
    return (weight * one).astype(dtype)


@jax.custom_vjp
def cast_for(weight: jax.Array, one: jax.Array, standing: jax.Array) -> jax.Array:
    """Cast as `cast` to the stand-in's dtype; the gradient is the stand-in's."""
    return cast(weight, one, standing.dtype)


def _forward(weight, one, standing):
    return cast(weight, one, standing.dtype), None


def _backward(_, g):
    return None, None, g


cast_for.defvjp(_forward, _backward)
