"""LoRA adapters in the folder format of the library PEFT, both ways.

    adapter_config.json          rank, alpha, target_modules, name of the base
    adapter_model.safetensors    base_model.model.<HF name>.lora_A.weight [rank, in]
                                                           .lora_B.weight [out, rank]

One matrix per layer and projection, transposed beside ours: nothing is computed, and
every bit survives both ways.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from safetensors.numpy import save_file

from evoharness_jax.models import folder as folders
from evoharness_jax.models import huggingface, lora
from evoharness_jax.models.decoder import Config
from evoharness_jax.models.lora import Spec

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
# What an adapter may ask for besides, and the values that mean "not in use".
UNUSED = {
    "bias": ("none",),
    "fan_in_fan_out": (False,),
    "use_dora": (False,),
    "lora_bias": (False,),
    "rank_pattern": ({},),
    "alpha_pattern": ({},),
    "modules_to_save": (None, []),
    "layers_to_transform": (None, []),
    "layer_replication": (None, []),
}


def save(
    folder: str | os.PathLike, config: Config, spec: Spec, adapter: Any, base: str = ""
) -> None:
    """Write an adapter that `load` and PEFT read.

    Args:
        folder: made if need be.
        config: shape of the base.
        base: name or folder of the base, for whoever loads the adapter.

    Raises:
        ValueError: the adapter does not fit config and spec, or is not finite.
    """
    lora.check(adapter, config, spec)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {}
    for name in spec.targets:
        for part in ("a", "b"):
            value = np.asarray(jax.device_get(adapter[name][part]))
            for key, layer in zip(_keys(name, part, config), value, strict=True):
                if not np.isfinite(layer).all():
                    raise ValueError(f"{key}: values are not finite")
                # Stored [rank, in] and [out, rank]: ours on their side.
                tensors[key] = np.ascontiguousarray(_matrix(part, layer).T)
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    (folder / CONFIG).write_text(json.dumps(_config(config, spec, base), indent=2))


def _config(config, spec, base):
    names = [huggingface.LAYER[name] for name in spec.targets]
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": spec.rank,
        "lora_alpha": spec.alpha,
        "target_modules": [name.rpartition(".")[2] for name in names],
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "use_rslora": False,
        "use_dora": False,
        "modules_to_save": None,
        "inference_mode": True,
    }


def load(folder: str | os.PathLike, config: Config) -> tuple[Spec, dict[str, Any]]:
    """Read an adapter for a base of this shape; float32.

    Returns:
        Its spec (targets are those that it has matrices for) and the adapter.

    Raises:
        ValueError: it is no LoRA, asks for something that we do not compute, is of
            another base shape, or is damaged; names the key or tensor.
        FileNotFoundError: a file is not there.
    """
    folder = Path(folder)
    raw = folders.read_json(folder / CONFIG)
    if not (folder / WEIGHTS).exists():
        raise FileNotFoundError(f"{folder} has no {WEIGHTS}")
    stored = folders.header(folder / WEIGHTS)
    spec = _spec(raw, stored, config)
    adapter = {name: {} for name in lora.READS if name in spec.targets}
    for name, parts in lora.shapes(config, spec).items():
        for part, leaf in parts.items():
            layers = []
            for key in _keys(name, part, config):
                wanted = _matrix(part, np.broadcast_to(0.0, leaf.shape[1:])).T.shape
                layers.append(_read(stored, key, wanted).T.reshape(leaf.shape[1:]))
            adapter[name][part] = jnp.asarray(np.stack(layers), leaf.dtype)
    for key in stored.keys() - {k for n in adapter for k in _both(n, config)}:
        raise ValueError(f"{folder}: {key}: extra; this base has no such projection")
    return spec, adapter


def _both(name, config):
    return _keys(name, "a", config) + _keys(name, "b", config)


def _keys(name, part, config):
    """Name the tensors of a projection's matrix, layer by layer."""
    hf = huggingface.names(("layers", name), config.layers)
    end = f".lora_{part.upper()}.weight"
    return [f"base_model.model.{n.removesuffix('.weight')}{end}" for n in hf]


def _matrix(part, layer):
    """Return A as [in, rank], B as [rank, out]; a view."""
    if part == "a":
        return layer.reshape(-1, layer.shape[-1])
    return layer.reshape(layer.shape[0], -1)


def _spec(raw, stored, config):
    if raw.get("peft_type") != "LORA":
        raise ValueError(f"{CONFIG}: want peft_type LORA: {raw.get('peft_type')!r}")
    for key, values in UNUSED.items():
        if key in raw and raw[key] not in values:
            raise ValueError(f"{CONFIG}: {key}={raw[key]!r} is not supported")
    for key in ("r", "lora_alpha"):
        if not isinstance(raw.get(key), int | float):
            raise ValueError(f"{CONFIG}: {key} is not a number: {raw.get(key)!r}")
    rank, alpha = int(raw["r"]), float(raw["lora_alpha"])
    if raw.get("use_rslora"):  # arXiv 2312.03732: alpha / sqrt(rank)
        alpha *= rank**0.5
    # target_modules may be a pattern, so the tensors say which projections there are.
    found = [n for n in lora.READS if any(k in stored for k in _both(n, config))]
    if not found:
        raise ValueError(f"{WEIGHTS}: no projection of this model has matrices in it")
    return Spec(rank, alpha, tuple(found))


def _read(stored: Mapping[str, Any], key: str, shape: tuple[int, int]) -> np.ndarray:
    if key not in stored:
        raise ValueError(f"{key}: missing; want shape {shape}")
    if stored[key].shape != shape:
        raise ValueError(
            f"{key}: shape {stored[key].shape}, want {shape}; it is an adapter of "
            "another base"
        )
    value = folders.read(stored[key], key)
    if not np.isfinite(value).all():
        raise ValueError(f"{key}: values are not finite")
    return value.astype(np.float32)
