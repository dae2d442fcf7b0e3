"""Folders: bit for bit both ways, and every kind of broken one by name."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from evoharness_jax.models import folder as folders
from evoharness_jax.models import qwen3, weights

CONFIG = qwen3.Config(
    vocab_size=53, width=24, layers=2, heads=4, kv_heads=2, head_dim=8, mlp=40
)
TIED = dataclasses.replace(CONFIG, tie_embeddings=True)
LLAMA = dataclasses.replace(CONFIG, qk_norm=False)
Q = "model.layers.1.self_attn.q_proj.weight"
EMBED, HEAD = "model.embed_tokens.weight", "lm_head.weight"


def draw(config):
    """Fill the shapes of a config with noise; quicker than compiling `init`."""
    rng = np.random.default_rng(0)
    return jax.tree.map(
        lambda x: jnp.asarray(rng.normal(size=x.shape), x.dtype), qwen3.shapes(config)
    )


def same_bits(one, other):
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other)):
        assert a.dtype == b.dtype and a.shape == b.shape
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


@pytest.fixture
def folder(tmp_path):
    weights.save(tmp_path, CONFIG, draw(CONFIG))
    return tmp_path


def edit(folder, change):
    """Rewrite model.safetensors after `change` has had its way with the tensors."""
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


@pytest.mark.parametrize("config", [CONFIG, TIED, LLAMA])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_round_trip(tmp_path, config, dtype):
    config = dataclasses.replace(config, dtype=dtype, param_dtype=dtype)
    params = draw(config)
    weights.save(tmp_path, config, params)
    got_config, got = weights.load(tmp_path)
    assert got_config == config
    same_bits(got, params)


@pytest.mark.parametrize("shard_bytes", [1, 5000])
def test_shards(tmp_path, shard_bytes):
    params = draw(CONFIG)
    weights.save(tmp_path, CONFIG, params)
    weights.save(tmp_path, CONFIG, params, shard_bytes=shard_bytes)
    index = json.loads((tmp_path / folders.INDEX).read_text())
    files = sorted(p.name for p in tmp_path.glob("*.safetensors"))
    assert files == sorted(set(index["weight_map"].values())) and len(files) > 2
    assert files[0] == f"model-00001-of-{len(files):05d}.safetensors"
    same_bits(weights.load(tmp_path)[1], params)
    weights.save(tmp_path, CONFIG, params)  # and back to one file
    names = sorted(p.name for p in tmp_path.iterdir())
    assert names == ["config.json", "model.safetensors"]


def test_layout(folder):
    """Row h * E + e of HF's q matrix is column [h, e] of ours, transposed."""
    _, params = weights.load(folder)
    tensors = load_file(folder / "model.safetensors")
    assert tensors[Q].shape == (32, 24)
    np.testing.assert_array_equal(tensors[Q][19], params["layers"]["q"][1][:, 2, 3])
    out = tensors["model.layers.0.self_attn.o_proj.weight"]
    np.testing.assert_array_equal(out[:, 19], params["layers"]["o"][0][2, 3])
    np.testing.assert_array_equal(tensors[HEAD], params["head"])


def test_cast(folder):
    config, params = weights.load(folder, dtype=jnp.bfloat16)
    assert config.dtype == config.param_dtype == "bfloat16"
    exact = weights.load(folder)[1]
    same_bits(params, jax.tree.map(lambda x: x.astype(jnp.bfloat16), exact))


def test_tied_folder_may_repeat_its_embedding(tmp_path):
    params = draw(TIED)
    weights.save(tmp_path, TIED, params)
    edit(tmp_path, lambda t: t.update({HEAD: t[EMBED]}))
    same_bits(weights.load(tmp_path)[1], params)
    edit(tmp_path, lambda t: t.update({HEAD: t[EMBED] + 1}))
    with pytest.raises(ValueError, match=f"{HEAD}: extra"):
        weights.load(tmp_path)


def set_value(name, value):
    def change(tensors):
        tensors[name] = tensors[name].copy()
        tensors[name].flat[3] = value

    return change


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda t: t.pop(Q), f"{Q}: missing"),
        (lambda t: t.pop(HEAD), f"{HEAD}: missing"),
        (lambda t: t.update({"model.layers.2.x": t[Q]}), "model.layers.2.x: extra"),
        (lambda t: t.update({Q: t[Q].T.copy()}), rf"{Q}: shape \(24, 32\), want"),
        (set_value(Q, np.nan), f"{Q}: 1 of 768 values are not finite"),
        (set_value(EMBED, np.inf), f"{EMBED}: 1 of 1272 values are not finite"),
        (lambda t: t.update({Q: t[Q].astype(np.float16)}), f"{Q}: F16, but"),
        (lambda t: t.update({Q: t[Q].astype(np.int8)}), f"{Q}: dtype I8"),
    ],
)
def test_broken_tensors(folder, change, message):
    edit(folder, change)
    with pytest.raises(ValueError, match=message):
        weights.load(folder)


def test_value_that_the_asked_dtype_cannot_hold(folder):
    edit(folder, set_value(Q, 1e6))
    weights.load(folder)
    with pytest.raises(ValueError, match=f"{Q}: 1 of 768"):
        weights.load(folder, dtype="float16")


def test_mixed_dtypes_load_as_one_when_asked(folder):
    edit(folder, lambda t: t.update({Q: t[Q].astype(np.float16)}))
    assert weights.load(folder, dtype="float32")[1]["layers"]["q"].dtype == jnp.float32


