"""config.json of both transformers, and where a slice of ours stands in a folder."""

import dataclasses
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evoharness_jax.models import huggingface, qwen3, rope

CONFIG = qwen3.Config(
    vocab_size=53, width=24, layers=2, heads=4, kv_heads=2, head_dim=8, mlp=40
)
LLAMA = dataclasses.replace(CONFIG, qk_norm=False)
YARN = rope.Scaling("yarn", 4.0, 32768, beta_fast=16.0, truncate=False)


@pytest.mark.parametrize(
    "scaling",
    [
        None,
        rope.Scaling("linear", 2.0),
        rope.Scaling("yarn", 4.0, 32768),
        dataclasses.replace(YARN, attention_factor=1.5),
        rope.Scaling("llama3", 8.0, 8192, low_freq_factor=1.0, high_freq_factor=4.0),
    ],
    ids=lambda s: s.kind if s else "default",
)
def test_both_rope_spellings(scaling):
    config = dataclasses.replace(CONFIG, rope_scaling=scaling)
    raw = huggingface.write_config(config, "float32")
    raw = json.loads(json.dumps(raw))
    four = {k: v for k, v in raw.items() if k != "rope_parameters"}
    five = {k: v for k, v in raw.items() if k not in ("rope_theta", "rope_scaling")}
    for spelling in (raw, four, five):
        assert huggingface.read_config(spelling, "float32") == config


def test_rope_settings_as_they_are_published():
    """What a Qwen3 card tells to write for 131,072 positions, and what follows."""
    raw = huggingface.write_config(CONFIG, "float32")
    raw["rope_scaling"] = {
        "type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 32768,
    }
    config = huggingface.read_config(raw, "float32")
    assert config.rope_scaling == rope.Scaling("yarn", 4.0, 32768)
    assert huggingface.write_config(config, "float32")["max_position_embeddings"] == (
        131072
    )
    # Not said: the length that the model reads. (0.1 ln 4 + 1) / (0.05 ln 4 + 1) is
    # 1.0648.
    raw["rope_scaling"] = {
        "rope_type": "yarn",
        "factor": 4.0,
        "mscale": 1.0,
        "mscale_all_dim": 0.5,
    }
    scaling = huggingface.read_config(raw, "float32").rope_scaling
    assert scaling.original_length == 40960
    assert scaling.attention_factor == pytest.approx(1.0648, abs=1e-4)


def test_config_keeps_what_it_does_not_compute():
    base = {"eos_token_id": 7, "max_position_embeddings": 99, "hidden_size": 1}
    raw = huggingface.write_config(CONFIG, "bfloat16", base)
    assert raw["eos_token_id"] == 7 and raw["max_position_embeddings"] == 99
    assert raw["hidden_size"] == 24 and raw["dtype"] == "bfloat16"
    assert raw["architectures"] == ["Qwen3ForCausalLM"]
    raw = huggingface.write_config(LLAMA, "bfloat16")
    assert raw["architectures"] == ["LlamaForCausalLM"] and not raw["mlp_bias"]


def test_old_llama_leaves_out_what_follows():
    raw = huggingface.write_config(dataclasses.replace(LLAMA, head_dim=6), "float32")
    del raw["head_dim"], raw["num_key_value_heads"]
    got = huggingface.read_config(raw, "float32")
    assert (got.head_dim, got.kv_heads) == (6, 4)


SHAPES = {
    ("layers", "q"): (24, 4, 8),
    ("layers", "o"): (4, 8, 24),
    ("layers", "down"): (40, 24),
    ("layers", "k_norm"): (8,),
    ("embed",): (53, 24),
}


@given(st.sampled_from(sorted(SHAPES)), st.data())
@settings(max_examples=40)
def test_slices_of_what_is_stored(path, data):
    """A slice laid out is the layout's slice, whichever dimensions are cut."""
    shape = SHAPES[path]
    x = np.arange(np.prod(shape)).reshape(shape)
    index = []
    for size in shape:
        ends = st.tuples(st.integers(0, size), st.integers(0, size))
        low, high = sorted(data.draw(ends))
        whole = len(shape) == 3 and size == 8  # head_dim
        index.append(slice(None) if whole else slice(low, high))
    where = huggingface.stored_slices(path, tuple(index), shape)
    part = x[tuple(index)]
    stored = huggingface.to_hf(path, x)[where]
    np.testing.assert_array_equal(huggingface.to_ours(path, stored, part.shape), part)


def test_a_cut_head_is_no_slice():
    index = (slice(None), slice(None), slice(0, 4))
    with pytest.raises(ValueError, match="layers/q: head_dim is cut"):
        huggingface.stored_slices(("layers", "q"), index, (24, 4, 8))
