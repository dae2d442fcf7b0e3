"""What a Hugging Face Qwen3 folder calls things, and how it lays them out.

HF stores one matrix [out, in] per layer. Ours are [layers, in, ..., out] with heads as
a dimension of their own, so a tensor is transposed and split into heads; nothing is
computed, and every bit survives both ways. config.json is read as transformers 4
(`rope_theta`) and 5 (`rope_parameters`) write it, and written for both.
"""

from typing import Any

import numpy as np

from evoharness_jax.models.decoder import Config

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
# What we do not compute: the key, and the only value that means "not in use".
UNUSED = {
    "attention_bias": False,
    "use_sliding_window": False,
    "hidden_act": "silu",
    "quantization_config": None,
}


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


def to_ours(path: tuple[str, ...], x: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Invert `to_hf`, splitting heads as `shape` says."""
    turned = path[-1] in ("q", "k", "v", "o", "gate", "up", "down")
    return (x.T if turned else x).reshape(shape)


def read_config(raw: dict[str, Any], dtype: str) -> Config:
    """Turn the content of config.json into a Config of this dtype.

    Raises:
        ValueError: a key is missing, or asks for something that we do not compute.
    """
    if raw.get("model_type") != "qwen3":
        raise ValueError(
            f"config.json: want model_type 'qwen3': {raw.get('model_type')=}"
        )
    rope = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind != "default":
        raise ValueError(f"config.json: rope of type {kind!r} is not supported")
    for key, value in UNUSED.items():
        if raw.get(key, value) not in (value, None):
            raise ValueError(f"config.json: {key}={raw[key]!r} is not supported")
    theta = rope.get("rope_theta", raw.get("rope_theta"))
    missing = [key for key in FIELDS.values() if raw.get(key) is None]
    if theta is None:
        missing.append("rope_theta")
    if missing:
        raise ValueError(f"config.json lacks {missing}")
    return Config(
        **{ours: raw[theirs] for ours, theirs in FIELDS.items()},
        rope_theta=float(theta),
        tie_embeddings=bool(raw.get("tie_word_embeddings", False)),
        dtype=dtype,
        param_dtype=dtype,
    )


def write_config(config: Config, dtype: str) -> dict[str, Any]:
    """Return the content of config.json for weights stored in `dtype`.

    Raises:
        ValueError: the config has no Qwen3 equivalent (qk_norm=False).
    """
    if not config.qk_norm:
        raise ValueError("config.json of a Qwen3 cannot say qk_norm=False")
    theta = config.rope_theta
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        **{theirs: getattr(config, ours) for ours, theirs in FIELDS.items()},
        "tie_word_embeddings": config.tie_embeddings,
        "rope_theta": theta,
        "rope_scaling": None,
        "rope_parameters": {"rope_type": "default", "rope_theta": theta},
        "max_position_embeddings": 40960,
        "hidden_act": "silu",
        "attention_bias": False,
        "use_sliding_window": False,
        "torch_dtype": dtype,
        "dtype": dtype,
    }
