"""Against transformers: the same numbers, gradients, words and files.

Each `Variant` is a random tiny model of one structure. Numbers are float32 on CPU
unless said otherwise; 1e-4 is absolute for logits and states, which are larger than 1,
and relative to the largest entry for every parameter's gradient.
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

from evoharness_jax.models import huggingface, qwen3, rope, weights

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

torch.set_num_threads(1)  # models this small only wait for one another's threads
pytestmark = pytest.mark.parity

DEFAULT = {"rope_type": "default", "rope_theta": 2e4}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 4.0,
    "original_max_position_embeddings": 16,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 1e4,
    "factor": 4.0,
    "original_max_position_embeddings": 16,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
}


class Variant(NamedTuple):
    heads: tuple[int, int] = (6, 2)
    head_dim: int = 16  # not width / heads, which is 4
    tied: bool = False
    llama: bool = False
    rope: dict = DEFAULT


VARIANTS = {
    "untied": Variant(),
    "tied": Variant(tied=True),
    "one key head": Variant(heads=(4, 1)),
    "no sharing": Variant(heads=(3, 3), head_dim=8),
    "linear": Variant(rope={"rope_type": "linear", "rope_theta": 1e4, "factor": 3.0}),
    "yarn": Variant(rope=YARN),
    "llama3": Variant(rope=LLAMA3),
    "llama": Variant(llama=True),
    "llama, tied, llama3": Variant(llama=True, tied=True, rope=LLAMA3),
}
SIZES = {
    "vocab_size": 71,
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "intermediate_size": 40,
    "max_position_embeddings": 64,
}


def make(variant, sizes=SIZES, wide=0.3):
    """Draw a model of theirs; wider than usual, so that a slip shows in the logits."""
    torch.manual_seed(0)
    heads, kv_heads = variant.heads
    kind = "Llama" if variant.llama else "Qwen3"
    config = getattr(transformers, f"{kind}Config")(
        **sizes,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=variant.head_dim,
        tie_word_embeddings=variant.tied,
        rms_norm_eps=1e-5,
        rope_parameters=dict(variant.rope),
        initializer_range=wide,
        bos_token_id=None,
        eos_token_id=None,
        attn_implementation="eager",
    )
    model = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    for name, weight in model.named_parameters():
        if "norm" in name:  # scales are one by default, which hides their absence
            weight.data = torch.rand_like(weight) + 0.5
    return model


def loaded(model, folder):
    model.save_pretrained(folder)
    return weights.load(folder)


def words(rows, length, vocab=71):
    return np.random.default_rng(0).integers(0, vocab, (rows, length)).astype(np.int32)


def theirs(model, tokens, **options):
    with torch.no_grad():
        return model(torch.tensor(tokens, dtype=torch.int64), **options)


forward = jax.jit(qwen3.forward, static_argnums=1)
hidden = jax.jit(qwen3.hidden, static_argnums=1)
extend = jax.jit(qwen3.extend, static_argnums=1)


def loss(params, config, tokens):
    """Mean negative log-probability of every token but the first, and the logits."""
    logits = qwen3.forward(params, config, tokens)
    table = jax.nn.log_softmax(logits[:, :-1])
    return -jnp.take_along_axis(table, tokens[:, 1:, None], axis=-1).mean(), logits


def compare(model, config, params, tokens):
    """Logits, loss, and every parameter's gradient (relative to its largest entry)."""
    ids = torch.tensor(tokens, dtype=torch.int64)
    out = model(ids, labels=ids)
    out.loss.backward()
    step = jax.jit(
        jax.value_and_grad(loss, has_aux=True),
        static_argnums=1,
        # Run once, so compiling is what costs.
        compiler_options={"xla_backend_optimization_level": 0},
    )
    (value, logits), grads = step(params, config, tokens)
    assert out.logits.abs().max() > 1
    np.testing.assert_allclose(logits, out.logits.detach(), rtol=0, atol=1e-4)
    assert float(value) == pytest.approx(out.loss.item(), abs=1e-5)
    want = {name: p.grad.numpy() for name, p in model.named_parameters()}
    seen = set()
    for path, leaf in jax.tree_util.tree_flatten_with_path(grads)[0]:
        path = tuple(key.key for key in path)
        parts = leaf if path[0] == "layers" else leaf[None]
        for part, name in zip(parts, huggingface.names(path, config.layers)):
            got = huggingface.to_hf(path, np.asarray(part))
            size = np.abs(want[name]).max()
            assert size > 1e-4, name
            np.testing.assert_allclose(
                got, want[name], rtol=0, atol=1e-4 * size, err_msg=name
            )
            seen.add(name)
    assert seen == want.keys()


