"""Write the model of a run, or of a weights folder, as a Hugging Face folder.

    python -m evoharness_jax.export --run RUN|FOLDER --out DIR [--dtype bfloat16]

DIR then holds config.json, safetensors and the tokenizer's files: what transformers
loads (tested), and vLLM by the architecture in its config.json (not tested). Of a run
also its settings (run.json) and the last version of its bank. The same
as `python -m evoharness_jax.models.weights export`, which calls this one for a run.
"""

import argparse
import dataclasses
import json
import shutil
import sys
from pathlib import Path
from typing import Any

from absl import logging
from tokenizers import Tokenizer

from evoharness_jax import checkpoint
from evoharness_jax.experience import bank as bank_
from evoharness_jax.models import qwen3, weights


def export(run: str, out: str, dtype: str | None = None) -> None:
    """Write what `run` trained (its newest checkpoint), or a weights folder, to `out`.

    Args:
        dtype: to store; None: as it is in the run or folder.

    Raises:
        ValueError: `run` is neither, cannot be read, or holds values that are not
            finite.
    """
    source = Path(run)
    if not (source / "checkpoints").is_dir():
        return weights.export(source, out, dtype)
    facts = checkpoint.read_host(source)[1]["model"]
    config = dataclasses.replace(qwen3.Config(**facts), param_dtype=_dtype(source))
    params = checkpoint.read_params(source, qwen3.shapes(config))
    base = _special_ids(source / "tokenizer")
    weights.save(out, config, params, dtype=dtype, base=base)
    weights.copy_beside(source / "tokenizer", Path(out))
    _write_origin(source, Path(out))


def _write_origin(run: Path, out: Path) -> None:
    """Write what an agent needs beside its weights: how it was trained, its bank."""
    config = json.loads((run / "config.json").read_text())
    kept = {name: config.get(name) for name in ("stage", "version", "env", "rules")}
    kept["env"] |= {"data": "", "cache": ""}  # folders of the machine it was made on
    (out / "run.json").write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")
    if (run / "bank").is_dir():
        shutil.rmtree(out / "bank", ignore_errors=True)
        bank_.write(out / "bank", bank_.read(run / "bank").entries, "", 0)


def _dtype(run: Path) -> str:
    """Return the dtype of a run's parameters."""
    return json.loads((run / "config.json").read_text())["model"]["param_dtype"]


def _special_ids(folder: Path) -> dict[str, Any]:
    """Return what generation must know: the id that ends a turn, and the padding."""
    words = json.loads((folder / "tokenizer_config.json").read_text())
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return {
        f"{name}_token_id": tokenizer.token_to_id(words[f"{name}_token"])
        for name in ("eos", "pad")
    }


def main(arguments: list[str] | None = None) -> None:
    """Run from the command line; what is wrong is one line, and exit status 1."""
    parser = argparse.ArgumentParser(prog="python -m evoharness_jax.export")
    weights.add_options(parser)
    options = parser.parse_args(arguments)
    logging.set_verbosity(logging.FATAL)  # Orbax warns of what we ask for
    try:
        export(options.run, options.out, options.dtype)
    except (ValueError, OSError) as error:
        sys.exit(f"export: {error}")


if __name__ == "__main__":
    main()
