"""The model's measurements: one JSON line each, and what they are made of."""

import json
import struct

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from evoharness_jax.bench import model
from evoharness_jax.bench import weights as bench
from evoharness_jax.models import qwen3, weights

CONFIG = qwen3.Config(
    vocab_size=64, width=32, layers=2, heads=4, kv_heads=2, head_dim=16, mlp=48
)


def line(capsys):
    (out,) = capsys.readouterr().out.splitlines()
    return json.loads(out)


def test_products():
    """Weights a token meets, but the embedding, which is looked up and no product."""
    matrices = sum(
        count * d * f for count, (rows, d, f) in model.products(CONFIG, rows=5)
    )
    norms = 2 * (32 + 32 + 16 + 16) + 32
    assert matrices == qwen3.param_count(CONFIG) - 64 * 32 - norms
    assert {rows for _, (rows, _, _) in model.products(CONFIG, rows=5)} == {5}


@pytest.mark.parity
def test_model(capsys):
    options = ["--model", "counter-tiny", "--layers", "1", "--rows", "2"]
    model.main([*options, "--length", "16", "--repeats", "2", "--threads", "1"])
    result = line(capsys)
    assert {"tokens_per_s", "torch_tokens_per_s", "vs_torch", "matmul_share"} <= set(
        result
    )
    assert result["loss_gap"] < 1e-4
    assert (result["turns"], result["layers"], result["rows"]) == (2, 1, 2)
    ratio = result["tokens_per_s"] / result["torch_tokens_per_s"]
    assert result["vs_torch"] == pytest.approx(ratio, rel=0.01)
    assert result["matmul_share"] > 0


@pytest.mark.parametrize("sizes", [{"fsdp": 4, "tp": 2}, {"fsdp": 8, "tp": 1}])
@pytest.mark.parametrize(
    "shape, spec",
    [
        ((2, 16, 8, 4), PartitionSpec(None, "fsdp", "tp", None)),
        ((16, 24), PartitionSpec("tp", "fsdp")),
        ((7,), PartitionSpec()),
    ],
)
def test_part_is_what_a_sharding_says(sizes, shape, spec):
    devices = jax.devices()
    grid = np.array(devices).reshape(*sizes.values())
    mesh = jax.sharding.Mesh(grid, tuple(sizes))
    want = NamedSharding(mesh, spec).devices_indices_map(shape)
    for i, device in enumerate(devices):
        got = bench.part(shape, spec, sizes, i)
        assert [s.indices(n) for s, n in zip(got, shape)] == [
            s.indices(n) for s, n in zip(want[device], shape)
        ]


def test_synthetic_folder_is_a_folder(tmp_path):
    """All zeros, several shards, no disk; `load` reads it as any other."""
    stored = bench.synthetic(tmp_path, CONFIG, shard_bytes=20000)
    assert stored == 2 * qwen3.param_count(CONFIG)
    files = sorted(tmp_path.glob("*.safetensors"))
    assert len(files) > 2
    used = sum(f.stat().st_blocks * 512 for f in files)
    assert used < stored
    (size,) = struct.unpack("<Q", files[0].read_bytes()[:8])
    assert size % 8 == 0
    config, params = weights.load(tmp_path)
    assert config.dtype == "bfloat16" and config.layers == 2
    assert not any(x.any() for x in jax.tree.leaves(params))


def test_weights(tmp_path):
    """Process 1 of 2 with four devices reads half of every matrix, and every norm."""
    bench.synthetic(tmp_path, CONFIG)
    result = bench.measure(tmp_path, processes=2, process=1, tp=1)
    norms = 2 * (32 + 32 + 16 + 16) + 32
    matrices = qwen3.param_count(CONFIG) - norms
    assert result["bytes_read"] == 2 * (matrices // 2 + norms)
    assert result["peak_mib"] >= result["before_mib"] > 0
