"""How fast the decoder trains on CPU, beside transformers on torch in the same run.

    python -m evoharness_jax.bench.model [--layers N] [--rows B] [--length L]

A Qwen3-0.6B, cut to a few layers, with its whole vocabulary: loss and the gradient of
every parameter, float32, nothing recomputed, the same weights, batch and threads on
both sides, which take turns. The two losses must agree. One JSON line:

    tokens_per_s        ours: rows x length / the time of the quickest step
    torch_tokens_per_s  theirs
    vs_torch            of the two rates
    matmul_share        the share of our step that `jnp.dot` needs for the products with
                        weights alone, of the same shapes: forward and both gradients
    vs_torch_cpu, matmul_share_cpu   the same by processor time, of all threads: what to
                        read where other work runs on the machine

A kernel that is quick on CPU is no aim of the model's shape; what is looked for here is
a slip that would make a step several times as dear as its products.
"""

import argparse
import dataclasses
import json
import logging
import os
import resource
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np

from evoharness_jax.models import huggingface, qwen3

LOSS_GAP = 1e-3  # nats; float32 sums in another order


def make_torch(config: qwen3.Config):
    """Draw transformers' model of this config."""
    import torch
    import transformers

    raw = huggingface.write_config(config, "float32")
    torch.manual_seed(0)
    their = transformers.Qwen3Config.from_dict(raw)
    their._attn_implementation = "sdpa"
    return transformers.Qwen3ForCausalLM(their).train()


def params_of(model, config: qwen3.Config):
    """Lay a torch model's weights out as ours."""
    held = {name: p.detach().numpy() for name, p in model.named_parameters()}

    def one(path, leaf):
        path = tuple(key.key for key in path)
        names = huggingface.names(path, config.layers)
        if path[0] != "layers":
            return jnp.asarray(huggingface.to_ours(path, held[names[0]], leaf.shape))
        shape = leaf.shape[1:]
        parts = [huggingface.to_ours(path, held[name], shape) for name in names]
        return jnp.asarray(np.stack(parts))

    return jax.tree_util.tree_map_with_path(one, qwen3.shapes(config))


def loss(params, config: qwen3.Config, tokens: jax.Array) -> jax.Array:
    """Mean negative log-probability of every token but the first, in nats."""
    logits = qwen3.forward(params, config, tokens)[:, :-1]
    table = jax.nn.log_softmax(logits)
    return -jnp.take_along_axis(table, tokens[:, 1:, None], axis=-1).mean()


def products(config: qwen3.Config, rows: int) -> list[tuple[int, tuple[int, int, int]]]:
    """List (how often, (rows, in, out)) of every product with a weight in a step."""
    c = config
    q, kv = c.heads * c.head_dim, c.kv_heads * c.head_dim
    shapes = [(c.width, q), (c.width, kv), (c.width, kv), (q, c.width)]
    shapes += [(c.width, c.mlp), (c.width, c.mlp), (c.mlp, c.width)]
    layers = [(c.layers, (rows, *shape)) for shape in shapes]
    return [*layers, (1, (rows, c.width, c.vocab_size))]


def make_products(config: qwen3.Config, rows: int):
    """Return a function that times a step's products with plain `jnp.dot`, forward and
    both gradients: seconds, and seconds of processor time.
    """

    @jax.jit
    def three(x, w, g):
        return jnp.dot(x, w), jnp.dot(g, w.T), jnp.dot(x.T, g)

    def seconds() -> tuple[float, float]:
        total, known = np.zeros(2), {}
        for count, (n, d, f) in products(config, rows):
            if (d, f) not in known:
                arrays = [jnp.ones(shape) for shape in ((n, d), (d, f), (n, f))]
                jax.block_until_ready(arrays)
                known[d, f] = timed(lambda: jax.block_until_ready(three(*arrays)))
            total += count * np.array(known[d, f])
        return tuple(total.tolist())

    return seconds


