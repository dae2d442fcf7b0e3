"""The jitted updates, on a small decoder: one device, meshes, microbatches, packing."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evoharness_jax import mesh as meshes
from evoharness_jax.models import qwen3
from evoharness_jax.train import optim, packing, policy_gradient, sft, state
from evoharness_jax.types import Batch

# Every sharded dimension divides by 8, so that all three meshes fit.
CONFIG = dataclasses.replace(
    qwen3.CONFIGS["counter-tiny"],
    vocab_size=64,
    width=32,
    layers=2,
    heads=4,
    kv_heads=4,
    head_dim=8,
    mlp=64,
    dtype="float32",
    param_dtype="float32",
)
SCHEDULE = optim.constant(1e-2)


def logprobs(params, tokens, positions, segment_ids, parents):
    texts = tokens, positions, segment_ids, parents
    return qwen3.logprobs(params, CONFIG, *texts, chunk=16)


def transformation():
    # A large eps: Adam's sign-like first step would blow rounding up to a full step.
    return optim.make(SCHEDULE, eps=1e-3)


@jax.jit
def fresh():
    params = qwen3.init(jax.random.key(0), CONFIG)
    return state.make_state(params, transformation(), jax.random.key(1))


@functools.cache
def rows():
    """24 ragged rows; log-probabilities near those of the initial model."""
    rng = np.random.default_rng(0)
    sizes = rng.integers(3, 15, 24)

    def noise(mean, width):
        return [rng.normal(mean, width, n).astype(np.float32) for n in sizes]

    return {
        "tokens": [rng.integers(0, 64, n).astype(np.int32) for n in sizes],
        "weight": [(np.arange(n) > n // 3).astype(np.float32) for n in sizes],
        "advantage": noise(0, 1),
        "old_logp": noise(-4.1, 0.2),
        "ref_logp": noise(-4.1, 0.2),
        "sampler_logp": noise(-4.1, 0.2),
    }


def packed(length=16, accum=1):
    batch = packing.pack(rows(), length, multiple=8 * accum).batch
    (one,) = packing.batches(batch, rows=len(batch.tokens) // accum)
    assert one.tokens.shape[0] == accum
    return one


def makers():
    settings = policy_gradient.Settings(kl_coef=0.1, entropy_coef=0.01)
    return {
        "sft": functools.partial(sft.make_update, logprobs, transformation()),
        "policy_gradient": functools.partial(
            policy_gradient.make_update, logprobs, transformation(), settings
        ),
        "gspo": functools.partial(
            policy_gradient.make_update,
            logprobs,
            transformation(),
            dataclasses.replace(
                settings,
                objective="gspo",
                average="constant",
                constant=100.0,
                sampler_cap=1.2,
            ),
        ),
    }


@functools.cache
def expected(kind):
    """Two updates on one device, nothing split."""
    update = makers()[kind](schedule=SCHEDULE)
    current = fresh()
    for _ in range(2):
        current, metrics = update(current, packed())
    return jax.device_get((current.params, metrics))


def same(got, want, atol=1e-5):
    (params, metrics), (wanted, wanted_metrics) = jax.device_get(got), want
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=atol),
        (params, metrics),
        (wanted, wanted_metrics),
    )


KINDS = pytest.mark.parametrize("kind", ["sft", "policy_gradient", "gspo"])


@KINDS
def test_metrics_and_progress(kind):
    params, metrics = expected(kind)
    assert metrics["optim/finite"] and metrics["optim/grad_norm"] > 0
    assert metrics["optim/lr"] == np.float32(1e-2)
    assert metrics["loss/weight"] == sum(w[1:].sum() for w in rows()["weight"])
    changed = jax.tree.map(lambda a, b: np.abs(a - b).max(), params, fresh().params)
    assert all(value > 0 for value in jax.tree.leaves(changed))
    if kind == "sft":
        np.testing.assert_allclose(metrics["loss/total"], metrics["loss/sft"])
    else:
        terms = sum(metrics[f"loss/{name}"] for name in ("policy", "kl", "entropy"))
        np.testing.assert_allclose(metrics["loss/total"], terms, rtol=1e-5)


@KINDS
def test_microbatches_add_up(kind):
    update = makers()[kind](schedule=SCHEDULE)
    current = fresh()
    for _ in range(2):
        current, metrics = update(current, packed(accum=2))
    same((current.params, metrics), expected(kind))


@KINDS
def test_packing_changes_nothing(kind):
    given = rows()
    alone = [
        packing.pack({name: [value[i]] for name, value in given.items()}, 16).batch
        for i in range(len(given["tokens"]))
    ]
    batch = Batch(*(np.concatenate(fields)[None] for fields in zip(*alone)))
    assert batch.tokens.shape[1] > packed().tokens.shape[1]
    update = makers()[kind](schedule=SCHEDULE)
    current = fresh()
    for _ in range(2):
        current, metrics = update(current, batch)
    same((current.params, metrics), expected(kind))


def placed(mesh):
    shapes = jax.eval_shape(fresh)
    shardings = state.state_shardings(mesh, qwen3.logical_axes(CONFIG), shapes)
    return jax.jit(fresh, out_shardings=shardings)(), shardings


@pytest.mark.parametrize(
    "kind,fsdp,tp,accum",
    [
        ("policy_gradient", 8, 1, 2),
        ("policy_gradient", 4, 2, 1),
        ("policy_gradient", 2, 4, 2),
        ("sft", 4, 2, 2),
        ("gspo", 4, 2, 2),
    ],
)
def test_sharded_update_equals_one_device(kind, fsdp, tp, accum):
    mesh = meshes.make(fsdp, tp)
    current, shardings = placed(mesh)
    update = makers()[kind](mesh, shardings, schedule=SCHEDULE)
    where = state.microbatch_sharding(mesh)
    batch = jax.device_put(packed(accum=accum), where)
    for _ in range(2):
        before = current
        current, metrics = update(before, batch)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(before.params))
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(before.opt_state))
    assert int(current.step) == 2
    jax.tree.map(
        lambda leaf, sharding: (
            leaf.sharding.is_equivalent_to(sharding, leaf.ndim)
            or pytest.fail(f"{leaf.sharding} is not {sharding}")
        ),
        current,
        shardings,
    )
    same((current.params, metrics), expected(kind))


def test_moments_lie_with_their_parameters():
    mesh = meshes.make(4, 2)
    shapes = jax.eval_shape(fresh)
    shardings = state.state_shardings(mesh, qwen3.logical_axes(CONFIG), shapes)
    adam = shardings.opt_state[1][0]
    assert adam.mu == adam.nu == shardings.params
    assert any("tp" in s.spec for s in jax.tree.leaves(adam.mu))
    assert adam.count.is_fully_replicated and shardings.step.is_fully_replicated


@pytest.mark.parametrize("attention", ["xla", "blocks"])
def test_a_shared_head_changes_no_score_and_no_gradient(attention):
    config = dataclasses.replace(CONFIG, attention=attention)
    rng = np.random.default_rng(3)
    start = rng.integers(0, 64, 70)
    tails = [rng.integers(0, 64, n) for n in (9, 30, 5, 61)]
    tokens = [np.concatenate((start, tail)).astype(np.int32) for tail in tails]
    weight = [(np.arange(len(row)) >= 73).astype(np.float32) for row in tokens]
    given = {"tokens": tokens, "weight": weight}
    group = np.zeros(4, np.int32)
    heads = packing.Heads(group, group + 70)
    apart = packing.pack(given, 160)
    shared = packing.pack(given, 160, heads=heads)
    assert len(apart.batch.tokens) == 3 and len(shared.batch.tokens) == 2
    assert shared.reuse == (4 * 70 + 105) / (2 * 70 + 105)

    @jax.jit
    def results(params, batch):
        def loss(params):
            logp, _ = qwen3.logprobs(params, config, *state.texts(batch), chunk=64)
            return (logp * batch.weight).sum(), logp

        return jax.value_and_grad(loss, has_aux=True)(params)

    params = fresh().params
    (got, logp), gradient = results(params, shared.batch)
    (want, other), plain = results(params, apart.batch)
    np.testing.assert_allclose(got, want, rtol=1e-6)
    for one, two in zip(
        packing.unpack(logp, shared.index), packing.unpack(other, apart.index)
    ):
        np.testing.assert_allclose(one[71:], two[71:], atol=1e-5)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4), gradient, plain
    )


def test_score_feeds_the_update():
    mesh = meshes.make(4, 2)
    current, shardings = placed(mesh)
    score = state.make_score(logprobs, mesh, shardings.params)
    alone = state.make_score(logprobs)
    flat = packing.pack(rows(), 16, multiple=8)
    batch = jax.device_put(flat.batch, meshes.batch_sharding(mesh))
    logp = np.asarray(score(current.params, batch))
    assert logp.dtype == np.float32
    np.testing.assert_allclose(logp, alone(fresh().params, flat.batch), atol=1e-5)
    # the values of a row do not depend on where it was packed
    one = {"tokens": rows()["tokens"][:1]}
    same_shape = packing.pack(one, 16, multiple=len(flat.batch.tokens)).batch
    single = alone(fresh().params, same_shape)
    size = len(one["tokens"][0])
    np.testing.assert_allclose(
        packing.unpack(logp, flat.index)[0], single[0, :size], atol=1e-5
    )
    # scored in the update's own shape, the ratio of its first step is exactly one
    stacked = jax.device_put(packed(accum=2), state.microbatch_sharding(mesh))
    score = state.make_score(logprobs, mesh, shardings.params, stacked=True)
    old = score(current.params, stacked)
    assert old.shape == stacked.tokens.shape
    stacked = stacked._replace(old_logp=old, ref_logp=old)
    _, metrics = makers()["policy_gradient"](mesh, shardings)(current, stacked)
    assert float(metrics["policy/ratio"]) == pytest.approx(1.0, abs=1e-5)
    assert float(metrics["policy/clip_fraction"]) == 0.0
    assert float(metrics["policy/kl"]) == pytest.approx(0.0, abs=1e-6)


def test_old_from_the_current_parameters():
    settings = policy_gradient.Settings(old="current", kl_coef=0.0)
    update = policy_gradient.make_update(logprobs, transformation(), settings)
    _, metrics = update(fresh(), packed())
    assert float(metrics["policy/ratio"]) == pytest.approx(1.0)
    assert "policy/kl" not in metrics


def test_a_number_that_is_none_is_reported():
    def broken(params, tokens, positions, segment_ids, parents):
        logp, entropy = logprobs(params, tokens, positions, segment_ids, parents)
        return logp * jnp.nan, entropy

    update = sft.make_update(broken, transformation())
    _, metrics = update(fresh(), packed())
    assert not metrics["optim/finite"]


def test_settings_are_checked():
    with pytest.raises(ValueError, match="kl_kind"):
        policy_gradient.Settings(kl_kind="k4")
    with pytest.raises(ValueError, match="old"):
        policy_gradient.Settings(old="sampler")
