"""From config to parts: what the entry points share.

config.env -> domain     config.rules, config.env -> setting     config.bank -> bank
config.model, config.mesh -> model (shape, tokenizer, weights, where they lie)
"""

import dataclasses
import os
import shutil
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh
from ml_collections import ConfigDict

from evoharness_jax import checkpoint as checkpoint_
from evoharness_jax import mesh as mesh_
from evoharness_jax.bpe.workspace import Rules
from evoharness_jax.envs.domain import Domain, Task
from evoharness_jax.experience import bank as bank_
from evoharness_jax.experience.bank import Version
from evoharness_jax.models import qwen3, weights
from evoharness_jax.models import tokens as tokens_
from evoharness_jax.models.tokens import Tokens
from evoharness_jax.rollout import engine as engine_
from evoharness_jax.rollout import policies
from evoharness_jax.rollout.loop import Setting
from evoharness_jax.rollout.prompt import Style
from evoharness_jax.rollout.sampling import Sampling
from evoharness_jax.train import optim

# What may differ between two uses of the same weights.
NUMERICS = ("dtype", "param_dtype", "remat", "attention", "unroll")


class Model(NamedTuple):
    config: qwen3.Config
    tokens: Tokens
    params: Any
    mesh: Mesh
    shardings: Any  # of the params


def domain(config: ConfigDict) -> Domain:
    """Return the environment that `config.env` names."""
    env = config.env
    if env.name == "counter":
        from evoharness_jax.envs import counter

        return counter.make()
    if env.name == "alfworld":
        from evoharness_jax.envs.alfworld.domain import make

        cache = env.cache or os.path.expanduser("~/.cache/evoharness_jax")
        return make(
            engine=env.engine,
            root=env.data or None,
            workers=env.workers,
            timeout=env.timeout,
            cache_dir=cache,
            prompt=env.prompt,
        )
    raise ValueError(f"env.name: {env.name!r}, not one of alfworld, counter")


def setting(config: ConfigDict) -> Setting:
    """Return rules, style and context of the episodes."""
    env, rules = config.env, Rules(**config.rules)
    if rules.max_turns < 1:
        raise ValueError(f"rules.max_turns must be at least 1: {rules.max_turns}")
    if not 1 <= rules.top_k <= 8:
        raise ValueError(f"rules.top_k must lie between 1 and 8: {rules.top_k}")
    style = Style(env.mode, env.regime, env.commands, env.history, env.thinking)
    style.check()
    return Setting(rules, style, config.model.context, config.model.response)


