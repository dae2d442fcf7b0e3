"""A program by name, and what it is called with, as shapes that say where they lie.

    sft, rl             the update of train_sft and of train_rl
    score               log-probabilities of the old and the reference policy
    extend, generate    the rollout engine's two

They are the functions that a run jits, made by what makes them there. Shapes: rows W
of a microbatch (rollout: rows B of the cache) over the whole slice, seq L tokens of a
packed row (rollout: S positions of the cache).
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from ml_collections import ConfigDict

from evoharness_jax import build, parameters, train_rl, train_sft
from evoharness_jax import mesh as meshes
from evoharness_jax.models import lora, qwen3
from evoharness_jax.rollout import engine as engine_
from evoharness_jax.rollout.sampling import Sampling
from evoharness_jax.train import state
from evoharness_jax.types import Batch

TRAINING, ROLLOUT = ("sft", "rl", "score"), ("extend", "generate")
PROGRAMS = TRAINING + ROLLOUT
NEEDS = {  # sections of the config
    "sft": ("data", "optim", "train"),
    "rl": ("data", "optim", "train", "loss", "rollout"),
    "score": ("data", "optim", "train"),
    "extend": ("rollout",),
    "generate": ("rollout",),
}
END = 0  # an id that ends a response; which one is no part of a program's memory


class Program(NamedTuple):
    """Something to compile, and what is known of it before."""

    function: Any  # jitted
    args: tuple
    shape: qwen3.Config
    seq: int
    rows: int
    trained: int  # parameters that an update changes
    beside: int  # bytes a chip that a run holds meanwhile and the program does not see
    kv: int  # bytes a chip of the cache


def make(
    name: str, config: ConfigDict, mesh: Mesh, seq: int = 0, rows: int = 0
) -> Program:
    """Make a program and its arguments.

    Args:
        name: one of `PROGRAMS`.
        config: of train_rl; one of train_sft will do for "sft" and "score".
        mesh: (fsdp, tp), of devices that need not be there.
        seq: L or S; 0: what the config says.
        rows: W or B; 0: in training one a data shard, in a rollout as many a data shard
            as the config has episodes under way.

    Raises:
        ValueError: no such program, a config of another stage, or sizes that do not
            divide.
    """
    if name not in PROGRAMS:
        raise ValueError(f"--program: {name!r} is not one of {', '.join(PROGRAMS)}")
    for section in NEEDS[name]:
        if section not in config:
            raise ValueError(
                f"--config: it has no section {section!r}, which --program {name} "
                f"reads; configs/alfworld_rl.py has it"
            )
    if seq < 0 or rows < 0:
        raise ValueError(f"--seq and --rows must be positive: {seq} {rows}")
    make_one = _training if name in TRAINING else _rollout
    return make_one(name, config, mesh, seq, rows)


def _rows(rows: int, default: int, mesh: Mesh) -> int:
    shards = mesh.shape["fsdp"]
    rows = rows or default * shards
    if rows % shards:
        raise ValueError(
            f"--rows: {rows} rows do not divide over the {shards} data shards of the "
            f"mesh; {shards} would be one each"
        )
    return rows


def _training(name, config, mesh, seq, rows):
    shape = build.model_config(config)
    build.shared_heads(config, shape)
    params, trained = parameters.abstract(config, shape, mesh)
    model = build.Model(shape, None, params, mesh, trained)
    rows, seq = _rows(rows, 1, mesh), seq or config.data.length
    # A rollout makes an update of many microbatches: two hold what any number does.
    accum = 2 if name == "rl" else 1
    if name == "sft" and "accum" in config.data:
        accum = config.data.accum
    batch = _batch(mesh, accum, rows, seq)
    if name == "sft" or "loss" not in config:
        made = train_sft.programs(config, model)
    else:
        made = train_rl.programs(config, model)
    beside = 0
    if name == "score":
        function, args = made.score, (trained.params, batch, *trained.frozen)
    else:
        current = parameters.placed(made.shapes, made.where)
        function, args = made.update, (current, batch, *trained.frozen)
    if name == "rl" and config.loss.kl_coef and not trained.frozen:
        beside = bytes_of(params)  # the reference; beside an adapter it is the base
    return Program(
        function, args, shape, seq, rows, count(trained.params), beside, kv=0
    )


def _batch(mesh, accum, rows, length):
    where = state.microbatch_sharding(mesh)
    make = partial(jax.ShapeDtypeStruct, (accum, rows, length), sharding=where)
    return Batch(*[make(jnp.int32)] * 4, *[make(jnp.float32)] * 5)


def _rollout(name, config, mesh, seq, rows):
    shape = build.model_config(config)
    sampling = Sampling(config.rollout.temperature, 0, config.rollout.top_p)
    rows, seq = _rows(rows, config.rollout.batch, mesh), seq or config.model.context
    engine = engine_.Engine(
        shape, rows, seq, config.model.response, sampling, stop_ids=(END,)
    )
    cache = jax.eval_shape(lambda: qwen3.init_cache(shape, rows, seq))
    names = {"cache": qwen3.CACHE_AXES}
    kv = meshes.shardings(mesh, names, {"cache": cache.k})["cache"]
    cache = parameters.placed(cache, qwen3.Cache(k=kv, v=kv))
    params = weights(config, shape, mesh)

    def put(shape, dtype, *axes):
        where = NamedSharding(mesh, PartitionSpec(*axes))
        return jax.ShapeDtypeStruct(shape, dtype, sharding=where)

    row = put((rows,), jnp.int32, "fsdp")
    answers = jax.tree.map(
        lambda x: put(x.shape, x.dtype, "fsdp"),
        jax.eval_shape(partial(engine_.no_answers, engine)),
    )
    if name == "extend":
        block = put((rows, engine_.WIDTHS[-1]), jnp.int32, "fsdp")
        function = engine_.extend
        args = (engine, params, cache, answers.logits, block, row, row)
    else:
        key = jax.eval_shape(lambda: jax.random.key(0))
        number = put((), jnp.int32)
        function = engine_.generate
        args = (
            engine,
            params,
            cache,
            answers,
            put(key.shape, key.dtype),
            put((rows,), bool, "fsdp"),
            number,
            number,
        )
    return Program(function, args, shape, seq, rows, 0, 0, bytes_of(cache))


def weights(config: ConfigDict, shape: qwen3.Config, mesh: Mesh) -> Any:
    """Return what a rollout reads: in the compute dtype, whole rows, cut over tp."""
    rules = meshes.ROLLOUT

    def one(shapes, axes):
        where = meshes.shardings(mesh, axes, shapes, rules)
        cast = jax.tree.map(
            lambda s: jax.ShapeDtypeStruct(s.shape, jnp.dtype(shape.dtype)), shapes
        )
        return parameters.placed(cast, where)

    params = one(qwen3.shapes(shape), qwen3.logical_axes(shape))
    if spec := parameters.spec(config):
        adapter = one(lora.shapes(shape, spec), lora.logical_axes(shape, spec))
        params = {**params, lora.KEY: adapter}
    return params


def bytes_of(tree: Any) -> int:
    """Count the bytes a chip of ShapeDtypeStructs that say where they lie."""
    total = 0
    for leaf in jax.tree.leaves(tree):
        if not isinstance(leaf, jax.ShapeDtypeStruct):
            continue  # a static argument
        size = leaf.dtype.itemsize
        for length in leaf.sharding.shard_shape(leaf.shape):
            size *= length
        total += size
    return total


def count(tree: Any) -> int:
    """Count the parameters of a tree."""
    return sum(leaf.size for leaf in jax.tree.leaves(tree))
