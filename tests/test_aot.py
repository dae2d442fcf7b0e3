"""The training step and the engine's programs compile for a TPU pod slice.

Nothing runs: libtpu compiles for a topology that is not there. Kept tiny, since what
is checked is that shardings, scatters and loops are ones that a TPU takes.
"""

import dataclasses
import json
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import runs
from evoharness_jax import build, mesh, parameters
from evoharness_jax.aot import command, measure, plan, table
from evoharness_jax.models import qwen3
from evoharness_jax.train import optim, sft, state
from evoharness_jax.types import Batch

pytestmark = pytest.mark.aot
CONFIG = dataclasses.replace(
    qwen3.CONFIGS["qwen3-8b"],
    vocab_size=1024,
    width=256,
    layers=2,
    heads=4,
    kv_heads=4,
    mlp=512,
)


@pytest.fixture(scope="module")
def tpu_mesh():
    from jax.experimental import topologies

    slice_ = topologies.get_topology_desc(platform="tpu", topology_name="v5e:2x2")
    return mesh.make(2, 2, slice_.devices)


@pytest.fixture(scope="module")
def two_slices():
    from jax.experimental import topologies

    slices = topologies.get_topology_desc(
        platform="tpu", topology_name="v5e:2x2", num_slices=2
    )
    return mesh.make(-1, 2, slices.devices)


def test_several_slices_lie_along_fsdp(two_slices):
    assert dict(two_slices.shape) == {"fsdp": 4, "tp": 2}
    assert [[d.slice_index for d in row] for row in two_slices.devices] == [
        [0, 0],
        [0, 0],
        [1, 1],
        [1, 1],
    ]
    with pytest.raises(ValueError, match="slices must divide fsdp: fsdp=1 slices=2"):
        mesh.make(1, 8, list(two_slices.devices.flat))


@pytest.mark.parametrize("slices, shards", [("tpu_mesh", 4), ("two_slices", 8)])
def test_the_sft_update_compiles_and_reuses_its_state(slices, shards, request):
    tpu_mesh = request.getfixturevalue(slices)
    tx = optim.make(1e-3)
    shapes = jax.eval_shape(
        lambda: sft.make_state(
            qwen3.init(jax.random.key(0), CONFIG), tx, jax.random.key(0)
        )
    )
    where = sft.state_shardings(tpu_mesh, qwen3.logical_axes(CONFIG), shapes)
    rows = state.microbatch_sharding(tpu_mesh)
    ints = jax.ShapeDtypeStruct((2, 4, 256), jnp.int32, sharding=rows)
    floats = jax.ShapeDtypeStruct((2, 4, 256), jnp.float32, sharding=rows)
    batch = Batch(*[ints] * 4, *[floats] * 5)
    update = sft.make_update(build.logprobs(CONFIG, 128), tx, tpu_mesh, where)
    compiled = update.lower(parameters.placed(shapes, where), batch).compile()
    memory = compiled.memory_analysis()
    held = sum(
        np.prod(s.shape) * s.dtype.itemsize for s in jax.tree.leaves(shapes.params)
    )
    # Parameters and two moments, a share on each chip; donated, so they are reused.
    assert memory.argument_size_in_bytes >= 3 * held / shards
    assert memory.alias_size_in_bytes >= 3 * held / shards
    # Weights are cast before they travel. Every weight has more than 2**15 entries;
    # what may be gathered in float32 is smaller: norm scales, a chunk's gradients.
    sizes = gathered(compiled.as_text())
    assert max(sizes["bf16"]) >= 256 * 512
    if slices == "tpu_mesh":  # across slices some float32 is still gathered
        assert max(sizes["f32"], default=0) < 2**15


def gathered(hlo: str) -> dict[str, list[int]]:
    """Return the entries of every array that an all-gather gives, by its type."""
    found = {"bf16": [], "f32": []}
    for line in hlo.splitlines():
        result, gathers, _ = line.partition(" all-gather")
        if gathers:
            for kind, shape in re.findall(r"(bf16|f32)\[([\d,]*)\]", result):
                found[kind].append(math.prod(int(n) for n in shape.split(",") if n))
    return found


