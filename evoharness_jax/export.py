"""Write the model of a run, or of a weights folder, as a Hugging Face folder.

    python -m evoharness_jax.export --run RUN|FOLDER --out DIR [--dtype bfloat16]
    python -m evoharness_jax.export --run RUN --out DIR --adapter

DIR then holds config.json, safetensors and the tokenizer's files: what transformers
loads (tested), and vLLM by the architecture in its config.json (not tested). Of a run
also its settings (run.json) and the last version of its bank. An adapter is merged into
its base, or with --adapter written alone, as PEFT reads it.
`python -m evoharness_jax.models.weights export` calls this one for a run.
"""

import argparse
import dataclasses
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import jax
from absl import logging
from tokenizers import Tokenizer

from evoharness_jax import checkpoint, mesh, parameters
from evoharness_jax.experience import bank as bank_
from evoharness_jax.models import lora, peft, qwen3, weights


def export(run: str, out: str, dtype: str | None = None, adapter: bool = False) -> None:
    """Write what `run` trained (its newest checkpoint), or a weights folder, to `out`.

    Args:
        dtype: to store; None: as it is in the run or folder.
        adapter: write the adapter alone, float32.

    Raises:
        ValueError: `run` is neither, cannot be read, holds values that are not finite,
            or has no adapter where one is asked for.
    """
    source = Path(run)
    if adapter:
        return _export_adapter(source, out)
    if not (source / "checkpoints").is_dir():
        return weights.export(source, out, dtype)
    facts = checkpoint.read_host(source)[1]["model"]
    config = dataclasses.replace(qwen3.Config(**facts), param_dtype=_dtype(source))
    one = mesh.make(devices=jax.devices()[:1])
    params = parameters.read(str(source), config, one, seed=0).params
    base = _special_ids(source / "tokenizer")
    weights.save(out, config, params, dtype=dtype, base=base)
    weights.copy_beside(source / "tokenizer", Path(out))
    _write_origin(source, Path(out))


def _export_adapter(run: Path, out: str) -> None:
    host = checkpoint.read_host(run)[1]
    if "lora" not in host:
        raise ValueError(f"{run} trained all parameters, there is no adapter in it")
    config, facts = qwen3.Config(**host["model"]), host["lora"]
    spec = lora.Spec(facts["rank"], facts["alpha"], facts["targets"])
    adapter = checkpoint.read_params(run, lora.shapes(config, spec))
    peft.save(out, config, spec, adapter, base=facts["base"]["init"])


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
    parser.add_argument("--adapter", action="store_true", help="the adapter alone")
    options = parser.parse_args(arguments)
    logging.set_verbosity(logging.FATAL)  # Orbax warns of what we ask for
    try:
        export(options.run, options.out, options.dtype, options.adapter)
    except (ValueError, OSError) as error:
        sys.exit(f"export: {error}")


if __name__ == "__main__":
    main()
