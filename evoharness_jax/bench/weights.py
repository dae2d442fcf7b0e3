"""What one process of a pod reads of a weights folder, and how much memory that takes.

    python -m evoharness_jax.bench.weights [--model NAME] [--processes N] [--process I]

Makes a folder of the model's shape (bfloat16, 8B by default) out of sparse files, which
take no disk, and reads the slices of one process of N with four devices each, as
`models.weights.load` does with a mesh of all of them. No such devices are needed: what
they would hold is let go as soon as a parameter is whole. One JSON line:

    peak_mib       most memory that this process had, mapped pages of the files included
    before_mib     the same before the first value was read: Python, JAX, the headers
    bytes_read     of tensors, copied out of the files
    bytes_stored   of all tensors
    share          of the two
    largest_mib    the largest parameter's part, four devices together
    seconds        of reading (from zeros in memory: a disk is slower)

A disk gives whole pages of 4 KiB. A slice of the columns of a matrix touches a page or
more in every row, so up to half of such a matrix is fetched for it.
"""

import argparse
import itertools
import json
import logging
import math
import resource
import struct
import sys
import tempfile
import time
from pathlib import Path

import jax
from jax.sharding import PartitionSpec

from evoharness_jax import mesh as meshes
from evoharness_jax.models import folder as folders
from evoharness_jax.models import huggingface, qwen3, weights

LOCAL = 4  # devices of a process, as on a v5e host
SHARD = 4 << 30


def synthetic(folder: Path, config: qwen3.Config, shard_bytes: int = SHARD) -> int:
    """Write a folder of zeros in the shape of `config`, bfloat16; return its bytes."""
    raw = huggingface.write_config(config, "bfloat16")
    (folder / "config.json").write_text(json.dumps(raw))
    shapes = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(qwen3.shapes(config))[0]:
        path = tuple(key.key for key in path)
        stacked = path[0] == "layers"
        shape = huggingface.stored_shape(path, leaf.shape[stacked:])
        shapes |= dict.fromkeys(huggingface.names(path, config.layers), shape)
    shards, size = [[]], 0
    for name, shape in shapes.items():
        size += 2 * math.prod(shape)
        if size > shard_bytes and shards[-1]:
            shards.append([])
            size = 2 * math.prod(shape)
        shards[-1].append(name)
    mapping = {}
    for i, names in enumerate(shards):
        file = f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors"
        _sparse(folder / file, {name: shapes[name] for name in names})
        mapping |= dict.fromkeys(names, file)
    (folder / folders.INDEX).write_text(json.dumps({"weight_map": mapping}))
    return 2 * sum(math.prod(shape) for shape in shapes.values())


def _sparse(file: Path, shapes: dict) -> None:
    """Write the header of a safetensors file, and a hole for its values."""
    header, end = {}, 0
    for name, shape in shapes.items():
        begin, end = end, end + 2 * math.prod(shape)
        offsets = [begin, end]
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": offsets}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(file, "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        out.truncate(8 + len(text) + end)


def part(
    shape: tuple[int, ...], spec: PartitionSpec, sizes: dict[str, int], device: int
) -> tuple[slice, ...]:
    """Return what a device holds of an array: what NamedSharding says, without devices.

    Args:
        sizes: of the mesh axes, in order.
        device: its number, the last axis running fastest.
    """
    place = {}
    for axis, size in reversed(sizes.items()):
        device, place[axis] = divmod(device, size)
    index = []
    for length, axis in itertools.zip_longest(shape, spec):
        count, i = (1, 0) if axis is None else (sizes[axis], place[axis])
        index.append(slice(i * length // count, (i + 1) * length // count))
    return tuple(index)


def peak_mib() -> float:
    """Return the most memory that this process had so far, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(folder: Path, processes: int, process: int, tp: int) -> dict:
    """Read the slices of one process; return what the module says, but the sizes."""
    sizes = {"fsdp": processes * LOCAL // tp, "tp": tp}
    config, stored = weights.survey(folder)
    axes = qwen3.logical_axes(config)
    leaves = jax.tree_util.tree_flatten_with_path(qwen3.shapes(config))[0]
    before, began = peak_mib(), time.monotonic()
    total, largest = 0, 0
    for path, leaf in leaves:
        path = tuple(key.key for key in path)
        names = axes
        for key in path:
            names = names[key]
        first = process * LOCAL
        parts = [
            part(leaf.shape, meshes.spec(names), sizes, first + i) for i in range(LOCAL)
        ]
        held = _held(config, stored, path, leaf, parts)
        total, largest = total + held, max(largest, held)
        logging.info("%s: %.1f MiB", "/".join(path), held / 2**20)
    return {
        "peak_mib": round(peak_mib(), 1),
        "before_mib": round(before, 1),
        "bytes_read": total,
        "largest_mib": round(largest / 2**20, 1),
        "seconds": round(time.monotonic() - began, 1),
    }


def _held(config, stored, path, leaf, parts) -> int:
    """Read what the devices hold of a parameter, let it go, and return its bytes."""
    if len({repr(index) for index in parts}) == 1:  # copies are read once
        parts = parts[:1]
    values = [weights.read_slice(config, stored, path, leaf, i) for i in parts]
    return sum(value.nbytes for value in values)


def main(arguments: list[str] | None = None) -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="qwen3-8b", choices=sorted(qwen3.CONFIGS))
    parser.add_argument("--processes", type=int, default=16)
    parser.add_argument("--process", type=int, default=3)
    parser.add_argument("--tp", type=int, default=1)
    options = parser.parse_args(arguments)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(message)s")
    with tempfile.TemporaryDirectory() as folder:
        stored = synthetic(Path(folder), qwen3.CONFIGS[options.model])
        result = measure(Path(folder), options.processes, options.process, options.tp)
    result |= {
        "bytes_stored": stored,
        "share": round(result["bytes_read"] / stored, 5),
        "model": options.model,
        "process": options.process,
        "processes": options.processes,
    }
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