@pytest.mark.parametrize("name", VARIANTS)
def test_logits_and_gradients(tmp_path, name):
    variant = VARIANTS[name]
    model = make(variant)
    config, params = loaded(model, tmp_path)
    assert (config.heads, config.kv_heads) == variant.heads
    assert config.qk_norm is not variant.llama
    assert config.tie_embeddings is variant.tied
    kind = config.rope_scaling and config.rope_scaling.kind
    assert (kind or "default") == variant.rope["rope_type"]
    compare(model, config, params, words(2, 40))


def test_the_config_is_read_as_it_is(tmp_path):
    config, _ = loaded(make(VARIANTS["untied"]), tmp_path)
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
    )


@pytest.mark.parametrize("name, layers", [("untied", 1), ("tied", 2), ("llama", 3)])
def test_states(tmp_path, name, layers):
    """The first layers alone give what theirs give behind as many, and the norm."""
    model = make(VARIANTS[name])
    config, params = loaded(model, tmp_path)
    tokens = words(2, 16)
    states = theirs(model, tokens, output_hidden_states=True).hidden_states
    assert len(states) == 4
    want = states[layers]
    if layers < 3:  # the last one stands behind the norm already
        with torch.no_grad():
            want = model.model.norm(want)
    short = dataclasses.replace(config, layers=layers)
    cut = jax.tree.map(lambda x: x[:layers], params["layers"])
    got = hidden(dict(params, layers=cut), short, tokens)
    assert want.abs().max() > 1
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    "settings",
    [
        {"rope_type": "default"},
        {"rope_type": "linear", "factor": 3.0},
        YARN,
        YARN | {"attention_factor": 1.3, "beta_fast": 4, "truncate": False},
        YARN | {"mscale": 1.0, "mscale_all_dim": 0.5},
        LLAMA3,
    ],
    ids=str,
)
@pytest.mark.parametrize("theta", [1e4, 1e6])
def test_rope_frequencies_at_published_sizes(settings, theta):
    """One unit in the last place is what powers may differ by."""
    settings = settings | {"rope_theta": theta}
    if "original_max_position_embeddings" in settings:
        settings["original_max_position_embeddings"] = 8192
    their = transformers.Qwen3Config(head_dim=128, rope_parameters=dict(settings))
    rotary = transformers.models.qwen3.modeling_qwen3.Qwen3RotaryEmbedding(their)
    config = huggingface.read_config(their.to_dict(), "float32")
    got, grown = rope.frequencies(128, config.rope_theta, config.rope_scaling)
    np.testing.assert_allclose(got, rotary.inv_freq.numpy(), rtol=2.4e-7)
    assert grown == pytest.approx(rotary.attention_scaling, rel=1e-12)


@pytest.mark.slow
def test_one_layer_at_the_size_of_8b(tmp_path):
    """Qwen3-8B's layer as published, in front of a small vocabulary."""
    published = qwen3.CONFIGS["qwen3-8b"]
    sizes = SIZES | {
        "hidden_size": published.width,
        "intermediate_size": published.mlp,
        "num_hidden_layers": 1,
    }
    heads = (published.heads, published.kv_heads)
    model = make(Variant(heads=heads, head_dim=published.head_dim), sizes, wide=0.02)
    config, params = loaded(model, tmp_path)
    assert qwen3.shapes(config)["layers"] == jax.tree.map(
        lambda x: jax.ShapeDtypeStruct((1, *x.shape[1:]), x.dtype),
        qwen3.shapes(published)["layers"],
    )
    compare(model, config, params, words(1, 24))


