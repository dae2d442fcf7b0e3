"""Qwen3 weights between a Hugging Face folder and our params, bit for bit.

    folder: config.json and model.safetensors, or shards with an index

    python -m evoharness_jax.models.weights export --run RUN|FOLDER --out DIR

`export` writes a folder with its tokenizer, which transformers loads (tested) and vLLM
should (Qwen3ForCausalLM in its own layout; vLLM itself has not been run on one). A run
is read by the entry point `evoharness_jax.export`, which takes both.

Every name, shape and dtype is checked before a value is read, every value before
anything is returned: a folder loads whole or not at all. Whatever is wrong raises an
error with the tensor's name. With a mesh a process reads only what its own devices
hold, one layer after the other.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh

from evoharness_jax import mesh as meshes
from evoharness_jax.models import folder as folders
from evoharness_jax.models import huggingface
from evoharness_jax.models.folder import DTYPES, INDEX, Stored
from evoharness_jax.models.qwen3 import Config, logical_axes, shapes

# What stands beside the weights and says how to read text with them.
BESIDE = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "generation_config.json",
)


def load(
    folder: str | os.PathLike, mesh: Mesh | None = None, dtype: Any = None
) -> tuple[Config, dict[str, Any]]:
    """Read a Qwen3 folder (or a Llama's).

    Args:
        folder: holds config.json and the safetensors files.
        mesh: places every parameter by `mesh.RULES`; None: the default device. Where
            its devices belong to several processes, all of them call this.
        dtype: of params and compute; None keeps the stored one, for both.

    Returns:
        The config (remat and attention at their defaults) and the params.

    Raises:
        ValueError: config.json is not a model that we compute exactly, a file is cut
            short, or a tensor is missing, extra, misshapen, not finite, or of another
            dtype than the rest. What one process finds, all of them raise.
        FileNotFoundError: no config.json, no weights, or not all of them.
    """
    return _together(lambda: _load(Path(folder), mesh, dtype))


def _load(folder, mesh, dtype):
    config, stored = survey(folder, dtype)
    want = shapes(config)

    def one(path, leaf, sharding=None):
        def read(index):
            return read_slice(config, stored, _keys(path), leaf, index)

        if mesh is None:
            return jnp.asarray(read((slice(None),) * leaf.ndim))
        return jax.make_array_from_callback(leaf.shape, sharding, read)

    rest = ()
    if mesh is not None:
        rest = (meshes.shardings(mesh, logical_axes(config), want),)
    return config, jax.tree_util.tree_map_with_path(one, want, *rest)


def survey(folder: Path, dtype: Any = None) -> tuple[Config, dict[str, Stored]]:
    """Read config and headers, and check that they fit; no value is read.

    Raises: as `load`.
    """
    raw = folders.read_json(folder / "config.json")
    stored = folders.headers(folder)
    dtype = jnp.dtype(_shared_dtype(stored) if dtype is None else dtype).name
    config = huggingface.read_config(raw, dtype)
    _check(config, shapes(config), stored)
    return config, stored


def read_slice(
    config: Config,
    stored: Mapping[str, Stored],
    path: tuple[str, ...],
    leaf: jax.ShapeDtypeStruct,
    index: tuple[slice, ...],
) -> np.ndarray:
    """Read one device's part of one parameter, layer after layer.

    Args:
        config, stored: from `survey`.
        path: of the parameter in the tree of params.
        leaf: its whole shape, and the dtype to return.
        index: slices of step 1, one for every dimension; head_dim whole.

    Raises:
        ValueError: a value is not finite.
    """
    sizes = [len(range(*s.indices(n))) for s, n in zip(index, leaf.shape)]
    out = np.empty(sizes, leaf.dtype)
    names = huggingface.names(path, config.layers)
    parts, index, shape = out[None], tuple(index), leaf.shape
    if path[0] == "layers":
        names, parts, index, shape = names[index[0]], out, index[1:], shape[1:]
    where = huggingface.stored_slices(path, index, shape)
    for part, name in zip(parts, names):
        value = folders.read(stored[name], name, where)
        if config.tie_embeddings and path == ("embed",):
            _check_repeated(stored, name, where, value)
        # What does not fit a narrower dtype becomes an infinity, and an error.
        with np.errstate(over="ignore"):
            part[...] = huggingface.to_ours(path, value, part.shape)
        _check_finite(name, part)
    return out


def save(
    folder: str | os.PathLike,
    config: Config,
    params: Any,
    shard_bytes: int = 4 << 30,
    dtype: Any = None,
    base: Mapping[str, Any] | None = None,
) -> None:
    """Write a folder that `load` and transformers (4 and 5) read.

    Weights that the folder held before are replaced; params are checked first.

    Args:
        folder: made if need be.
        config: dtype, remat and attention are not written, the params' dtype is.
        params: as `qwen3.init` makes them, all of one float dtype.
        shard_bytes: a file is closed before it would pass this size.
        dtype: to store; None: the params'.
        base: further keys of config.json, see `huggingface.write_config`.

    Raises:
        ValueError: params do not fit config, mix dtypes or hold values that are not
            finite (in the dtype that is stored).
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
    if dtype is not None and set(dtypes) <= set(DTYPES.values()):
        dtypes = [jnp.dtype(dtype).name]
    if len(dtypes) != 1 or dtypes[0] not in DTYPES.values():
        raise ValueError(f"params must share one of {list(DTYPES.values())}: {dtypes}")
    raw = huggingface.write_config(config, dtypes[0], base)
    folder.mkdir(parents=True, exist_ok=True)
    index = folders.write(folder, _tensors(config, have, dtypes[0]), shard_bytes)
    files = set(index["weight_map"].values())
    for old in folder.glob("model*.safetensors"):
        if old.name not in files:
            old.unlink()
    (folder / INDEX).unlink(missing_ok=True)
    if files != {folders.SINGLE}:
        (folder / INDEX).write_text(json.dumps(index, indent=2))
    (folder / "config.json").write_text(json.dumps(raw, indent=2))


def export(
    source: str | os.PathLike, out: str | os.PathLike, dtype: Any = None
) -> None:
    """Write a weights folder anew, with the tokenizer files that stand in it.

    Raises: as `load` and `save`; ValueError too where `out` is the source.
    """
    source, out = Path(source), Path(out)
    if source.resolve() == out.resolve():
        raise ValueError(f"{out} is the folder to export")
    config, params = load(source)
    base = folders.read_json(source / "config.json")
    save(out, config, params, dtype=dtype, base=base)
    copy_beside(source, out)


def copy_beside(source: Path, out: Path) -> None:
    """Copy the tokenizer's files, as far as there are any."""
    for name in BESIDE:
        if (source / name).is_file():
            shutil.copyfile(source / name, out / name)


def main(arguments: list[str] | None = None) -> None:
    """Run from the command line; what is wrong is one line, and exit status 1."""
    parser = argparse.ArgumentParser(prog="python -m evoharness_jax.models.weights")
    commands = parser.add_subparsers(dest="command", required=True)
    add_options(commands.add_parser("export", help="write a Hugging Face folder"))
    options = parser.parse_args(arguments)
    if (Path(options.run) / "checkpoints").is_dir():
        # A run is read by a layer above this one, so in a process of its own.
        given = sys.argv[1:] if arguments is None else arguments
        entry = [sys.executable, "-m", "evoharness_jax.export", *given[1:]]
        sys.exit(subprocess.run(entry).returncode)
    try:
        export(options.run, options.out, options.dtype)
    except (ValueError, OSError) as error:
        sys.exit(f"export: {error}")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare what `export` takes, here and as an entry point."""
    parser.add_argument("--run", required=True, help="a run, or a weights folder")
    parser.add_argument("--out", required=True, help="folder to write")
    kinds = sorted(DTYPES.values())
    parser.add_argument("--dtype", choices=kinds, help="to store; default: as it is")


def _keys(path):
    return tuple(key.key for key in path)


def _flat(tree):
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {_keys(path): leaf for path, leaf in leaves}


def _together(work):
    """Do it in every process, or in none: what one of them finds, all of them raise.

    Without this a process whose slices are sound would go on, to wait for ever in its
    first collective for the one that is not there any more.
    """
    if jax.process_count() == 1:
        return work()
    found, done = None, None
    try:
        done = work()
    except (ValueError, OSError) as error:
        found = error
    text = str(found).encode()[:500] if found else b""
    line = np.zeros(500, np.uint8)
    line[: len(text)] = np.frombuffer(text, np.uint8)
    lines = multihost_utils.process_allgather(line)
    if found:
        raise found
    for process, other in enumerate(np.asarray(lines)):
        if other.any():
            text = other.tobytes().rstrip(b"\0").decode(errors="replace")
            raise ValueError(f"process {process}: {text}")
    return done


def _shared_dtype(stored: dict[str, Stored]) -> str:
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
        shape = huggingface.stored_shape(path, shape)
        expected |= dict.fromkeys(huggingface.names(path, config.layers), shape)
    for name in sorted(expected.keys() - stored.keys()):
        raise ValueError(f"{name}: missing; want shape {expected[name]}")
    head, embed = huggingface.TOP["head"], huggingface.TOP["embed"]
    for name in sorted(stored.keys() - expected.keys()):
        # That the head is the embedding's double is seen when both are read.
        if name != head or stored[head][1:] != stored[embed][1:]:
            raise ValueError(f"{name}: extra; this config has no such tensor")
    for name, shape in expected.items():
        if stored[name].shape != shape:
            raise ValueError(f"{name}: shape {stored[name].shape}, want {shape}")


def _check_repeated(stored, embed, where, value):
    """Compare an embedding with the head that repeats it, if this folder has one."""
    head = huggingface.TOP["head"]
    if head not in stored:
        return
    if folders.read(stored[head], head, where).tobytes() != value.tobytes():
        raise ValueError(f"{head}: extra; config.json ties it, but it is not {embed}")


def _check_finite(name, x):
    if not np.isfinite(x).all():
        bad = int((~np.isfinite(x)).sum())
        raise ValueError(f"{name}: {bad} of {x.size} values are not finite")


def _tensors(config, have, dtype) -> Iterator[tuple[str, np.ndarray]]:
    """Yield what to write, one parameter on the host at a time."""
    for path, leaf in have.items():
        value = np.asarray(jax.device_get(leaf))
        parts = value if path[0] == "layers" else value[None]
        for part, name in zip(parts, huggingface.names(path, config.layers)):
            with np.errstate(over="ignore"):
                part = part.astype(jnp.dtype(dtype), copy=False)
            _check_finite(name, part)
            yield name, np.ascontiguousarray(huggingface.to_hf(path, part))


if __name__ == "__main__":
    main()
