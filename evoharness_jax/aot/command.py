"""The command line of `python -m evoharness_jax.aot`: flags in, JSON out.

What it answers is one line on stdout, and nothing else is there; progress goes to
stderr. A program that does not fit is an answer, and no error.
"""

import json
import sys
from typing import Any

import jax
from absl import flags
from ml_collections import config_flags

from evoharness_jax import cli
from evoharness_jax.aot import measure, plan, slices, table

ONE_OF = "name one of --topology (with --program), --plan and --table"


def main(argv: list[str] | None = None) -> None:
    """Parse flags and print the answer; exit with one line that says what is wrong.

    Args:
        argv: the command's name and its flags; None: those of this process.
    """
    # What is compiled here cannot be loaded here, so there is nothing to keep.
    jax.config.update("jax_enable_compilation_cache", False)
    try:
        print(json.dumps(answer(sys.argv if argv is None else argv)), flush=True)
    except (ValueError, OSError) as error:
        sys.exit(f"error: {error}")


def answer(argv: list[str]) -> dict[str, Any]:
    """Return what a command line is answered with.

    Raises:
        ValueError: something in it cannot be; the message names what.
    """
    cli.let_configs_import_each_other(argv)
    values = _flags(argv)
    if rest := cli.parse(argv, values)[1:]:
        raise ValueError(f"what is {' '.join(rest)}?")
    chosen = [n for n in ("topology", "plan", "table") if values[n].value]
    if len(chosen) != 1:
        raise ValueError(f"{ONE_OF}, not {' and '.join(chosen) or 'none'}")
    if values.table:
        return table.write(values.table, answer)
    if values.config is None:
        raise ValueError("--config: name a file, such as configs/alfworld_rl.py")
    if values.plan:
        return plan.plan(values.plan, values.config, values.seq, values.rows)
    if not values.program:
        raise ValueError("--program: name one of sft, rl, score, extend, generate")
    tp = values.tp or values.config.mesh.tp
    progress = f"compiling {values.program} for {values.topology}, tp={tp}"
    print(progress, file=sys.stderr, flush=True)
    return measure.measure(
        values.topology,
        values.program,
        values.config,
        tp=tp,
        seq=values.seq,
        rows=values.rows,
    )


def _flags(argv: list[str]) -> flags.FlagValues:
    values = flags.FlagValues()
    config_flags.DEFINE_config_file(
        "config",
        None,
        "FILE.py[:argument,argument=value]",
        lock_config=True,
        flag_values=values,
        sys_argv=argv,
    )
    for name, text in {
        "topology": "such as v5e:4x4",
        "program": "sft | rl | score | extend | generate",
        "plan": f"a slice: {', '.join(slices.SLICES)}",
        "table": "Markdown file; rows that it holds are kept, those it lacks are added",
    }.items():
        flags.DEFINE_string(name, None, text, flag_values=values)
    for name, text in {
        "seq": "tokens of a packed row, or positions of the cache; 0: the config's",
        "rows": "of a microbatch, or of the cache, over the slice; 0: one a data shard",
        "tp": "chips that share a layer; 0: the config's",
    }.items():
        flags.DEFINE_integer(name, 0, text, flag_values=values)
    return values