@pytest.mark.parametrize("name", ["untied", "tied", "llama, tied, llama3"])
def test_64_greedy_words(tmp_path, name):
    model = make(VARIANTS[name], SIZES | {"max_position_embeddings": 128})
    config, params = loaded(model, tmp_path)
    tokens = words(2, 10)
    want = model.generate(
        torch.tensor(tokens, dtype=torch.int64),
        attention_mask=torch.ones(2, 10, dtype=torch.int64),
        do_sample=False,
        max_new_tokens=64,
        pad_token_id=0,
    )[:, 10:].numpy()
    cache = qwen3.init_cache(config, 2, 80)
    count = np.full(2, 10, np.int32)
    cache, logits = extend(params, config, cache, tokens, np.zeros(2, np.int32), count)

    def one(carry, place):
        cache, word = carry
        start = jnp.full(2, place, jnp.int32)
        cache, logits = qwen3.extend(
            params, config, cache, word[:, None], start, jnp.ones_like(start)
        )
        return (cache, jnp.argmax(logits, -1).astype(jnp.int32)), word

    first = jnp.argmax(logits, -1).astype(jnp.int32)
    places = jnp.arange(10, 74, dtype=jnp.int32)
    _, got = jax.jit(lambda c: jax.lax.scan(one, c, places))((cache, first))
    assert got.shape == (64, 2)
    assert len(np.unique(want)) > 5
    np.testing.assert_array_equal(got.T, want)


def test_padded_rows_are_theirs(tmp_path):
    """A row padded on the left, as transformers batches it, and packed, as we do."""
    model = make(VARIANTS["untied"])
    config, params = loaded(model, tmp_path)
    tokens = words(2, 12)
    mask = np.ones((2, 12), np.int64)
    mask[1, :5] = 0
    out = theirs(
        model,
        tokens,
        attention_mask=torch.tensor(mask),
        position_ids=torch.tensor(np.maximum(mask.cumsum(1) - 1, 0)),
    )
    row = np.concatenate([tokens[0], tokens[1, 5:], np.zeros(3, np.int32)])[None]
    ids = np.array([[1] * 12 + [2] * 7 + [0] * 3], np.int32)
    got = forward(params, config, row, None, ids)[0]
    np.testing.assert_allclose(got[:12], out.logits[0], rtol=0, atol=1e-4)
    np.testing.assert_allclose(got[12:19], out.logits[1, 5:], rtol=0, atol=1e-4)


def test_bfloat16(tmp_path):
    """Rounding costs no more than in theirs, beside float32 on the same weights.

    The two round in other places, so they do not agree with one another. Log-probs are
    some -4 here. The mean error of both lies below 0.05, and ours is at most a fifth
    larger than theirs.
    """
    model = make(VARIANTS["untied"], wide=0.1)
    for weight in model.parameters():  # not `.to`, which rounds their rope too
        weight.data = weight.data.to(torch.bfloat16).float()
    config, params = loaded(model, tmp_path)
    tokens = words(8, 40)
    truth = jax.nn.log_softmax(forward(params, config, tokens))
    want = theirs(model, tokens).logits.log_softmax(-1)
    np.testing.assert_allclose(truth, want, rtol=0, atol=1e-4)
    config, params = weights.load(tmp_path, dtype="bfloat16")
    got = jax.nn.log_softmax(forward(params, config, tokens))
    rough = type(model).from_pretrained(
        tmp_path, dtype=torch.bfloat16, attn_implementation="eager"
    )
    other = theirs(rough, tokens).logits.float().log_softmax(-1).numpy()
    ours, allowed = (float(np.abs(x - truth).mean()) for x in (got, other))
    assert 0 < ours < 0.05 and 0 < allowed < 0.05
    assert ours < 1.2 * allowed


@pytest.mark.parametrize("name", VARIANTS)
def test_their_files_are_ours_bit_for_bit(tmp_path, name):
    model = make(VARIANTS[name])
    config, params = loaded(model, tmp_path / "theirs")
    weights.save(tmp_path / "ours", config, params)
    files = [load_file(tmp_path / x / "model.safetensors") for x in ("theirs", "ours")]
    assert files[0].keys() == files[1].keys()
    for key, tensor in files[0].items():
        assert tensor.dtype == files[1][key].dtype
        assert tensor.shape == files[1][key].shape
        assert tensor.tobytes() == files[1][key].tobytes()
    again, report = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "ours", local_files_only=True, output_loading_info=True
    )
    assert not any(report.values())
    assert type(again) is type(model)
    tokens = words(1, 30)
    np.testing.assert_allclose(
        theirs(again, tokens).logits, theirs(model, tokens).logits, rtol=0, atol=1e-5
    )


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
    rng = np.random.default_rng(0)
    params = jax.tree.map(
        lambda x: rng.normal(size=x.shape).astype(x.dtype), qwen3.shapes(config)
    )
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
    want = theirs(model.float(), tokens).logits.numpy()
    config = dataclasses.replace(config, dtype="float32")
    got = forward(params, config, tokens)
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-4)
