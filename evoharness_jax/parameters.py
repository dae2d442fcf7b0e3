"""Where a model's parameters come from, and which of them a run trains.

    model.lora = 0       all of them
    model.lora = RANK    an adapter (`models.lora`) beside a base that stays as it is

The base is whatever `model.init` gives: a weights folder, another run, or, drawn from
the seed, nothing. A run of the second kind keeps the adapter alone in its checkpoints,
and says in "lora" (beside "model") what it belongs to:

    {"rank", "alpha", "targets", "base": {"init", "seed", "draw", "dtype", "digest"}}

A run that starts from such a run gets base and adapter as one, merged. So the policy
that a run began with is always its base without the adapter: the reference of a KL.
"""

import dataclasses
import hashlib
import math
from collections.abc import Callable
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from ml_collections import ConfigDict

from evoharness_jax import checkpoint as checkpoint_
from evoharness_jax import mesh as mesh_
from evoharness_jax.checkpoint import CheckpointError
from evoharness_jax.models import copying, lora, qwen3, weights

# Checkpoints that come with the package: name -> folder of evoharness_jax/data.
EMBEDDED = {"embedded-sft": "embedded-sft", "embedded": "embedded-sft"}
# How parameters are drawn that nobody gives: `model.draw`.
DRAWS = {"normal": qwen3.init, "copying": copying.init}
# What may differ between two uses of the same weights.
NUMERICS = ("dtype", "param_dtype", "remat", "attention", "unroll")


class Source(NamedTuple):
    """Parameters as they were read, and what tells them from others."""

    params: Any
    digest: str  # "" where nobody asked


class Trained(NamedTuple):
    """What an update changes, and how the model's functions get to see it."""

    params: Any
    axes: Any  # logical axes of these
    frozen: tuple  # trees that are read beside them: the base, or none
    frozen_shardings: tuple
    join: Callable[..., Any]  # (params, *frozen) -> what `models.qwen3` takes
    facts: dict | None  # "lora" of a checkpoint; None: there is no adapter


def located(run: str) -> str:
    """Return the folder that a run is in: its path, or a name in `EMBEDDED`."""
    if run not in EMBEDDED:
        return run
    return str(resources.files("evoharness_jax") / "data" / EMBEDDED[run])


def model_facts(shape: qwen3.Config) -> dict:
    """Return what a checkpoint must agree with: the shape, not the numerics."""
    facts = dataclasses.asdict(shape)
    return {k: v for k, v in facts.items() if k not in NUMERICS}


def placed(shapes: Any, shardings: Any) -> Any:
    """Return ShapeDtypeStructs that say where each array shall lie."""
    return jax.tree.map(
        lambda s, where: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=where),
        shapes,
        shardings,
    )


def shardings(shape: qwen3.Config, mesh: Mesh) -> Any:
    """Say where every parameter of a model lies."""
    return mesh_.shardings(mesh, qwen3.logical_axes(shape), qwen3.shapes(shape))


def is_run(folder: str | Path) -> bool:
    """Say whether a folder is a run, and not one of weights."""
    folder = Path(folder)
    return (folder / "checkpoints").is_dir() or not (folder / "config.json").exists()


def read(
    init: str,
    shape: qwen3.Config,
    mesh: Mesh,
    seed: int,
    draw: str = "normal",
    digest: bool = False,
) -> Source:
    """Read the parameters that `model.init` means; an adapter comes merged.

    Args:
        init: a run, a folder of weights, a name in `EMBEDDED`, or "": drawn.
        shape: of the model, in whose param_dtype they are.
        seed: of the draw.
        draw: a key of `DRAWS`.
        digest: tell them from others; it reads all of them once more.

    Raises:
        ValueError: they are of another model, or cannot be read.
    """
    folder, where = located(init), shardings(shape, mesh)
    if not init:
        if draw not in DRAWS:
            known = ", ".join(DRAWS)
            raise ValueError(f"model.draw: {draw!r}, not one of {known}")
        drawn = jax.jit(partial(DRAWS[draw], config=shape), out_shardings=where)
        params = drawn(jax.random.key(seed))
    elif is_run(folder):
        host = checkpoint_.read_host(folder)[1]
        checkpoint_.same_model(host["model"], model_facts(shape), folder)
        if "lora" in host:
            return _merged(folder, host["lora"], shape, mesh)
        params = checkpoint_.read_params(folder, placed(qwen3.shapes(shape), where))
    else:
        found, params = weights.load(folder, mesh, shape.param_dtype)
        checkpoint_.same_model(model_facts(found), model_facts(shape), folder)
    return Source(params, digest_of(params) if digest else "")