def choose(tasks: tuple[Task, ...], most: int) -> list[Task]:
    """Return `most` tasks spread evenly over the sorted split; 0: all of them."""
    if most <= 0 or most >= len(tasks):
        return list(tasks)
    return [tasks[i * len(tasks) // most] for i in range(most)]


def first_bank(config: ConfigDict, domain: Domain) -> Version:
    """Return the bank that a run begins with."""
    if config.bank.path:
        folder = Path(config.bank.path)
        folder = folder / "bank" if (folder / "bank").is_dir() else folder
        if not bank_.head_name(folder):
            raise ValueError(f"bank.path: no bank under {config.bank.path}")
        return bank_.read(folder)
    return Version("", bank_.from_lessons(domain.manual))


def mesh(config: ConfigDict) -> Mesh:
    """Return the mesh: all devices with fsdp = -1, else the first fsdp x tp."""
    fsdp, tp = config.mesh.fsdp, config.mesh.tp
    devices = jax.devices()
    if fsdp > 0 and tp > 0:
        devices = devices[: fsdp * tp]
    return mesh_.make(fsdp, tp, devices)


def model_config(config: ConfigDict) -> qwen3.Config:
    """Return the shape that `config.model.name` names, with this run's numerics."""
    model = config.model
    if model.name not in qwen3.CONFIGS:
        known = ", ".join(qwen3.CONFIGS)
        raise ValueError(f"model.name: {model.name!r}, not one of {known}")
    return dataclasses.replace(
        qwen3.CONFIGS[model.name],
        dtype=model.dtype,
        param_dtype=model.param_dtype,
        remat=model.remat,
    )


def model_facts(shape: qwen3.Config) -> dict:
    """Return what a checkpoint must agree with: the shape, not the numerics."""
    facts = dataclasses.asdict(shape)
    return {k: v for k, v in facts.items() if k not in NUMERICS}


def model(config: ConfigDict, workdir: str, texts=None) -> Model:
    """Return shape, tokenizer and weights; see `checkpoint` for where they come from.

    Args:
        texts: what to train a tokenizer on, where neither this run nor `model.init`
            has one. None: that is an error.
    """
    shape, meshed = model_config(config), mesh(config)
    shapes = qwen3.shapes(shape)
    shardings = mesh_.shardings(meshed, qwen3.logical_axes(shape), shapes)
    init = config.model.init
    _check_init(init)
    tokens = _tokens(config, workdir, shape, texts)
    if init and (Path(init) / "checkpoints").is_dir():
        found = checkpoint_.read_host(init)[1]["model"]
        checkpoint_.same_model(found, model_facts(shape), init)
        params = checkpoint_.read_params(init, placed(shapes, shardings))
    elif init:
        found, params = weights.load(init, meshed, shape.param_dtype)
        checkpoint_.same_model(model_facts(found), model_facts(shape), init)
    else:
        draw = jax.jit(partial(qwen3.init, config=shape), out_shardings=shardings)
        params = draw(jax.random.key(config.seed))
    return Model(shape, tokens, params, meshed, shardings)


def _check_init(init: str) -> None:
    found = any((Path(init) / name).exists() for name in ("checkpoints", "config.json"))
    if init and not found:
        raise ValueError(
            f"model.init: {init} is neither a run (checkpoints/) nor a weights folder "
            "(config.json)"
        )


def load_run(config: ConfigDict, run: str) -> Model:
    """Return the model of a run's newest checkpoint, whatever its shape is."""
    facts = checkpoint_.read_host(run)[1]["model"]
    same = [c for c in qwen3.CONFIGS.values() if model_facts(c) == facts]
    # A shape that we know comes with how it is best computed.
    shape = dataclasses.replace(
        same[0] if same else qwen3.Config(**facts), dtype=config.model.dtype
    )
    meshed = mesh(config)
    shapes = qwen3.shapes(shape)
    shardings = mesh_.shardings(meshed, qwen3.logical_axes(shape), shapes)
    params = checkpoint_.read_params(run, placed(shapes, shardings))
    tokens = tokens_.load(Path(run) / "tokenizer")
    return Model(shape, tokens, params, meshed, shardings)


def placed(shapes: Any, shardings: Any) -> Any:
    """Return ShapeDtypeStructs that say where each array shall lie."""
    return jax.tree.map(
        lambda s, where: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=where),
        shapes,
        shardings,
    )


def _tokens(config: ConfigDict, workdir: str, shape: qwen3.Config, texts) -> Tokens:
    own = Path(workdir) / "tokenizer"
    if own.is_dir() and checkpoint_.begun(workdir):
        return tokens_.load(own)
    init = config.model.init
    for folder in (Path(init) / "tokenizer", Path(init)) if init else ():
        if (folder / "tokenizer.json").exists() or (folder / "vocab.json").exists():
            tokens = tokens_.load(folder)
            break
    else:
        if texts is None:
            raise ValueError(
                "model.init: name the run or weights to start from; this stage cannot "
                "begin with random weights and no tokenizer"
            )
        tokens = tokens_.wrap(tokens_.train(texts, shape.vocab_size))
    if tokens.vocab_size > shape.vocab_size:
        raise ValueError(
            f"the tokenizer has {tokens.vocab_size} ids, the model only "
            f"{shape.vocab_size}"
        )
    temporary = own.with_name("tokenizer.new")  # a kill leaves all of it or nothing
    tokens_.save(tokens, temporary)
    shutil.rmtree(own, ignore_errors=True)  # of a try that came to nothing
    os.replace(temporary, own)
    return tokens


def logprobs(shape: qwen3.Config, chunk: int, temperature: float = 1.0):
    """Return (params, tokens, positions, segment_ids) -> (logp, entropy)."""

    def score(params, tokens, positions, segment_ids):
        return qwen3.logprobs(
            params,
            shape,
            tokens,
            positions,
            segment_ids,
            chunk=chunk,
            temperature=temperature,
        )

    return score


def optimiser(config: ConfigDict):
    """Return (optax transformation, learning-rate schedule)."""
    o = config.optim
    if o.schedule == "cosine":
        schedule = optim.cosine(o.lr, o.steps, o.warmup, end=o.lr / 10)
    elif o.schedule == "constant":
        schedule = optim.constant(o.lr, o.warmup)
    else:
        raise ValueError(f"optim.schedule: {o.schedule!r}, not constant or cosine")
    tx = optim.make(
        schedule,
        b1=o.b1,
        b2=o.b2,
        weight_decay=o.weight_decay,
        clip_norm=o.clip_norm,
    )
    return tx, schedule


def engine(config: ConfigDict, model: Model, batch: int, sampling: Sampling):
    """Return the rollout engine of a model for `batch` rows."""
    sampling.check()
    return engine_.Engine(
        config=model.config,
        rows=batch,
        context=config.model.context,
        response=config.model.response,
        sampling=sampling,
        stop_ids=model.tokens.stop_ids,
    )


def model_policy(
    config: ConfigDict, model: Model, engine, rows, params, version: int
) -> policies.Policy:
    """Return the policy that samples from `params`."""
    key = jax.random.fold_in(jax.random.key(config.seed), 1)
    return policies.model(engine, model.tokens, params, key, rows, version)