def test_generation_keeps_one_cache(tpu_mesh):
    everywhere = NamedSharding(tpu_mesh, PartitionSpec())
    place = jax.tree_util.Partial(
        jax.tree.map,
        lambda s: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=everywhere),
    )
    params = place(qwen3.shapes(CONFIG))
    cache = place(jax.eval_shape(lambda: qwen3.init_cache(CONFIG, 8, 1024)))
    row = jax.ShapeDtypeStruct((8,), jnp.int32, sharding=everywhere)

    def generate(params, cache, token, start):
        def one(i, carry):
            cache, token = carry
            cache, logits = qwen3.extend(
                params, CONFIG, cache, token[:, None], start + i, jnp.ones_like(start)
            )
            return cache, jnp.argmax(logits, -1).astype(jnp.int32)

        return jax.lax.fori_loop(0, 16, one, (cache, token))

    program = jax.jit(generate, donate_argnums=1)
    memory = program.lower(params, cache, row, row).compile().memory_analysis()
    size = sum(np.prod(s.shape) * s.dtype.itemsize for s in jax.tree.leaves(cache))
    assert memory.alias_size_in_bytes >= size
    # A second cache in the loop would show as temporary memory of the same size.
    assert memory.temp_size_in_bytes < size


KEYS = (
    "topology program chips seq rows tp params trainable_params moments_dtype "
    "grad_reduce_dtype args_gib temp_gib host_gib peak_gib kv_gib fits compile_s"
).split()
SMALL = {"model.attention": "xla", "model.dtype": "bfloat16", "model.response": 8}


def flags(*words, arg=runs.COUNTER, file="alfworld_rl", **changes):
    return ["aot", *words, *runs.command(file, arg, SMALL | changes)]


def answered(capsys, *words, **more) -> dict:
    command.main(flags(*words, **more))
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    return json.loads(out)


@pytest.mark.parametrize("program", ["sft", "rl", "score", "extend", "generate"])
def test_every_program_of_a_run_compiles(program, capsys):
    # 512 x 64 words; two layers of q, o 2 x 64 x 64, k, v 2 x 64 x 32, an MLP of
    # 3 x 64 x 128 and norms of 192; a last norm of 64.
    sizes = ["--seq", "256", "--rows", "4"]
    found = answered(capsys, "--topology", "v5e:2x2", "--program", program, *sizes)
    assert list(found) == KEYS
    trains, plays = program in ("sft", "rl"), program in ("extend", "generate")
    wanted = {
        "topology": "v5e:2x2",
        "program": program,
        "chips": 4,
        "seq": 256,
        "rows": 4,
        "tp": 1,
        "params": 106944,
        "trainable_params": 0 if plays else 106944,
        "moments_dtype": "float32" if trains else None,
        "grad_reduce_dtype": "bfloat16" if trains else None,
        "host_gib": 0.0,
        "fits": True,
    }
    assert {k: found[k] for k in wanted} == wanted
    assert found["peak_gib"] >= found["args_gib"]


def test_an_adapter_is_what_is_trained(capsys):
    words = "--topology", "v5e:2x2", "--program", "sft", "--seq", "256"
    found = answered(capsys, *words, arg=runs.COUNTER + ",lora=4")
    # Rank 4, two layers, width 64, heads 2 x 32, key heads 1 x 32, MLP 128:
    # q, o: 4 (64 + 64); k, v: 4 (64 + 32); gate, up, down: 4 (64 + 128).
    assert found["trainable_params"] == 2 * (2 * 512 + 2 * 384 + 3 * 768)
    assert found["rows"] == 4  # one a data shard


def test_a_program_that_does_not_fit_is_an_answer(capsys):
    """16.4 GB of bfloat16 weights and a cache, on one chip of 15.75 GiB."""
    words = "--topology", "v5e:1x1", "--program", "generate"
    changes = {"model.dtype": "bfloat16", "rollout.batch": 2}
    found = answered(capsys, *words, arg="model=qwen3-8b", **changes)
    assert (found["fits"], found["seq"], found["rows"]) == (False, 8192, 2)
    assert (found["args_gib"], found["kv_gib"]) == (17.51, 2.25)
    assert found["peak_gib"] > 15.75