def read_adapted(
    run: str, facts: dict, shape: qwen3.Config, mesh: Mesh, base: str = ""
) -> tuple[lora.Spec, Any, Source]:
    """Read an adapter run's parts: (spec, adapter, base).

    Args:
        run: its folder.
        facts: what its checkpoint says under "lora".
        shape: of the model; the base comes in the dtype that the adapter knew.
        base: where the base is now, if not where it was.

    Raises:
        ValueError: the base is gone, or has other weights than it had.
    """
    spec = lora.Spec(facts["rank"], facts["alpha"], facts["targets"])
    known = facts["base"]
    init = base or known["init"]
    if init and not Path(located(init)).is_dir():
        raise ValueError(
            f"{run} is an adapter for {init}, which is not there; say where its base "
            "is with --config.model.init=FOLDER"
        )
    shape = dataclasses.replace(shape, param_dtype=known["dtype"])
    draw = known.get("draw", "normal")
    source = read(init, shape, mesh, known["seed"], draw, digest=True)
    if source.digest != known["digest"]:
        raise CheckpointError(
            f"{run} is an adapter for other weights than {init or 'this draw'} holds "
            f"now: digest {source.digest} instead of {known['digest']}"
        )
    shapes = lora.shapes(shape, spec)
    where = mesh_.shardings(mesh, lora.logical_axes(shape, spec), shapes)
    return spec, checkpoint_.read_params(run, placed(shapes, where)), source


def attached(run: str, facts: dict, shape: qwen3.Config, mesh: Mesh, base: str) -> Any:
    """Return base and adapter of a run, as `models.qwen3` takes them."""
    spec, adapter, source = read_adapted(run, facts, shape, mesh, base)
    return lora.attach(source.params, adapter, spec)


def _merged(run, facts, shape, mesh):
    spec, adapter, source = read_adapted(run, facts, shape, mesh)
    add = jax.jit(
        lambda base, adapter: lora.merge(base, adapter, spec),
        out_shardings=shardings(shape, mesh),
        donate_argnums=0,
    )
    # Of the parts, not of their sum, which rounds otherwise on another machine.
    parts = f"{source.digest}/{spec}/{digest_of(adapter)}"
    params = jax.tree.map(
        lambda x: x.astype(shape.param_dtype), add(source.params, adapter)
    )
    return Source(params, hashlib.sha256(parts.encode()).hexdigest()[:16])


def spec(config: ConfigDict) -> lora.Spec | None:
    """Return the adapter that `config.model` asks for; None: all is trained."""
    model = config.model
    if not model.lora:
        return None
    targets = tuple(filter(None, model.lora_targets.replace(" ", "").split(",")))
    return lora.Spec(model.lora, model.lora_alpha, targets)


def trained(
    config: ConfigDict, shape: qwen3.Config, mesh: Mesh, source: Source
) -> Trained:
    """Say what a run trains, and make the adapter if it is one."""
    wanted = spec(config)
    if wanted is None:
        return _trained(config, shape, mesh, source, source.params)
    axes = lora.logical_axes(shape, wanted)
    where = mesh_.shardings(mesh, axes, lora.shapes(shape, wanted))
    draw = jax.jit(
        lambda key: lora.init(key, shape, wanted),
        out_shardings=where,
    )
    adapter = draw(jax.random.fold_in(jax.random.key(config.seed), 2))
    return _trained(config, shape, mesh, source, adapter)


