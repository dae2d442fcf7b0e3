"""Adapters beside PEFT: its numbers both ways, and folders that are not for us."""

import dataclasses
import json

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from evoharness_jax.models import lora, peft, qwen3, weights
from evoharness_jax.models.lora import Spec

CONFIG = qwen3.Config(
    vocab_size=62,
    width=24,
    layers=3,
    heads=6,
    kv_heads=2,
    head_dim=8,
    mlp=40,
    rope_theta=1e4,
)
SPEC = Spec(rank=3, alpha=5.0, targets=("q", "v", "o", "down"))
TOKENS = np.random.default_rng(0).integers(0, 62, (2, 14)).astype(np.int32)
forward = jax.jit(qwen3.forward, static_argnums=1)


@pytest.fixture(scope="module")
def params():
    """Wider than usual, so that a slip shows in the logits."""
    draw = jax.jit(lambda key: qwen3.init(key, CONFIG))(jax.random.key(0))
    return jax.tree.map(lambda x: 5 * x if x.ndim > 2 else x, draw)


@pytest.fixture(scope="module")
def adapter():
    return random(SPEC)


def random(spec, config=CONFIG):
    leaves, tree = jax.tree.flatten(lora.shapes(config, spec))
    keys = jax.random.split(jax.random.key(1), len(leaves))
    drawn = [0.3 * jax.random.normal(k, x.shape) for k, x in zip(keys, leaves)]
    return jax.tree.unflatten(tree, drawn)


def theirs(folder):
    """Their base, as transformers loads it."""
    transformers = pytest.importorskip("transformers")
    return transformers.Qwen3ForCausalLM.from_pretrained(
        folder, attn_implementation="eager", local_files_only=True
    ).eval()


def logits(model):
    torch = pytest.importorskip("torch")
    with torch.no_grad():
        return model(torch.tensor(TOKENS, dtype=torch.int64)).logits.numpy()


@pytest.mark.parity
def test_peft_computes_the_same_with_our_adapter(params, adapter, tmp_path):
    library = pytest.importorskip("peft")
    weights.save(tmp_path / "base", CONFIG, params)
    peft.save(tmp_path / "adapter", CONFIG, SPEC, adapter, base="base")
    base = theirs(tmp_path / "base")
    plain = logits(base)
    model = library.PeftModel.from_pretrained(base, str(tmp_path / "adapter"))
    want = forward(lora.attach(params, adapter, SPEC), CONFIG, TOKENS)
    assert np.abs(plain - want).max() > 0.1
    np.testing.assert_allclose(logits(model), want, rtol=0, atol=1e-5)
    # Merged there and merged here: the same weights within rounding.
    merged, ours = model.merge_and_unload(), lora.merge(params, adapter, SPEC)
    got = merged.model.layers[1].mlp.down_proj.weight.detach().numpy().T
    np.testing.assert_allclose(ours["layers"]["down"][1], got, rtol=0, atol=1e-6)


@pytest.mark.parity
@pytest.mark.parametrize("rslora", [False, True])
def test_we_compute_the_same_with_an_adapter_of_peft(params, rslora, tmp_path):
    library, torch = pytest.importorskip("peft"), pytest.importorskip("torch")
    weights.save(tmp_path / "base", CONFIG, params)
    torch.manual_seed(0)
    targets = ["q_proj", "k_proj", "gate_proj", "up_proj", "o_proj"]
    options = {"task_type": "CAUSAL_LM", "use_rslora": rslora}
    config = library.LoraConfig(r=4, lora_alpha=6, target_modules=targets, **options)
    model = library.get_peft_model(theirs(tmp_path / "base"), config).eval()
    for name, weight in model.named_parameters():
        if "lora_" in name:  # B is zero at first
            weight.data = 0.3 * torch.randn_like(weight)
    model.save_pretrained(tmp_path / "adapter")
    spec, adapter = peft.load(tmp_path / "adapter", CONFIG)
    assert spec.targets == ("q", "k", "o", "gate", "up")
    assert (spec.rank, spec.scale) == (4, pytest.approx(3.0 if rslora else 1.5))
    got = forward(lora.attach(params, adapter, spec), CONFIG, TOKENS)
    np.testing.assert_allclose(got, logits(model), rtol=0, atol=1e-5)


def test_every_bit_comes_back(adapter, tmp_path):
    peft.save(tmp_path, CONFIG, SPEC, adapter, base="some/model")
    spec, found = peft.load(tmp_path, CONFIG)
    assert spec == SPEC
    for name in SPEC.targets:
        for part in "ab":
            np.testing.assert_array_equal(found[name][part], adapter[name][part])


def test_what_stands_in_the_folder(adapter, tmp_path):
    peft.save(tmp_path, CONFIG, SPEC, adapter, base="some/model")
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    assert config["target_modules"] == ["q_proj", "v_proj", "o_proj", "down_proj"]
    assert (config["r"], config["lora_alpha"], config["peft_type"]) == (3, 5.0, "LORA")
    assert config["base_model_name_or_path"] == "some/model"
    tensors = load_file(tmp_path / "adapter_model.safetensors")
    assert len(tensors) == 24
    name = "base_model.model.model.layers.2.self_attn.q_proj.lora_{}.weight"
    np.testing.assert_array_equal(tensors[name.format("A")], adapter["q"]["a"][2].T)
    # Heads and their entries are one dimension there: 6 x 8 rows.
    want = np.asarray(adapter["q"]["b"][2]).reshape(3, 48).T
    np.testing.assert_array_equal(tensors[name.format("B")], want)


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"peft_type": "IA3"}, "want peft_type LORA: 'IA3'"),
        ({"use_dora": True}, "use_dora=True is not supported"),
        ({"rank_pattern": {"q_proj": 8}}, "rank_pattern=.* is not supported"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save=.* is not supported"),
        ({"bias": "all"}, "bias='all' is not supported"),
        ({"lora_alpha": None}, "lora_alpha is not a number: None"),
        ({"r": 4}, r"layers.0.self_attn.q_proj.lora_A.weight: shape \(3, 24\), want"),
    ],
)
def test_a_config_that_we_do_not_compute_is_named(changes, words, adapter, tmp_path):
    peft.save(tmp_path, CONFIG, SPEC, adapter)
    path = tmp_path / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(ValueError, match=words):
        peft.load(tmp_path, CONFIG)


def test_damage_and_other_bases_are_named(adapter, tmp_path):
    peft.save(tmp_path, CONFIG, SPEC, adapter)
    for change, words in (
        ({"heads": 4}, r"q_proj.lora_B.weight: shape \(48, 3\), want \(32, 3\); it is"),
        ({"layers": 2}, "layers.2.* extra; this base has no such projection"),
        ({"layers": 4}, "layers.3.self_attn.q_proj.lora_A.weight: missing"),
    ):
        with pytest.raises(ValueError, match=words):
            peft.load(tmp_path, dataclasses.replace(CONFIG, **change))
    path = tmp_path / "adapter_model.safetensors"
    tensors = load_file(path)
    key = next(iter(tensors))
    save_file(tensors | {key: tensors[key] * np.nan}, path)
    with pytest.raises(ValueError, match="values are not finite"):
        peft.load(tmp_path, CONFIG)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ValueError, match="not a whole safetensors file"):
        peft.load(tmp_path, CONFIG)
    path.unlink()
    with pytest.raises(FileNotFoundError, match="has no adapter_model.safetensors"):
        peft.load(tmp_path, CONFIG)
    with pytest.raises(ValueError, match="v/a: shape None"):
        peft.save(tmp_path, CONFIG, SPEC, {"q": adapter["q"]})