@pytest.mark.parametrize(
    "words, message",
    [
        (["--program", "sft"], "name one of --topology (with --program), --plan and"),
        (["--topology", "v5e:2x2"], "--program: name one of sft, rl, score, extend"),
        (["--topology", "v5e-16", "--program", "sft"], "v5e-16 is v5e:4x4"),
        (["--topology", "v9:2x2", "--program", "sft"], "--topology: 'v9:2x2' is not"),
        (["--topology", "v5e:3x3", "--program", "sft"], '"v5e:3x3" is not divisible'),
        (["--topology", "v5e:2x2", "--program", "fly"], "--program: 'fly' is not one"),
        (
            ["--topology", "v5e:2x2", "--program", "sft", "--rows", "6"],
            "--rows: 6 rows do not divide over the 4 data shards",
        ),
        (
            ["--topology", "v5e:2x2", "--program", "sft", "--tp", "3"],
            "--tp: 3 does not divide the 4 chips",
        ),
        (
            ["--topology", "v5e:2x2", "--program", "generate", "--tp", "4"],
            "dimension 2 (kv_heads, 1) is not divisible by mesh axis 'tp' (4)",
        ),
        (["--plan", "v5e-17"], "--plan: 'v5e-17' is not one of v5e-8, v5e-16"),
    ],
)
def test_what_is_wrong_is_one_line(words, message):
    with pytest.raises(SystemExit) as error:
        command.main(flags(*words))
    assert str(error.value).startswith("error: ")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_config_of_another_stage_is_named():
    words = ["--topology", "v5e:2x2", "--program", "rl"]
    with pytest.raises(SystemExit, match="no section 'loss', which --program rl"):
        command.main(flags(*words, file="alfworld_sft"))


@pytest.mark.parametrize(
    "message, gib",
    [
        ("HLO temporaries (34.88G) exceeds available HBM (15.75G).", 34.88),
        ("Ran out of memory in memory space hbm. Used 21.5G of 15.75G hbm.", 21.5),
    ],
)
def test_a_refusal_names_what_was_asked_for(message, gib):
    assert measure.asked(message) / 2**30 == pytest.approx(gib)


def test_a_plan_adds_up_what_lies_beside_each_other():
    update = {"topology": "v5e:4x4", "chips": 16, "seq": 4096, "args_gib": 7.6}
    update |= {"peak_gib": 11.0, "fits": True}
    play = {"chips": 16, "tp": 4, "rows": 32, "seq": 8192, "args_gib": 6.1}
    play |= {"peak_gib": 6.6, "kv_gib": 2.25, "fits": True}
    fits = plan.added(update, play)
    assert (fits["update_gib"], fits["play_gib"], fits["fits"]) == (13.25, 14.2, True)
    assert fits["turn_down"] == []
    more = play | {"rows": 64, "args_gib": 8.35, "kv_gib": 4.5, "peak_gib": 8.85}
    full = plan.added(update, more)
    assert (full["play_gib"], full["fits"]) == (16.45, False)
    # 15.75 - 7.6 - 4.35 = 3.8 GiB are left for rows of 0.28.
    (advice,) = full["turn_down"]
    assert advice.startswith("rollout.batch: 13 episodes for each 4 chips fit")
    alone = plan.added(update | {"fits": False, "peak_gib": 17.0}, play)
    assert alone["turn_down"][0].startswith("data.length: an update of 4096 tokens")


def test_a_table_goes_on_where_it_was(tmp_path):
    asked = []

    def answer(words):
        asked.append(words)
        topology = words[words.index("--topology") + 1]
        sizes = {k: 1.5 for k in ("args_gib", "temp_gib", "peak_gib")}
        facts = {"topology": topology, "seq": 4096, "rows": 16, "tp": 1, "fits": True}
        return facts | sizes

    file = tmp_path / "table.md"
    assert table.write(str(file), answer) == {"table": str(file), "rows": 28, "kept": 0}
    lines = file.read_text().splitlines()
    file.write_text("\n".join(lines[:-1]) + "\n")
    assert table.write(str(file), answer)["kept"] == 27
    assert (len(asked), asked[-1]) == (29, asked[-2])
    assert file.read_text().splitlines() == lines
    assert lines[-28] == (
        "| v5e-8 | sft | 4096 | 16 | 1 | 1.5 | 1.5 | 1.5 | 15.75 | yes | `python -m "
        "evoharness_jax.aot --topology v5e:2x4 --program sft "
        "--config=configs/alfworld_rl.py:model=qwen3-8b --seq 4096 --rows 8 --tp 1` |"
    )
