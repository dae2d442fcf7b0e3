"""Against transformers' Qwen3: the same logits, and the same files."""

import dataclasses

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

from evoharness_jax.models import qwen3, weights

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.parity

# head_dim differs from width / heads on purpose: 24 / 6 = 4.
SHAPE = {
    "vocab_size": 71,
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 40,
    "max_position_embeddings": 64,
}


def make(tied):
    torch.manual_seed(0)
    config = transformers.Qwen3Config(
        **SHAPE,
        tie_word_embeddings=tied,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 2e4},
        # Wider than usual, so that a slip in attention shows in the logits.
        initializer_range=0.3,
    )
    model = transformers.Qwen3ForCausalLM(config).eval()
    for name, weight in model.named_parameters():
        if "norm" in name:  # scales are one by default, which hides their absence
            weight.data = torch.rand_like(weight) + 0.5
    return model


@pytest.mark.parametrize("tied", [False, True])
def test_logits(tmp_path, tied):
    model = make(tied)
    model.save_pretrained(tmp_path)
    config, params = weights.load(tmp_path)
    assert config == qwen3.Config(
        vocab_size=71,
        width=24,
        layers=3,
        heads=6,
        kv_heads=2,
        head_dim=16,
        mlp=40,
        rope_theta=2e4,
        rms_eps=1e-5,
        tie_embeddings=tied,
    )
    tokens = np.random.default_rng(0).integers(0, 71, (2, 40)).astype(np.int32)
    with torch.no_grad():
        want = model(torch.tensor(tokens, dtype=torch.int64)).logits.numpy()
    got = jax.jit(qwen3.forward, static_argnums=1)(params, config, tokens)
    assert np.abs(want).max() > 1
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-4)


@pytest.mark.parametrize("tied", [False, True])
def test_their_files_are_ours_bit_for_bit(tmp_path, tied):
    make(tied).save_pretrained(tmp_path / "theirs")
    weights.save(tmp_path / "ours", *weights.load(tmp_path / "theirs"))
    theirs = load_file(tmp_path / "theirs" / "model.safetensors")
    ours = load_file(tmp_path / "ours" / "model.safetensors")
    assert theirs.keys() == ours.keys()
    for name, tensor in theirs.items():
        assert tensor.dtype == ours[name].dtype
        assert tensor.shape == ours[name].shape
        assert tensor.tobytes() == ours[name].tobytes()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("tied", [False, True])
def test_transformers_reads_our_folder(tmp_path, tied, dtype):
    config = qwen3.Config(
        vocab_size=71,
        width=24,
        layers=2,
        heads=6,
        kv_heads=2,
        head_dim=16,
        mlp=40,
        tie_embeddings=tied,
        param_dtype=dtype,
    )
    params = jax.jit(qwen3.init, static_argnums=1)(jax.random.key(0), config)
    weights.save(tmp_path, config, params)
    model, report = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, dtype="auto", local_files_only=True, output_loading_info=True
    )
    assert not any(report.values())
    assert str(model.dtype) == f"torch.{dtype}"
    assert model.config.rope_parameters["rope_theta"] == 1e6
    tensors = load_file(tmp_path / "model.safetensors")
    for name, weight in model.state_dict().items():
        if tied and name == "lm_head.weight":
            continue
        want = np.asarray(tensors[name], np.float32)
        np.testing.assert_array_equal(weight.float().numpy(), want)
    tokens = np.arange(20, dtype=np.int32)[None] * 3
    with torch.no_grad():
        want = model.float()(torch.tensor(tokens, dtype=torch.int64)).logits.numpy()
    config = dataclasses.replace(config, dtype="float32")
    got = jax.jit(qwen3.forward, static_argnums=1)(params, config, tokens)
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-4)
