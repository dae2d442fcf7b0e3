"""The decoder against itself: packing, caches, scores, shapes."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evoharness_jax.models import qwen3, rope

CONFIG = qwen3.Config(
    vocab_size=97, width=32, layers=2, heads=4, kv_heads=2, head_dim=16, mlp=48
)

init = jax.jit(qwen3.init, static_argnums=1)
forward = jax.jit(qwen3.forward, static_argnums=1)
hidden = jax.jit(qwen3.hidden, static_argnums=1)
extend = jax.jit(qwen3.extend, static_argnums=1)
logprobs = jax.jit(qwen3.logprobs, static_argnums=1, static_argnames="chunk")


@pytest.fixture(scope="module")
def params():
    """Noise wider than `init` draws, so that a wrong mask shows in the numbers."""
    rng = np.random.default_rng(0)

    def noise(path, leaf):
        around = 1.0 if "norm" in jax.tree_util.keystr(path) else 0.0
        return jnp.asarray(rng.normal(around, 0.2, leaf.shape), leaf.dtype)

    return jax.tree_util.tree_map_with_path(noise, qwen3.shapes(CONFIG))


def draw(seed, *shape):
    return jax.random.randint(jax.random.key(seed), shape, 0, CONFIG.vocab_size)


# What keras-hub lists for the published weights; 8B by hand:
# 36 * (2*4096*4096 + 2*4096*1024 + 3*4096*12288 + 2*4096 + 2*128)
# + 2 * 151936*4096 + 4096
COUNTS = {
    "qwen3-0.6b": 596_049_920,
    "qwen3-1.7b": 1_720_574_976,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
    "qwen3-14b": 14_768_307_200,
    "qwen3-32b": 32_762_123_264,
    "household-tiny": 918_912,
    "counter-tiny": 106_944,
}


def test_param_counts():
    assert {n: qwen3.param_count(c) for n, c in qwen3.CONFIGS.items()} == COUNTS


def test_published_sizes():
    large = {n: c for n, c in qwen3.CONFIGS.items() if n.startswith("qwen3-")}
    tied = {n for n, c in large.items() if c.tie_embeddings}
    assert tied == {"qwen3-0.6b", "qwen3-1.7b", "qwen3-4b"}
    for config in large.values():
        assert (config.head_dim, config.kv_heads, config.vocab_size) == (128, 8, 151936)
        assert (config.rope_theta, config.rms_eps) == (1e6, 1e-6)
        assert config.qk_norm and config.rope_scaling is None
    # The heads of these are wider, or narrower, than their stream.
    assert large["qwen3-0.6b"].heads * 128 == 2 * large["qwen3-0.6b"].width
    assert large["qwen3-32b"].heads * 128 > large["qwen3-32b"].width


def test_config_survives_json():
    """As a checkpoint keeps it: nested fields come back as dicts."""
    scaling = rope.Scaling("yarn", 4.0, 32768)
    config = dataclasses.replace(CONFIG, rope_scaling=scaling)
    facts = json.loads(json.dumps(dataclasses.asdict(config)))
    assert qwen3.Config(**facts) == config
    assert hash(qwen3.Config(**facts)) == hash(config)


def test_init_is_a_plain_dict_with_axes_beside_it():
    params = init(jax.random.key(0), CONFIG)
    assert np.std(params["layers"]["gate"]) == pytest.approx(0.02, rel=0.1)
    assert np.std(params["layers"]["o"]) == pytest.approx(0.01, rel=0.1)
    assert np.all(params["layers"]["q_norm"] == 1)
    leaves, structure = jax.tree.flatten(params)
    assert type(params) is dict and type(params["layers"]) is dict
    assert all(isinstance(x, jax.Array) for x in leaves)
    assert params["layers"]["q"].shape == (2, 32, 4, 16)
    assert params["layers"]["down"].shape == (2, 48, 32)
    assert params["head"].shape == params["embed"].shape == (97, 32)
    axes = qwen3.logical_axes(CONFIG)
    assert axes["layers"]["k"] == ("layers", "embed", "kv_heads", "head_dim")
    assert axes["norm"] == ("norm",)
    named = jax.tree.structure(axes, is_leaf=lambda x: isinstance(x, tuple))
    assert named == structure == jax.tree.structure(qwen3.shapes(CONFIG))
    shapes = jax.tree.map(lambda x: (x.shape, x.dtype), qwen3.shapes(CONFIG))
    assert shapes == jax.tree.map(lambda x: (x.shape, x.dtype), params)


def test_causal(params):
    tokens = draw(1, 1, 12)
    changed = tokens.at[0, 7].set((tokens[0, 7] + 1) % 97)
    one, two = (forward(params, CONFIG, t) for t in (tokens, changed))
    np.testing.assert_array_equal(one[:, :7], two[:, :7])
    assert np.abs(one[:, 7:] - two[:, 7:]).max(axis=-1).min() > 1e-3


def test_tied_head_is_the_embedding(params):
    config = dataclasses.replace(CONFIG, tie_embeddings=True)
    params = {k: v for k, v in params.items() if k != "head"}
    assert qwen3.shapes(config).keys() == params.keys()
    tokens = draw(1, 1, 5)
    want = hidden(params, config, tokens) @ params["embed"].T
    np.testing.assert_allclose(forward(params, config, tokens), want, rtol=0, atol=1e-5)


def packed():
    """Three segments of 4, 6 and 3 tokens, and 3 of padding, in one row."""
    parts = [draw(2, 1, 4), draw(3, 1, 6), draw(4, 1, 3)]
    row = jnp.concatenate([*parts, jnp.zeros((1, 3), jnp.int32)], axis=1)
    segments = jnp.array([[1] * 4 + [2] * 6 + [3] * 3 + [0] * 3], jnp.int32)
    positions = jnp.array([[*range(4), *range(6), *range(3), 0, 0, 0]], jnp.int32)
    return parts, row, segments, positions


@pytest.mark.parametrize("given", [True, False])
def test_packed_is_separate(params, given):
    parts, row, segments, positions = packed()
    got = forward(params, CONFIG, row, positions if given else None, segments)
    want = [forward(params, CONFIG, part) for part in parts]
    np.testing.assert_allclose(
        got[:, :13], jnp.concatenate(want, axis=1), rtol=0, atol=1e-5
    )
    assert np.isfinite(got).all()


@pytest.mark.parametrize("name", ["blocks", "splash"])
def test_other_attention_is_the_same_model(params, name):
    config = dataclasses.replace(CONFIG, attention=name)
    _, row, segments, _ = packed()
    got, want = (forward(params, c, row, None, segments) for c in (config, CONFIG))
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-4)
    # Over a cache both compute what `xla` does, here as one piece of 13 places.
    ints = (np.zeros(1, np.int32), np.full(1, 13, np.int32))
    cache = qwen3.init_cache(CONFIG, 1, 16)
    (_, got), (_, want) = (
        extend(params, c, cache, row, *ints) for c in (config, CONFIG)
    )
    np.testing.assert_array_equal(got, want)


def test_without_q_and_k_norms():
    config = dataclasses.replace(CONFIG, qk_norm=False)
    layers = qwen3.shapes(config)["layers"]
    assert set(qwen3.shapes(CONFIG)["layers"]) - set(layers) == {"q_norm", "k_norm"}
    assert qwen3.param_count(CONFIG) - qwen3.param_count(config) == 2 * 2 * 16


def test_yarn_reads_a_cache_as_whole_rows(params):
    """Scaled rope in pieces: the factor of cos and sin is in the cached keys too."""
    config = dataclasses.replace(CONFIG, rope_scaling=rope.Scaling("yarn", 4.0, 8))
    tokens = draw(11, 1, 12)
    want = forward(params, config, tokens)
    assert np.abs(want - forward(params, CONFIG, tokens)).max() > 1e-2
    cache = qwen3.init_cache(config, 1, 12)
    for start in (0, 4, 8):
        place = np.array([start], np.int32)
        piece = tokens[:, start : start + 4]
        cache, logits = extend(
            params, config, cache, piece, place, np.array([4], np.int32)
        )
        np.testing.assert_allclose(logits, want[:, start + 3], rtol=0, atol=1e-4)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("chunk", [1, 5, 1000])
def test_logprobs_is_log_softmax(params, chunk, temperature):
    _, row, segments, _ = packed()
    logits = forward(params, CONFIG, row, segment_ids=segments)
    table = jax.nn.log_softmax(logits / temperature)
    logp, entropy = logprobs(
        params, CONFIG, row, None, segments, chunk=chunk, temperature=temperature
    )
    assert logp.dtype == entropy.dtype == jnp.float32
    first = {0, 4, 10, 13, 14, 15}  # starts of segments, and padding
    for t in range(16):
        want = (0.0, 0.0)
        if t not in first:
            scored = table[0, t - 1]
            want = (scored[row[0, t]], -(np.exp(scored) * scored).sum())
        np.testing.assert_allclose((logp[0, t], entropy[0, t]), want, atol=1e-5)


@pytest.mark.parametrize("remat", ["none", "full"])
def test_logprobs_gradient(params, remat):
    config = dataclasses.replace(CONFIG, remat=remat)
    _, row, segments, _ = packed()

    def chunked(params):
        logp, entropy = qwen3.logprobs(params, config, row, None, segments, chunk=5)
        return logp.sum() + 0.1 * entropy.sum()

    def whole(params):
        logits = forward(params, CONFIG, row, segment_ids=segments)
        table = jax.nn.log_softmax(logits)[0]
        entropy = -(jnp.exp(table) * table).sum(-1)
        kept = np.array([0, 1, 2, 4, 5, 6, 7, 8, 10, 11])  # scores kept + 1
        return table[kept, row[0, kept + 1]].sum() + 0.1 * entropy[kept].sum()

    got, want = jax.jit(jax.grad(chunked))(params), jax.jit(jax.grad(whole))(params)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), got, want
    )


@pytest.mark.parametrize("name", ["remat", "attention"])
def test_config_rejects_unknown_names(name):
    with pytest.raises(ValueError, match=f"{name}='nothing'"):
        dataclasses.replace(CONFIG, **{name: "nothing"})


def test_config_rejects_heads_that_do_not_divide():
    with pytest.raises(ValueError, match="kv_heads=3"):
        dataclasses.replace(CONFIG, kv_heads=3)


def test_logprobs_rejects_chunk_zero(params):
    with pytest.raises(ValueError, match="chunk=0"):
        logprobs(params, CONFIG, draw(1, 1, 4), chunk=0)


def test_extend_in_pieces_is_forward(params):
    tokens, lengths = draw(5, 3, 14), [14, 9, 4]
    want = forward(params, CONFIG, tokens)
    cache = qwen3.init_cache(CONFIG, 3, 16)
    start = np.zeros(3, np.int32)
    for counts in ([4, 3, 0], [1, 4, 2], [0, 1, 1], [4, 0, 0], [4, 1, 1], [1, 0, 0]):
        count = np.array(counts, np.int32)
        piece = np.full((3, 4), 96, np.int32)  # what pads must not matter
        for b in range(3):
            piece[b, : count[b]] = tokens[b, start[b] : start[b] + count[b]]
        cache, logits = extend(params, CONFIG, cache, piece, start, count)
        start = start + count
        assert np.isfinite(logits).all() and logits.dtype == jnp.float32
        for b in np.flatnonzero(count):
            np.testing.assert_allclose(
                logits[b], want[b, start[b] - 1], rtol=0, atol=1e-4
            )
    assert start.tolist() == lengths
    # No padding was ever written: what lies past each row is still zero.
    for b, n in enumerate(lengths):
        assert not np.any(cache.k[:, b, :, n:]) and np.all(
            np.any(cache.k[:, b], -1)[..., :n]
        )


def test_extend_leaves_rows_without_tokens(params):
    noise = jax.random.normal(jax.random.key(6), (2, 3, 2, 8, 16))
    cache = qwen3.Cache(k=noise, v=-noise)
    got, _ = extend(
        params, CONFIG, cache, draw(7, 3, 4), jnp.array([0, 2, 4]), jnp.array([0, 3, 0])
    )
    for old, new in ((cache.k, got.k), (cache.v, got.v)):
        np.testing.assert_array_equal(old[:, [0, 2]], new[:, [0, 2]])
        np.testing.assert_array_equal(
            old[:, 1, :, [0, 1, 5, 6, 7]], new[:, 1, :, [0, 1, 5, 6, 7]]
        )
        assert np.all(np.any(old[:, 1, :, 2:5] != new[:, 1, :, 2:5], axis=-1))


@pytest.mark.parametrize("start", [-2, 6, 8, 100])
def test_extend_cannot_write_outside(params, start):
    noise = jax.random.normal(jax.random.key(6), (2, 1, 2, 8, 16))
    cache = qwen3.Cache(k=noise, v=noise)
    got, _ = extend(
        params, CONFIG, cache, draw(7, 1, 4), jnp.array([start]), jnp.array([4])
    )
    changed = np.any(np.asarray(got.k != noise), axis=(0, 1, 2, 4))
    inside = [p for p in range(start, start + 4) if 0 <= p < 8]
    assert np.flatnonzero(changed).tolist() == inside


def test_one_compilation_per_shape(params):
    traced = []

    def step(params, cache, tokens, start, count):
        traced.append(tokens.shape)
        return qwen3.extend(params, CONFIG, cache, tokens, start, count)

    step = jax.jit(step)
    cache = qwen3.init_cache(CONFIG, 2, 8)
    for i in range(4):
        count = jnp.array([i % 2, 1], jnp.int32)
        cache, _ = step(params, cache, draw(i, 2, 1), jnp.full(2, i), count)
    cache, _ = step(params, cache, draw(9, 2, 4), jnp.full(2, 4), jnp.full(2, 4))
    assert traced == [(2, 1), (2, 4)]


def test_whole_rows_compile_once_per_shape(params):
    """Whatever the values are, and however rows are packed."""
    traced = []

    def score(params, tokens, segments):
        traced.append(tokens.shape)
        return qwen3.logprobs(params, CONFIG, tokens, None, segments, chunk=4)

    score = jax.jit(score)
    for i, ends in enumerate((1, 3, 8)):
        segments = jnp.asarray(np.arange(8)[None].repeat(2, 0) // ends + 1, jnp.int32)
        logp, _ = score(params, draw(i, 2, 8), segments)
        assert np.count_nonzero(logp) == 2 * (8 - -(-8 // ends))
    score(params, draw(4, 2, 4), jnp.ones((2, 4), jnp.int32))
    assert traced == [(2, 8), (2, 4)]


def test_bfloat16_stays_close_and_keeps_float32_outputs(params):
    config = dataclasses.replace(CONFIG, dtype="bfloat16")
    tokens = draw(8, 2, 10)
    exact, _ = logprobs(params, CONFIG, tokens)
    rough, entropy = logprobs(params, config, tokens)
    assert rough.dtype == entropy.dtype == jnp.float32
    assert hidden(params, config, tokens).dtype == jnp.bfloat16
    assert 0 < np.abs(exact - rough).mean() < 0.1
    assert qwen3.init_cache(config, 1, 4).k.dtype == jnp.bfloat16
