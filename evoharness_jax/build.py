"""From config to parts: what the entry points share.

config.env -> domain     config.rules, config.env -> setting     config.bank -> bank
config.model, config.mesh -> model (shape, tokenizer, weights, where they lie)
"""

import dataclasses
import json
import os
import shutil
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh
from ml_collections import ConfigDict

from evoharness_jax import checkpoint as checkpoint_
from evoharness_jax import hosts, parameters
from evoharness_jax import mesh as mesh_
from evoharness_jax.bpe.workspace import Rules
from evoharness_jax.envs.domain import Domain, Task
from evoharness_jax.experience import bank as bank_
from evoharness_jax.experience.bank import Version
from evoharness_jax.models import narrow, qwen3, template, vocabulary, weights
from evoharness_jax.models import tokens as tokens_
from evoharness_jax.models.tokens import Tokens
from evoharness_jax.parameters import EMBEDDED, Trained, located, model_facts
from evoharness_jax.rollout import engine as engine_
from evoharness_jax.rollout import policies, slots
from evoharness_jax.rollout.loop import Setting
from evoharness_jax.rollout.prompt import Style
from evoharness_jax.rollout.sampling import Sampling
from evoharness_jax.train import optim, state

# A model of a shape's kind that any machine trains: vocabulary and structure stay.
NARROW = {
    "layers": 2,
    "width": 32,
    "heads": 4,
    "kv_heads": 2,
    "head_dim": 16,
    "mlp": 64,
}


class Model(NamedTuple):
    config: qwen3.Config
    tokens: Tokens
    params: Any
    mesh: Mesh
    trained: Trained | None = None  # what a run that trains it changes


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


def first_bank(config: ConfigDict, domain: Domain, run: str = "") -> Version:
    """Return the bank to begin with: `bank.path`, that of `run`, or the domain's.

    Args:
        run: what a policy comes from, if anything: a run, or a name of an embedded one.
    """
    if config.bank.path:
        folder = Path(config.bank.path)
        folder = folder / "bank" if (folder / "bank").is_dir() else folder
        if not bank_.head_name(folder):
            raise ValueError(f"bank.path: no bank under {config.bank.path}")
        return bank_.read(folder)
    if run and (inherited := Path(located(run)) / "bank").is_dir():
        return bank_.read(inherited)
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
    shape = qwen3.CONFIGS[model.name]
    if model.narrow:
        shape = dataclasses.replace(shape, **NARROW)
    return dataclasses.replace(
        shape,
        dtype=model.dtype,
        param_dtype=model.param_dtype,
        remat=model.remat,
        attention=model.attention or shape.attention,
    )


def model(config: ConfigDict, workdir: str, texts=None) -> Model:
    """Return shape, tokenizer and weights; see `checkpoint` for where they come from.

    Args:
        texts: what to train a tokenizer on, where neither this run nor `model.init`
            has one. None: that is an error.
    """
    shape, meshed = model_config(config), mesh(config)
    init = located(config.model.init)
    _check_init(config, init)
    adapted = parameters.spec(config) is not None
    tokens = _tokens(config, init, workdir, shape, texts)
    draw, seed = config.model.draw, config.seed
    source = parameters.read(init, shape, meshed, seed, draw, digest=adapted)
    trained = parameters.trained(config, shape, meshed, source)
    return Model(shape, tokens, source.params, meshed, trained)


def _check_init(config: ConfigDict, init: str) -> None:
    found = any((Path(init) / name).exists() for name in ("checkpoints", "config.json"))
    if init and not found:
        raise ValueError(
            f"model.init: {init} is neither a run (checkpoints/) nor a weights folder "
            f"(config.json), nor one of {', '.join(EMBEDDED)}"
        )
    if init:
        same_env(config, init, "model.init")


def same_env(config: ConfigDict, run: str, key: str) -> None:
    """Raise ValueError where a run was trained on another environment.

    Weights from elsewhere do not say, and are taken as they are.
    """
    for name in ("run.json", "config.json"):
        path = Path(run) / name
        trained = json.loads(path.read_text()).get("env", {}) if path.exists() else {}
        if trained.get("name", config.env.name) != config.env.name:
            raise ValueError(
                f"{key}: {run} was trained on {trained['name']}, env.name is "
                f"{config.env.name}"
            )


def load_run(config: ConfigDict, run: str, base: str = "") -> Model:
    """Return the model of a run's newest checkpoint, or of a weights folder.

    Its shape may be any; one that we know comes with how it is best computed.

    Args:
        base: where the base of an adapter is, if it is not where it was.
    """
    meshed = mesh(config)
    if parameters.is_run(run):
        host = checkpoint_.read_host(run)[1]
        shape, tokens = _known(host["model"], config), Path(run) / "tokenizer"
        if facts := host.get("lora"):
            params = parameters.attached(run, facts, shape, meshed, base)
        else:
            params = parameters.read(run, shape, meshed, config.seed).params
    else:
        found, params = weights.load(run, meshed, config.model.param_dtype)
        shape = _known(model_facts(found), config)
        tokens = _tokenizer_of(run) or Path(run) / "tokenizer"
    return Model(shape, tokens_.load(tokens), params, meshed)


