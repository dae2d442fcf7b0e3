"""What a Hugging Face Qwen3 or Llama folder calls things, and how it lays them out.

HF stores one matrix [out, in] per layer. Ours are [layers, in, ..., out] with heads as
a dimension of their own, so a tensor is transposed and split into heads; nothing is
computed, and every bit survives both ways. config.json is read as transformers 4
(`rope_theta`, `rope_scaling`) and 5 (`rope_parameters`) write it, and written for both.

A Llama is a Qwen3 without q and k norms: `Config.qk_norm` tells the two apart.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from evoharness_jax.models.decoder import Config
from evoharness_jax.models.rope import Scaling, yarn_attention

# model_type -> architecture.
ARCHITECTURES = {"qwen3": "Qwen3ForCausalLM", "llama": "LlamaForCausalLM"}

# Our name of a layer's parameter -> its name in the HF layer.
LAYER = {
    "attn_norm": "input_layernorm",
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.o_proj",
    "q_norm": "self_attn.q_norm",
    "k_norm": "self_attn.k_norm",
    "mlp_norm": "post_attention_layernorm",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}
# Outside the layers both sides have the same layout.
TOP = {
    "embed": "model.embed_tokens.weight",
    "norm": "model.norm.weight",
    "head": "lm_head.weight",
}
# Config field -> key of config.json, where the value is the same.
FIELDS = {
    "vocab_size": "vocab_size",
    "width": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "mlp": "intermediate_size",
    "rms_eps": "rms_norm_eps",
}
# Scaling field -> key of rope_scaling, where the value is the same.
SCALING = {
    "factor": "factor",
    "original_length": "original_max_position_embeddings",
    "attention_factor": "attention_factor",
    "beta_fast": "beta_fast",
    "beta_slow": "beta_slow",
    "truncate": "truncate",
    "low_freq_factor": "low_freq_factor",
    "high_freq_factor": "high_freq_factor",
}
# What rope_scaling may hold besides.
ROPE_KEYS = {*SCALING.values(), "rope_type", "type", "rope_theta"}
ROPE_KEYS |= {"mscale", "mscale_all_dim"}
# What we do not compute: the key, and the only value that means "not in use".
UNUSED = {
    "attention_bias": False,
    "mlp_bias": False,
    "use_sliding_window": False,
    "hidden_act": "silu",
    "quantization_config": None,
    "partial_rotary_factor": 1.0,
}
POSITIONS = 40960  # what a published Qwen3 says it reads


def names(path: tuple[str, ...], layers: int) -> list[str]:
    """Return the HF names of the tensors that make up the parameter at `path`."""
    if path[0] != "layers":
        return [TOP[path[0]]]
    return [f"model.layers.{i}.{LAYER[path[1]]}.weight" for i in range(layers)]


def to_hf(path: tuple[str, ...], x: np.ndarray) -> np.ndarray:
    """Lay one layer's (or a top level) parameter out as HF does; a view."""
    if path[-1] in ("q", "k", "v"):  # [D, heads, E] -> [heads * E, D]
        return x.reshape(x.shape[0], -1).T
    if path[-1] == "o":  # [H, E, D] -> [D, H * E]
        return x.reshape(-1, x.shape[-1]).T
    return x.T if path[-1] in ("gate", "up", "down") else x


