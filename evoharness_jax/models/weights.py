"""Qwen3 weights between a Hugging Face folder and our params, bit for bit.

    folder: config.json and model.safetensors, or shards with an index

Every name, shape and dtype is checked before a value is read, every value before
anything is returned: a folder loads whole or not at all. Whatever is wrong raises
ValueError with the tensor's name.
"""

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from evoharness_jax import mesh as meshes
from evoharness_jax.models import huggingface
from evoharness_jax.models.qwen3 import Config, logical_axes, shapes

DTYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}
SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"


class _Stored(NamedTuple):
    """Where a tensor stands, and what its file's header says about it."""

    file: Path
    shape: tuple[int, ...]
    dtype: str


def load(
    folder: str | os.PathLike, mesh: Mesh | None = None, dtype: Any = None
) -> tuple[Config, dict[str, Any]]:
    """Read a Qwen3 folder.

    Args:
        folder: holds config.json and the safetensors files.
        mesh: places every parameter by `mesh.RULES`; None: the default device.
        dtype: of params and compute; None keeps the stored one, for both.

    Returns:
        The config (remat and attention at their defaults) and the params.

    Raises:
        ValueError: config.json is not a Qwen3 that we compute exactly, or a tensor is
            missing, extra, misshapen, not finite, or of another dtype than the rest.
        FileNotFoundError: no config.json, or no weights.
    """
    folder = Path(folder)
    raw = json.loads((folder / "config.json").read_text())
    stored = _stored(folder)
    dtype = jnp.dtype(_shared_dtype(stored) if dtype is None else dtype).name
    config = huggingface.read_config(raw, dtype)
    want = shapes(config)
    _check(config, want, stored)

    def one(path, leaf, sharding=None):
        value = _assemble(config, _keys(path), leaf, stored)
        # Placed at once: the host holds one whole parameter at a time.
        return jnp.asarray(value) if mesh is None else meshes.place(value, sharding)

    rest = ()
    if mesh is not None:
        rest = (meshes.shardings(mesh, logical_axes(config), want),)
    return config, jax.tree_util.tree_map_with_path(one, want, *rest)


def save(
    folder: str | os.PathLike, config: Config, params: Any, shard_bytes: int = 4 << 30
) -> None:
    """Write a Qwen3 folder that `load` and transformers (4 and 5) read.

    Weights that the folder held before are replaced; params are checked first.

    Args:
        folder: made if need be.
        config: dtype, remat and attention are not written, the params' dtype is.
        params: as `qwen3.init` makes them, all of one float dtype.
        shard_bytes: a file is closed before it would pass this size.

    Raises:
        ValueError: params do not fit config, mix dtypes or hold values that are not
            finite, or config has no Qwen3 equivalent (qk_norm=False).
    """
    folder = Path(folder)
    want, have = _flat(shapes(config)), _flat(params)
    if want.keys() != have.keys():
        wrong = sorted("/".join(path) for path in want.keys() ^ have.keys())
        raise ValueError(f"params and config do not both have {wrong}")
    for path, leaf in have.items():
        if leaf.shape != want[path].shape:
            wanted = want[path].shape
            raise ValueError(f"{'/'.join(path)}: shape {leaf.shape}, want {wanted}")
    dtypes = sorted({np.dtype(x.dtype).name for x in have.values()})
    if len(dtypes) != 1 or dtypes[0] not in DTYPES.values():
        raise ValueError(f"params must share one of {list(DTYPES.values())}: {dtypes}")
    raw = huggingface.write_config(config, dtypes[0])
    folder.mkdir(parents=True, exist_ok=True)
    index = _write(folder, _tensors(config, have), shard_bytes)
    files = set(index["weight_map"].values())
    for old in folder.glob("model*.safetensors"):
        if old.name not in files:
            old.unlink()
    (folder / INDEX).unlink(missing_ok=True)
    if files != {SINGLE}:
        (folder / INDEX).write_text(json.dumps(index, indent=2))
    (folder / "config.json").write_text(json.dumps(raw, indent=2))


def _keys(path):
    return tuple(key.key for key in path)


def _flat(tree):
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {_keys(path): leaf for path, leaf in leaves}