def _known(facts: dict, config: ConfigDict) -> qwen3.Config:
    same = [c for c in qwen3.CONFIGS.values() if model_facts(c) == facts]
    shape = same[0] if same else qwen3.Config(**facts)
    attention = config.model.attention or shape.attention
    return dataclasses.replace(shape, dtype=config.model.dtype, attention=attention)


def _tokenizer_of(run: str) -> Path | None:
    """Return the folder of a run's tokenizer: its own, or the weights' beside it."""
    for folder in (Path(run) / "tokenizer", Path(run)) if run else ():
        if (folder / "tokenizer.json").exists() or (folder / "vocab.json").exists():
            return folder
    return None


def _tokens(config, init: str, workdir: str, shape: qwen3.Config, texts) -> Tokens:
    """Return this run's tokenizer, of whatever comes first.

    Its own, if it goes on; that of `model.init`; what `model.tokenizer` names; one that
    is trained on `texts`.
    """
    own = Path(workdir) / "tokenizer"
    if own.is_dir() and checkpoint_.begun(workdir):
        return tokens_.load(own)
    if folder := _tokenizer_of(init):
        tokens = tokens_.load(folder)
        template.check(tokens, folder)
    elif config.model.tokenizer == vocabulary.PACKAGE:
        tokens = tokens_.wrap(vocabulary.qwen3())
    elif config.model.tokenizer:
        tokens = tokens_.load(config.model.tokenizer)
        template.check(tokens, config.model.tokenizer)
    else:
        if texts is None:
            raise ValueError(
                "model.init: name the run or weights to start from; this stage cannot "
                "begin with random weights and no tokenizer (model.tokenizer)"
            )
        tokens = tokens_.wrap(tokens_.train(texts, shape.vocab_size))
    if tokens.vocab_size > shape.vocab_size:
        raise ValueError(
            f"the tokenizer has {tokens.vocab_size} ids, the model only "
            f"{shape.vocab_size}"
        )
    if hosts.leads():
        temporary = own.with_name("tokenizer.new")  # a kill leaves all or nothing
        tokens_.save(tokens, temporary)
        shutil.rmtree(own, ignore_errors=True)  # of a try that came to nothing
        os.replace(temporary, own)
    hosts.meet("tokenizer")
    return tokens


def logprobs(shape: qwen3.Config, chunk: int, temperature: float = 1.0, join=None):
    """Return the function that trainers differentiate and score with.

    It is (params, tokens, positions, segment_ids, parents, *frozen) -> (logp, entropy).

    Args:
        join: (params, *frozen) -> what `models.qwen3` takes; None: the params.
    """

    def score(params, tokens, positions, segment_ids, parents, *frozen):
        if shape.attention == "splash":
            # A batch names every segment's parent, itself if it has none: splash
            # sees none, and `shared_heads` has made sure that there are none.
            parents = None
        return qwen3.logprobs(
            join(params, *frozen) if join else params,
            shape,
            tokens,
            positions,
            segment_ids,
            parents,
            chunk=chunk,
            temperature=temperature,
        )

    return score


def differentiated(
    shape: qwen3.Config, trained: Trained
) -> state.Differentiated | None:
    """Return what an update differentiates by: see `models.narrow`.

    None, the parameters, where they are an adapter or have the compute dtype.
    """
    if trained.frozen or shape.dtype == shape.param_dtype:
        return None
    dtype = jax.numpy.dtype(shape.dtype)
    return state.Differentiated(partial(narrow.stand_ins, dtype=dtype), narrow.lend)


def shared_heads(config: ConfigDict, shape: qwen3.Config) -> bool:
    """Say whether packed rows share their heads.

    Raises:
        ValueError: they shall, but the attention could not see it.
    """
    if config.data.share_heads and shape.attention == "splash":
        raise ValueError(
            "data.share_heads: splash attention sees no shared heads; set it to False, "
            "or model.attention to xla or blocks"
        )
    return config.data.share_heads


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
    # Rows that lie on several devices are fed all at once, and keep to themselves.
    alone = model.mesh is None or model.mesh.size == 1
    parts = {max(1, batch // 8), max(1, batch // 4), max(1, batch // 2), batch}
    return engine_.Engine(
        config=model.config,
        rows=batch,
        context=config.model.context,
        response=config.model.response,
        sampling=sampling,
        stop_ids=model.tokens.stop_ids,
        subsets=tuple(sorted(parts)) if alone else (),
    )


def model_policy(
    config: ConfigDict, model: Model, rows, params, version: int
) -> policies.Policy:
    """Return the policy that samples from `params`."""
    key = jax.random.fold_in(jax.random.key(config.seed), 1)
    wait, ahead = config.engine.wait, config.engine.ahead
    if not 0 < wait <= 1:
        raise ValueError(f"engine.wait must lie in (0, 1]: {wait}")
    if config.engine.compile_first and not rows.compiled:
        slots.compile_all(rows, params, key)
    return policies.model(model.tokens, params, key, rows, version, wait, ahead)