def abstract(
    config: ConfigDict, shape: qwen3.Config, mesh: Mesh
) -> tuple[Any, Trained]:
    """Return a model's parameters and what a run trains, as ShapeDtypeStructs.

    They say where everything lies and hold nothing: for programs that are compiled
    only, whose mesh may be of devices that are not there.
    """
    params = placed(qwen3.shapes(shape), shardings(shape, mesh))
    changed, wanted = params, spec(config)
    if wanted is not None:
        shapes = lora.shapes(shape, wanted)
        where = mesh_.shardings(mesh, lora.logical_axes(shape, wanted), shapes)
        changed = placed(shapes, where)
    return params, _trained(config, shape, mesh, Source(params, ""), changed)


def _trained(config, shape, mesh, source, params):
    wanted = spec(config)
    if wanted is None:
        axes = qwen3.logical_axes(shape)
        return Trained(params, axes, (), (), lambda params: params, None)
    init = config.model.init
    return Trained(
        params=params,
        axes=lora.logical_axes(shape, wanted),
        frozen=(source.params,),
        frozen_shardings=(shardings(shape, mesh),),
        join=lambda adapter, base: lora.attach(base, adapter, wanted),
        facts={
            "rank": wanted.rank,
            "alpha": wanted.alpha,
            "targets": list(wanted.targets),
            "base": {
                "init": init if init in EMBEDDED or not init else _absolute(init),
                "seed": config.seed,
                "draw": config.model.draw,
                "dtype": shape.param_dtype,
                "digest": source.digest,
            },
        },
    )


def _absolute(folder):
    return str(Path(folder).resolve())


def same_adapter(host: dict, facts: dict | None, run: str | Path) -> None:
    """Raise CheckpointError where a checkpoint has another adapter, or base, than ours.

    Where the base lies may have changed, its weights may not.
    """
    found, wanted = host.get("lora"), facts
    if (found is None) != (wanted is None):
        kinds = ("all parameters", "an adapter")
        raise CheckpointError(
            f"{run} holds {kinds[found is not None]}, this run trains "
            f"{kinds[wanted is not None]}"
        )
    for key in ("rank", "alpha", "targets") if wanted else ():
        if found[key] != wanted[key]:
            raise CheckpointError(f"{run}: {key} {found[key]} instead of {wanted[key]}")
    if wanted and found["base"]["digest"] != wanted["base"]["digest"]:
        raise CheckpointError(
            f"{run}: its base was {found['base']['init'] or 'a draw'} with digest "
            f"{found['base']['digest']}, this one has {wanted['base']['digest']}"
        )


def digest_of(params: Any) -> str:
    """Return 16 hex digits that tell parameters from others, however they are cut up.

    Sums of bits times place modulo 2^32, which have no order to depend on.
    """
    flat = jax.tree_util.tree_flatten_with_path(params)[0]
    text = hashlib.sha256()
    for path, leaf in flat:
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        number = int(np.asarray(_bits(leaf)))
        text.update(f"{name} {leaf.dtype} {leaf.shape} {number}\n".encode())
    return text.hexdigest()[:16]


@jax.jit
def _bits(leaf):
    unsigned = jnp.dtype(f"uint{8 * leaf.dtype.itemsize}")
    bits = jax.lax.bitcast_convert_type(leaf, unsigned).astype(jnp.uint32)
    place = jnp.zeros(leaf.shape, jnp.uint32)
    for i in range(leaf.ndim):
        step = np.uint32(math.prod(leaf.shape[i + 1 :]) % 2**32)
        place += step * jax.lax.broadcasted_iota(jnp.uint32, leaf.shape, i)
    # An odd factor: no bit of a value is lost.
    return jnp.sum(bits * (2 * place + 1), dtype=jnp.uint32)