@pytest.mark.parametrize(
    "change, message",
    [
        ({"model_type": "qwen2"}, "'qwen2'"),
        ({"model_type": "llama"}, "model.layers.0.self_attn.k_norm.weight: extra"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "sliding"),
        ({"attention_bias": True}, "attention_bias=True"),
        ({"hidden_act": "gelu"}, "hidden_act='gelu'"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e6}}, "needs factor"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "'dynamic' is not"),
        ({"rope_scaling": {"rope_type": "linear", "factor": -1}}, "factor must be"),
        ({"rope_scaling": {"type": "linear", "factor": 2, "axes": 3}}, "'axes'"),
        ({"rope_scaling": {"type": "llama3", "factor": 2}}, "needs low_freq_factor"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor=0.5"),
        ({"head_dim": None}, "head_dim"),
        ({"rope_theta": None, "rope_parameters": None}, "rope_theta"),
        ({"num_hidden_layers": 3}, "model.layers.2.*: missing"),
        ({"num_hidden_layers": 1}, "model.layers.1.*: extra"),
    ],
)
def test_broken_config(folder, change, message):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ValueError, match=message):
        weights.load(folder)


@pytest.mark.parametrize("text", ["{", "[]", ""])
@pytest.mark.parametrize("name", ["config.json", folders.INDEX])
def test_broken_json(tmp_path, name, text):
    weights.save(tmp_path, CONFIG, draw(CONFIG), shard_bytes=5000)
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=f"{name}: not"):
        weights.load(tmp_path)


def test_cut_file(folder):
    path = folder / "model.safetensors"
    for size in (-100, 60, 4):
        path.write_bytes(path.read_bytes()[:size])
        with pytest.raises(ValueError, match="model.safetensors: not a whole"):
            weights.load(folder)


def index_of(folder, change):
    path = folder / folders.INDEX
    index = json.loads(path.read_text())
    change(index["weight_map"])
    path.write_text(json.dumps(index))


@pytest.mark.parametrize(
    "change, error, message",
    [
        (lambda m: m.update(ghost=m[Q]), ValueError, "ghost: missing"),
        (lambda m: m.pop(Q), ValueError, f"{Q}: in .* has it in nowhere"),
        (lambda m: m.update({Q: m[EMBED]}), ValueError, f"{Q}: in .* has it in"),
        (lambda m: m.update({Q: "../x"}), ValueError, f"{Q}: .* no file of the folder"),
        (lambda m: m.update({Q: "x"}), FileNotFoundError, f"{Q}: .* x, which is not"),
        (lambda m: m.clear(), ValueError, "no weight_map"),
    ],
)
def test_broken_index(tmp_path, change, error, message):
    weights.save(tmp_path, CONFIG, draw(CONFIG), shard_bytes=5000)
    index_of(tmp_path, change)
    with pytest.raises(error, match=message):
        weights.load(tmp_path)


def test_lost_and_doubled_files(tmp_path):
    weights.save(tmp_path, CONFIG, draw(CONFIG), shard_bytes=5000)
    first = sorted(tmp_path.glob("*.safetensors"))[0]
    first.rename(tmp_path / folders.SINGLE)
    with pytest.raises(ValueError, match="holds both"):
        weights.load(tmp_path)
    (tmp_path / folders.SINGLE).unlink()
    with pytest.raises(FileNotFoundError, match=f"{first.name}, which is not there"):
        weights.load(tmp_path)


def test_save_refuses_and_keeps_what_was_there(folder):
    params = weights.load(folder)[1]
    before = {p.name: p.read_bytes() for p in folder.iterdir()}
    short = dict(params, head=params["head"][:-1])
    wrong = dict(params, norm=params["norm"].at[0].set(jnp.nan))
    mixed = dict(params, norm=params["norm"].astype(jnp.bfloat16))
    lost = {k: v for k, v in params.items() if k != "head"}
    for bad, message in (
        (short, r"head: shape \(52, 24\)"),
        (wrong, "model.norm.weight: 1 of 24"),
        (mixed, "params must share one"),
        (lost, "'head'"),
    ):
        with pytest.raises(ValueError, match=message):
            weights.save(folder, CONFIG, bad)
    with pytest.raises(ValueError, match="model.norm.weight: 1 of 24"):
        big = dict(params, norm=params["norm"].at[0].set(1e6))
        weights.save(folder, CONFIG, big, dtype="float16")
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == before


def test_missing_folder(tmp_path):
    with pytest.raises(FileNotFoundError):
        weights.load(tmp_path / "nowhere")


def test_export_of_a_folder(folder, tmp_path_factory):
    """Bits, special ids and tokenizer files arrive; the dtype is what was asked."""
    out = tmp_path_factory.mktemp("out")
    (folder / "tokenizer.json").write_text("{}")
    raw = json.loads((folder / "config.json").read_text()) | {"eos_token_id": 5}
    (folder / "config.json").write_text(json.dumps(raw))
    weights.main(["export", "--run", str(folder), "--out", str(out)])
    assert sorted(p.name for p in out.iterdir()) == [
        "config.json",
        "model.safetensors",
        "tokenizer.json",
    ]
    assert json.loads((out / "config.json").read_text()) == raw
    config, params = weights.load(folder)
    same_bits(weights.load(out)[1], params)
    weights.export(folder, out, "bfloat16")
    same_bits(
        weights.load(out)[1], jax.tree.map(lambda x: x.astype(jnp.bfloat16), params)
    )


def test_export_says_what_is_wrong(folder, tmp_path):
    for source, message in ((folder, "is the folder to export"), ("no", "config.json")):
        with pytest.raises(SystemExit, match=message):
            weights.main(["export", "--run", str(source), "--out", str(folder)])