def stored_shape(path: tuple[str, ...], shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape that `to_hf` gives a parameter of one layer."""
    # A dummy that takes no memory, only to ask for its shape on the other side.
    return to_hf(path, np.broadcast_to(np.zeros((), np.bool_), shape)).shape


def to_ours(path: tuple[str, ...], x: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Invert `to_hf`, splitting heads as `shape` says."""
    turned = path[-1] in ("q", "k", "v", "o", "gate", "up", "down")
    return (x.T if turned else x).reshape(shape)


def stored_slices(
    path: tuple[str, ...], index: tuple[slice, ...], shape: tuple[int, ...]
) -> tuple[slice, ...]:
    """Say which slices of the HF tensor hold `index` of one layer's parameter.

    Args:
        path: of the parameter.
        index: a slice of step 1 for every dimension. Those of head_dim are whole, since
            a part of every head is no slice of the stored matrix.
        shape: of the parameter, without the dimension of layers.

    Raises:
        ValueError: head_dim is cut.
    """
    ranges = [slice(*s.indices(n)[:2]) for s, n in zip(index, shape)]
    if path[-1] in ("q", "k", "v"):
        return _joined(path, ranges[1:], shape[1:]), ranges[0]
    if path[-1] == "o":
        return ranges[2], _joined(path, ranges[:2], shape[:2])
    if path[-1] in ("gate", "up", "down"):
        return ranges[1], ranges[0]
    return tuple(ranges)


def _joined(path, ranges, sizes):
    """One slice for (heads, head_dim)."""
    (heads, entries), size = ranges, sizes[1]
    if (entries.start, entries.stop) != (0, size):
        raise ValueError(f"{'/'.join(path)}: head_dim is cut: {entries}")
    return slice(heads.start * size, heads.stop * size)


def read_config(raw: Mapping[str, Any], dtype: str) -> Config:
    """Turn the content of config.json into a Config of this dtype.

    Raises:
        ValueError: a key is missing, or asks for something that we do not compute.
    """
    kind = raw.get("model_type")
    if kind not in ARCHITECTURES:
        raise ValueError(
            f"config.json: want model_type in {sorted(ARCHITECTURES)}: {kind!r}"
        )
    for key, value in UNUSED.items():
        if raw.get(key, value) not in (value, None):
            raise ValueError(f"config.json: {key}={raw[key]!r} is not supported")
    odd = set(raw.get("layer_types") or ()) - {"full_attention"}
    if odd:
        raise ValueError(f"config.json: layer_types {sorted(odd)} are not supported")
    raw = dict(raw)
    if kind == "llama":  # older folders leave out what follows from the rest
        if raw.get("num_key_value_heads") is None:
            raw["num_key_value_heads"] = raw.get("num_attention_heads")
        if raw.get("head_dim") is None and raw.get("num_attention_heads"):
            raw["head_dim"] = raw.get("hidden_size", 0) // raw["num_attention_heads"]
    rope = _rope(raw)
    theta = rope.get("rope_theta", raw.get("rope_theta"))
    missing = [key for key in FIELDS.values() if raw.get(key) is None]
    if theta is None:
        missing.append("rope_theta")
    if missing:
        raise ValueError(f"config.json lacks {missing}")
    return Config(
        **{ours: raw[theirs] for ours, theirs in FIELDS.items()},
        rope_theta=float(theta),
        rope_scaling=_scaling(rope, raw),
        tie_embeddings=bool(raw.get("tie_word_embeddings", False)),
        qk_norm=kind == "qwen3",
        dtype=dtype,
        param_dtype=dtype,
    )


def _rope(raw):
    """Return the settings of rope: transformers 4's, else 5's, as transformers does."""
    rope = raw.get("rope_scaling") or raw.get("rope_parameters") or {}
    odd = set(rope) - ROPE_KEYS
    if odd:
        raise ValueError(f"config.json: rope settings {sorted(odd)} are not supported")
    return rope


def _scaling(rope, raw):
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return None
    # None means "not said", and so does its absence.
    said = {k: rope[v] for k, v in SCALING.items() if rope.get(v) is not None}
    if kind in ("yarn", "llama3"):
        said.setdefault("original_length", raw.get("max_position_embeddings"))
    try:
        scaling = Scaling(kind, **{"factor": None, **said})
    except ValueError as error:
        raise ValueError(f"config.json: {error}") from error
    one, all_ = rope.get("mscale"), rope.get("mscale_all_dim")
    if kind == "yarn" and one and all_ and scaling.attention_factor is None:
        grown = yarn_attention(scaling.factor) - 1
        grown = (grown * one + 1) / (grown * all_ + 1)
        scaling = dataclasses.replace(scaling, attention_factor=grown)
    return scaling


def write_config(
    config: Config, dtype: str, base: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the content of config.json for weights stored in `dtype`.

    Args:
        base: the config.json that the weights came from. What says nothing about the
            computation (special ids, the length that it reads) is taken over.
    """
    kind = "qwen3" if config.qk_norm else "llama"
    theta, scaling = config.rope_theta, config.rope_scaling
    rope, length = {"rope_type": "default"}, POSITIONS
    if scaling is not None:
        defaults = {f.name: f.default for f in dataclasses.fields(Scaling)}
        rope = {"rope_type": scaling.kind} | {
            theirs: getattr(scaling, ours)
            for ours, theirs in SCALING.items()
            if getattr(scaling, ours) != defaults[ours]
        }
        if scaling.original_length:
            length = round(scaling.factor * scaling.original_length)
    return {
        "max_position_embeddings": length,
        **(base or {}),
        "architectures": [ARCHITECTURES[kind]],
        "model_type": kind,
        **{theirs: getattr(config, ours) for ours, theirs in FIELDS.items()},
        "tie_word_embeddings": config.tie_embeddings,
        "rope_theta": theta,
        "rope_scaling": None if scaling is None else rope,
        "rope_parameters": {**rope, "rope_theta": theta},
        "hidden_act": "silu",
        "attention_bias": False,
        **({"use_sliding_window": False} if config.qk_norm else {"mlp_bias": False}),
        "torch_dtype": dtype,
        "dtype": dtype,
    }
