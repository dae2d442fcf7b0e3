"""A folder of safetensors: what its headers say, slices of its tensors, writing one.

    model.safetensors, or shards and model.safetensors.index.json

Names, shapes and dtypes come from the files' headers, which cost nothing; a slice is
read without the rest of its tensor. What is wrong is an error with the tensor's name.
"""

import json
import math
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

DTYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}
SPAN = 64 << 20
SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"


class Stored(NamedTuple):
    """Where a tensor stands, and what its file's header says about it."""

    file: Path
    shape: tuple[int, ...]
    dtype: str  # as safetensors writes it: F32


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        ValueError: it is something else; names the file.
        FileNotFoundError: it is not there.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: not JSON: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path}: not a JSON object")
    return content


def headers(folder: Path) -> dict[str, Stored]:
    """Read the headers of every weight file of the folder: name -> Stored.

    Raises:
        ValueError: a file is cut short or no safetensors file, a tensor has a dtype
            that is no float, or the index and the files disagree.
        FileNotFoundError: no weights, or a file of the index is not there.
    """
    mapping = _index(folder)
    stored: dict[str, Stored] = {}
    for file in sorted(set(mapping.values())) or [SINGLE]:
        for name, tensor in header(folder / file).items():
            if mapping and mapping.get(name) != file:
                listed = mapping.get(name, "nowhere")
                raise ValueError(f"{name}: in {file}, but {INDEX} has it in {listed}")
            stored[name] = tensor
    lost = sorted(mapping.keys() - stored.keys())
    if lost:
        raise ValueError(f"{lost[0]}: missing, though {INDEX} lists it ({len(lost)=})")
    for name, tensor in stored.items():
        if tensor.dtype not in DTYPES:
            raise ValueError(f"{name}: dtype {tensor.dtype}, want {sorted(DTYPES)}")
    return stored


def _index(folder: Path) -> dict[str, str]:
    """Return the index's map from tensor to file; {} where there is no index."""
    if not (folder / INDEX).exists():
        return {}
    if (folder / SINGLE).exists():
        # transformers reads the one, others the other.
        raise ValueError(f"{folder}: holds both {SINGLE} and {INDEX}; remove one")
    mapping = read_json(folder / INDEX).get("weight_map")
    if not isinstance(mapping, dict) or not mapping:
        raise ValueError(f"{folder / INDEX}: no weight_map")
    for name, file in mapping.items():
        if not isinstance(file, str) or Path(file).name != file:
            raise ValueError(f"{name}: {INDEX} names no file of the folder: {file!r}")
        if not (folder / file).exists():
            raise FileNotFoundError(
                f"{name}: {INDEX} has it in {file}, which is not there"
            )
    return mapping


def header(file: Path) -> dict[str, Stored]:
    """Read one file's header; ValueError where it is not a whole safetensors file."""
    try:
        with safe_open(file, "np") as tensors:
            found = {}
            for name in tensors.keys():
                view = tensors.get_slice(name)
                shape, dtype = tuple(view.get_shape()), view.get_dtype()
                found[name] = Stored(file, shape, dtype)
            return found
    except SafetensorError as error:
        raise ValueError(f"{file}: not a whole safetensors file: {error}") from error


def read(
    tensor: Stored, name: str, index: tuple[slice, ...] | None = None
) -> np.ndarray:
    """Read a tensor, or the slices of step 1 of it.

    A slice of columns maps pages of every row, and mapped pages count as memory. So the
    file is let go of after every `SPAN` bytes.
    """
    if index is None or not tensor.shape:
        with safe_open(tensor.file, "np") as file:
            return file.get_tensor(name)
    index = [range(*s.indices(n)) for s, n in zip(index, tensor.shape)]
    out = np.empty([len(r) for r in index], jnp.dtype(DTYPES[tensor.dtype]))
    rows, *rest = (slice(r.start, max(r.start, r.stop)) for r in index)
    row_bytes = max(1, math.prod(tensor.shape[1:]) * out.itemsize)
    step = max(1, SPAN // row_bytes)
    for begin in range(rows.start, rows.stop, step):
        end = min(begin + step, rows.stop)
        with safe_open(tensor.file, "np") as file:
            part = file.get_slice(name)[(slice(begin, end), *rest)]
        out[begin - rows.start : end - rows.start] = part
    return out


def write(
    folder: Path, tensors: Iterable[tuple[str, np.ndarray]], shard_bytes: int
) -> dict[str, Any]:
    """Write tensors in shards of up to `shard_bytes`; return the content of an index.

    Shards have passing names until all are whole, so a write that fails half way
    leaves the weights that stood there.
    """
    shards: list[list[str]] = []
    batch: dict[str, np.ndarray] = {}
    total = 0

    def part(i):
        return folder / f".shard-{i}.part"

    def flush():
        save_file(batch, part(len(shards)), metadata={"format": "pt"})
        shards.append(list(batch))
        batch.clear()

    try:
        for name, tensor in tensors:
            held = sum(x.nbytes for x in batch.values())
            if batch and held + tensor.nbytes > shard_bytes:
                flush()
            batch[name] = tensor
            total += tensor.nbytes
        flush()
        mapping = {}
        for i, names in enumerate(shards):
            many = f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors"
            file = SINGLE if len(shards) == 1 else many
            os.replace(part(i), folder / file)
            mapping |= dict.fromkeys(names, file)
    finally:
        for left in folder.glob(".shard-*.part"):
            left.unlink()
    return {"metadata": {"total_size": total}, "weight_map": mapping}