def measure(
    config: qwen3.Config,
    rows: int,
    length: int,
    repeats: int,
    threads: int,
    seconds: float,
) -> dict:
    """Measure both sides and the products, in turns, for about `seconds` at most.

    Raises:
        ValueError: the losses differ, so that the two did not do the same work.
    """
    import torch

    until = time.monotonic() + seconds
    torch.set_num_threads(threads)
    model = make_torch(config)
    params = params_of(model, config)
    tokens = np.random.default_rng(0).integers(0, config.vocab_size, (rows, length))
    ids = torch.tensor(tokens, dtype=torch.int64)
    words = jnp.asarray(tokens, jnp.int32)
    step = jax.jit(jax.value_and_grad(loss), static_argnums=1)
    losses = {}

    def ours():
        losses["ours"], grads = step(params, config, words)
        jax.block_until_ready(grads)

    def theirs():
        model.zero_grad(set_to_none=True)
        out = model(ids, labels=ids, use_cache=False)
        out.loss.backward()
        losses["torch"] = out.loss.item()

    dots = make_products(config, rows * length)
    turns = []
    for turn in range(repeats + 1):
        turns.append((*timed(ours), *timed(theirs), *dots()))
        logging.info("turn %d: %s s", turn, " ".join(f"{x:.2f}" for x in turns[-1]))
        if turn and time.monotonic() > until:
            break
    gap = abs(float(losses["ours"]) - losses["torch"])
    if not gap < LOSS_GAP:
        raise ValueError(f"the two do not compute the same loss: {losses}")
    # The first turn compiles. Of the others the least disturbed one counts.
    best = (min(x) for x in zip(*turns[1:]))
    wall, cpu, torch_wall, torch_cpu, dot, dot_cpu = best
    return {
        "tokens_per_s": round(rows * length / wall, 2),
        "torch_tokens_per_s": round(rows * length / torch_wall, 2),
        "vs_torch": round(torch_wall / wall, 3),
        "matmul_share": round(dot / wall, 3),
        "vs_torch_cpu": round(torch_cpu / cpu, 3),
        "matmul_share_cpu": round(dot_cpu / cpu, 3),
        "step_s": round(wall, 3),
        "torch_step_s": round(torch_wall, 3),
        "dot_s": round(dot, 3),
        "loss_gap": float(f"{gap:.2g}"),
        "turns": len(turns) - 1,
        "peak_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
    }


def timed(function) -> tuple[float, float]:
    """Call; return seconds, and seconds of processor time of all threads."""
    began, cpu = time.perf_counter(), time.process_time()
    function()
    return time.perf_counter() - began, time.process_time() - cpu


def table(result: dict) -> str:
    """Lay the figures out for a reader."""
    lines = [
        ("", "seconds a step", "tokens a second"),
        ("ours", result["step_s"], result["tokens_per_s"]),
        ("transformers", result["torch_step_s"], result["torch_tokens_per_s"]),
        ("its products alone", result["dot_s"], ""),
    ]
    rows = [f"{name:20}{a!s:>16}{b!s:>18}" for name, a, b in lines]
    rows.append(
        f"{result['vs_torch']:.2f} of torch's rate; products are "
        f"{result['matmul_share']:.2f} of our step"
    )
    return "\n".join(rows)


def main(arguments: list[str] | None = None) -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="qwen3-0.6b", choices=sorted(qwen3.CONFIGS))
    parser.add_argument("--layers", type=int, default=6, help="0: all of them")
    parser.add_argument("--rows", type=int, default=1)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=300.0, help="stop after them")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--attention", default="xla", choices=["xla", "blocks"])
    options = parser.parse_args(arguments)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(message)s")
    if arguments is None and hasattr(os, "sched_setaffinity"):
        # Before JAX starts its threads, which are as many as it may run on.
        cores = sorted(os.sched_getaffinity(0))[: options.threads]
        os.sched_setaffinity(0, cores)
    config = qwen3.CONFIGS[options.model]
    config = dataclasses.replace(
        config,
        layers=options.layers or config.layers,
        dtype="float32",
        remat="none",
        attention=options.attention,
    )
    result = measure(
        config,
        options.rows,
        options.length,
        options.repeats,
        options.threads,
        options.seconds,
    )
    for line in table(result).splitlines():
        logging.info("%s", line)
    result |= {
        name: getattr(options, name) for name in ("model", "rows", "length", "threads")
    }
    result |= {"layers": config.layers, "attention": config.attention}
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
