"""A mesh reads its own slices of a folder, and fails as one."""

import dataclasses
import json
import os
import socket
import subprocess
import sys

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from evoharness_jax import mesh as meshes
from evoharness_jax.models import qwen3, weights

CONFIG = qwen3.Config(
    vocab_size=56, width=24, layers=2, heads=4, kv_heads=2, head_dim=8, mlp=40
)
TIED = dataclasses.replace(CONFIG, tie_embeddings=True)
Q = "model.layers.1.self_attn.q_proj.weight"
EMBED = "model.embed_tokens.weight"


def draw(config):
    rng = np.random.default_rng(0)
    return jax.tree.map(
        lambda x: rng.normal(size=x.shape).astype(x.dtype), qwen3.shapes(config)
    )


def spoil(folder, name, at):
    """Make one value of a stored tensor not finite."""
    tensors = load_file(folder / "model.safetensors")
    tensors[name][at] = np.nan
    save_file(tensors, folder / "model.safetensors")


@pytest.mark.parametrize("config", [CONFIG, TIED])
def test_every_device_gets_its_part(tmp_path, config):
    params = draw(config)
    weights.save(tmp_path, config, params, shard_bytes=5000)
    mesh = meshes.make(4, 2)
    got_config, got = weights.load(tmp_path, mesh)
    assert got_config == config
    jax.tree.map(np.testing.assert_array_equal, got, params)
    where = meshes.shardings(mesh, qwen3.logical_axes(config))
    assert jax.tree.map(lambda x: x.sharding, got) == where


def test_nothing_beside_the_slice_is_read(tmp_path):
    """Layer 1's q has a value that is not finite at width 3, head 0, entry 0."""
    weights.save(tmp_path, CONFIG, draw(CONFIG))
    spoil(tmp_path, Q, (0, 3))
    config, stored = weights.survey(tmp_path)
    leaf = qwen3.shapes(config)["layers"]["q"]

    def read(layers, width, heads):
        index = (slice(*layers), slice(*width), slice(*heads), slice(None))
        return weights.read_slice(config, stored, ("layers", "q"), leaf, index)

    want = draw(CONFIG)["layers"]["q"]
    for layers, width, heads in (
        ((0, 1), (0, 24), (0, 4)),
        ((0, 2), (4, 24), (0, 4)),
        ((0, 2), (0, 24), (1, 4)),
    ):
        part = want[slice(*layers), slice(*width), slice(*heads)]
        np.testing.assert_array_equal(read(layers, width, heads), part)
    with pytest.raises(ValueError, match=f"{Q}: 1 of 32 values are not finite"):
        read((0, 2), (3, 4), (0, 4))


def test_a_mesh_finds_what_is_broken(tmp_path):
    weights.save(tmp_path, CONFIG, draw(CONFIG))
    spoil(tmp_path, Q, (0, 3))
    with pytest.raises(ValueError, match=f"{Q}: 1 of 192 values are not finite"):
        weights.load(tmp_path, meshes.make(2, 2, jax.devices()[:4]))


def test_two_processes_fail_together(tmp_path):
    """The first reads the first halves, the second the rest, where one value is bad."""
    weights.save(tmp_path / "good", CONFIG, draw(CONFIG))
    weights.save(tmp_path / "bad", CONFIG, draw(CONFIG))
    spoil(tmp_path / "bad", EMBED, (0, -1))
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    flags = "--xla_force_host_platform_device_count=1"
    command = [sys.executable, "-c", TWO, str(port), str(tmp_path)]
    processes = [
        subprocess.Popen(
            [*command, str(i)],
            env=os.environ | {"XLA_FLAGS": flags},
            stdout=subprocess.PIPE,
            text=True,
        )
        for i in range(2)
    ]
    out = [p.communicate(timeout=120)[0] for p in processes]
    said = [json.loads(text.splitlines()[-1]) for text in out]
    values = [said[i].pop("sum") for i in range(2)]
    want = float(draw(CONFIG)["embed"].sum(dtype=np.float64))
    assert sum(values) == pytest.approx(want, abs=1e-3)
    nan = f"{EMBED}: 1 of 672 values are not finite"
    assert said == [{"error": f"process 1: {nan}"}, {"error": nan}]


TWO = """
import json, sys
import jax, numpy as np
port, folder, process = sys.argv[1:]
jax.distributed.initialize(f"localhost:{port}", 2, int(process))
from evoharness_jax import mesh
from evoharness_jax.models import weights
meshed = mesh.make(2)
_, params = weights.load(folder + "/good", meshed)
mine = params["embed"].addressable_shards
said = {"sum": float(sum(np.asarray(s.data, np.float64).sum() for s in mine))}
try:
    weights.load(folder + "/bad", meshed)
except ValueError as error:
    said["error"] = str(error)
print(json.dumps(said))
"""
