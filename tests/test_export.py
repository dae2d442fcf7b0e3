"""A run as a Hugging Face folder: its newest checkpoint, its tokenizer, its dtype."""

import dataclasses
import json
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evoharness_jax import checkpoint, export, parameters
from evoharness_jax.models import lora, qwen3, rope, tokens, weights
from evoharness_jax.types import TrainState

CONFIG = qwen3.Config(
    vocab_size=300,
    width=16,
    layers=2,
    heads=2,
    kv_heads=1,
    head_dim=8,
    mlp=24,
    tie_embeddings=True,
    rope_scaling=rope.Scaling("linear", 2.0),
)
NUMERICS = ("dtype", "param_dtype", "remat", "attention", "unroll")


def draw(seed):
    rng = np.random.default_rng(seed)
    return jax.tree.map(
        lambda x: jnp.asarray(rng.normal(size=x.shape), x.dtype), qwen3.shapes(CONFIG)
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """What a training run leaves behind, as far as an export looks at it."""
    folder = tmp_path_factory.mktemp("run")
    facts = dataclasses.asdict(CONFIG)
    host = {"model": {k: v for k, v in facts.items() if k not in NUMERICS}}
    checkpoints = checkpoint.manager(folder, keep=2)
    for step in (1, 2):
        state = TrainState(
            step=jnp.int32(step),
            params=draw(step),
            opt_state=(),
            key=jax.random.key(0),
        )
        checkpoint.save(checkpoints, step, state, host)
    env = {"name": "counter", "data": "/homes", "cache": ""}
    settings = {"model": {"param_dtype": "float32"}, "env": env}
    (folder / "config.json").write_text(json.dumps(settings))
    tokens.save(tokens.train(["go to desk 1"], 300), folder / "tokenizer")
    return folder


def test_the_newest_checkpoint_arrives_whole(run, tmp_path):
    export.main(["--run", str(run), "--out", str(tmp_path)])
    config, params = weights.load(tmp_path)
    assert config == CONFIG
    jax.tree.map(np.testing.assert_array_equal, params, draw(2))
    raw = json.loads((tmp_path / "config.json").read_text())
    words = tokens.load(tmp_path)
    assert raw["eos_token_id"] == words.turn_end_id
    assert raw["pad_token_id"] == words.pad_id
    assert raw["architectures"] == ["Qwen3ForCausalLM"]
    origin = json.loads((tmp_path / "run.json").read_text())
    assert origin["env"] == {"name": "counter", "data": "", "cache": ""}


def test_a_folder_goes_through_the_entry_point_too(run, tmp_path):
    export.export(run, tmp_path / "one", "bfloat16")
    export.export(tmp_path / "one", tmp_path / "two")
    one, two = (
        {p.name: p.read_bytes() for p in (tmp_path / x).iterdir()}
        for x in ("one", "two")
    )
    assert one.pop("run.json")  # of a run alone
    assert one == two
    assert weights.load(tmp_path / "two")[0].param_dtype == "bfloat16"


def test_the_lower_command_takes_a_run(run, tmp_path):
    command = [sys.executable, "-m", "evoharness_jax.models.weights", "export"]
    command += ["--run", str(run), "--out", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    jax.tree.map(
        np.testing.assert_array_equal, weights.load(tmp_path / "out")[1], draw(2)
    )


def test_an_adapter_is_merged(run, tmp_path):
    """Rank 1 on q: base + 3 a b, layer by layer."""
    spec = lora.Spec(1, 3.0, ("q",))
    adapter = jax.tree.map(
        lambda x: jnp.full(x.shape, 0.5, x.dtype), lora.shapes(CONFIG, spec)
    )
    facts = dataclasses.asdict(CONFIG)
    base = {"init": str(run), "seed": 0, "dtype": "float32"}
    base["digest"] = parameters.digest_of(draw(2))
    host = {
        "model": {k: v for k, v in facts.items() if k not in NUMERICS},
        "lora": {"rank": 1, "alpha": 3.0, "targets": ["q"], "base": base},
    }
    held = TrainState(jnp.int32(1), adapter, (), jax.random.key(0))
    checkpoint.save(checkpoint.manager(tmp_path / "run", keep=1), 1, held, host)
    for name in ("config.json", "tokenizer"):
        (tmp_path / "run" / name).symlink_to(run / name)
    export.export(tmp_path / "run", tmp_path / "out")
    want = draw(2)
    want["layers"]["q"] += 3 * 0.5 * 0.5
    got = weights.load(tmp_path / "out")[1]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), got, want)


def test_what_is_wrong_is_one_line(run, tmp_path):
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(SystemExit, match="export: .* holds no whole checkpoint"):
        export.main(["--run", str(tmp_path), "--out", str(tmp_path / "out")])
    with pytest.raises(SystemExit, match="export: .*config.json"):
        export.main(["--run", "nowhere", "--out", str(tmp_path / "out")])
    assert not (tmp_path / "out").exists()


@pytest.mark.parity
def test_transformers_reads_and_talks(run, tmp_path):
    """Model and tokenizer load from the folder, and score as ours do."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    export.export(run, tmp_path)
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert type(model).__name__ == "Qwen3ForCausalLM"
    assert model.config.eos_token_id == tokenizer.eos_token_id
    ids = tokenizer("go to desk 1")["input_ids"]
    assert tokenizer.decode(ids) == "go to desk 1"
    with torch.no_grad():
        want = model(torch.tensor([ids])).logits.numpy()
    forward = jax.jit(qwen3.forward, static_argnums=1)
    got = forward(draw(2), CONFIG, jnp.array([ids], jnp.int32))
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-4)