def _stored(folder: Path) -> dict[str, _Stored]:
    """Read the headers of every weight file of the folder."""
    mapping = {}
    if (folder / INDEX).exists():
        mapping = json.loads((folder / INDEX).read_text())["weight_map"]
    stored: dict[str, _Stored] = {}
    for file in sorted(folder / name for name in set(mapping.values()) or {SINGLE}):
        try:
            with safe_open(file, "np") as tensors:
                for name in tensors.keys():
                    if name in stored:
                        raise ValueError(f"{name}: in {file} and {stored[name].file}")
                    view = tensors.get_slice(name)
                    shape, dtype = tuple(view.get_shape()), view.get_dtype()
                    stored[name] = _Stored(file, shape, dtype)
        except SafetensorError as error:
            raise ValueError(
                f"{file}: not a whole safetensors file: {error}"
            ) from error
    lost = sorted(mapping.keys() - stored.keys())
    if lost:
        raise ValueError(f"{lost[0]}: missing, though {INDEX} lists it ({len(lost)=})")
    for name, tensor in stored.items():
        if tensor.dtype not in DTYPES:
            raise ValueError(f"{name}: dtype {tensor.dtype}, want {sorted(DTYPES)}")
    return stored


def _shared_dtype(stored: dict[str, _Stored]) -> str:
    names = sorted(stored)
    for name in names:
        if stored[name].dtype != stored[names[0]].dtype:
            raise ValueError(
                f"{name}: {stored[name].dtype}, but {names[0]}:"
                f" {stored[names[0]].dtype}; ask for a dtype to load both as one"
            )
    return DTYPES[stored[names[0]].dtype] if names else "float32"


def _check(config, want, stored):
    """Compare names and shapes; a tied folder may repeat its embedding as the head."""
    expected = {}
    for path, leaf in _flat(want).items():
        shape = leaf.shape[1:] if path[0] == "layers" else leaf.shape
        # A dummy that takes no memory, only to ask for its shape on the other side.
        dummy = np.broadcast_to(np.zeros((), np.bool_), shape)
        shape = huggingface.to_hf(path, dummy).shape
        expected |= dict.fromkeys(huggingface.names(path, config.layers), shape)
    for name in sorted(expected.keys() - stored.keys()):
        raise ValueError(f"{name}: missing; want shape {expected[name]}")
    head, embed = huggingface.TOP["head"], huggingface.TOP["embed"]
    for name in sorted(stored.keys() - expected.keys()):
        if name != head or not _same_bits(stored[head], stored[embed], head, embed):
            raise ValueError(f"{name}: extra; this config has no such tensor")
    for name, shape in expected.items():
        if stored[name].shape != shape:
            raise ValueError(f"{name}: shape {stored[name].shape}, want {shape}")


def _same_bits(one, other, one_name, other_name):
    a, b = _read(one, one_name), _read(other, other_name)
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def _read(tensor: _Stored, name: str) -> np.ndarray:
    with safe_open(tensor.file, "np") as file:
        return file.get_tensor(name)


def _assemble(config, path, leaf, stored) -> np.ndarray:
    """Read one parameter, layer after layer, into its stacked array."""
    out = np.empty(leaf.shape, leaf.dtype)
    parts = out if path[0] == "layers" else out[None]
    for part, name in zip(parts, huggingface.names(path, config.layers)):
        value = huggingface.to_ours(path, _read(stored[name], name), part.shape)
        # What does not fit a narrower dtype becomes an infinity, and an error.
        with np.errstate(over="ignore"):
            part[...] = value
        _check_finite(name, part)
    return out


def _check_finite(name, x):
    if not np.isfinite(x).all():
        bad = int((~np.isfinite(x)).sum())
        raise ValueError(f"{name}: {bad} of {x.size} values are not finite")


def _tensors(config, have) -> Iterator[tuple[str, np.ndarray]]:
    """Yield what to write, one parameter on the host at a time."""
    for path, leaf in have.items():
        value = np.asarray(jax.device_get(leaf))
        parts = value if path[0] == "layers" else value[None]
        for part, name in zip(parts, huggingface.names(path, config.layers)):
            _check_finite(name, part)
            yield name, np.ascontiguousarray(huggingface.to_hf(path, part))


def _write(folder: Path, tensors: Iterable, shard_bytes: int) -> dict[str, Any]:
    """Write shards under passing names, rename them at the end; return the index.

    A save that fails half way leaves the weights that stood there.
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
