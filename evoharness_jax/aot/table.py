"""One model over many slices, as a Markdown file: a row is a command and its answer.

Compiling takes minutes a row. Rows that the file holds are kept, so a command that was
stopped goes on where it was; delete a row, or the file, to have it measured anew.
"""

import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from evoharness_jax.aot import slices

DATE = "2026-11-30"
HEAD = f"""# Compile-time memory of Qwen3-8B

{DATE}. GiB of one chip, as libtpu's compiler counts them for a slice that is not there:
memory at compile time, never speed. `arguments` is what lies there before the program
starts (for `rl` with the reference policy's weights), `peak` the most at once. Weights,
moments and gradients of full fine-tuning are float32, products are bfloat16, nothing is
offloaded; one packed row a chip of 4,096 tokens; a rollout has rows of 8,192 positions.
Written by `python -m evoharness_jax.aot --table launch/aot_table.md`.

| slice | program | seq | rows | tp | arguments | temporary | peak | usable | fits \
| command |
|---|---|---|---|---|---|---|---|---|---|---|
"""
MODEL = "configs/alfworld_rl.py:model=qwen3-8b"
SEQ = 4096
EPISODES = 8  # of a rollout, for each group of chips that shares the weights


def commands() -> list[tuple[str, list[str]]]:
    """List (slice and program, flags) of every row."""
    listed = []
    for name, where in slices.SLICES.items():
        chips = ["--topology", where.topology]
        rows = where.chips // where.tp * EPISODES
        sizes = ["--seq", str(SEQ), "--rows", str(where.chips), "--tp", "1"]
        rollout = ["--seq", "8192", "--rows", str(rows), "--tp", str(where.tp)]
        for program, kind, arg, more in (
            ("sft", "sft", "", sizes),
            ("rl", "rl", "", sizes),
            ("sft, lora 64", "sft", ",lora=64", sizes),
            ("generate", "generate", "", rollout),
        ):
            words = [*chips, "--program", kind, f"--config={MODEL}{arg}", *more]
            listed.append((f"{name} | {program}", words))
    return listed


def write(file: str, answer: Callable[[list[str]], dict[str, Any]]) -> dict[str, Any]:
    """Bring a file up to date, row by row; return how many rows it has and had.

    Args:
        file: Markdown, written after every row.
        answer: what a command line's words are answered with, as `measure` does.
    """
    path = Path(file)
    kept = _rows(path.read_text(encoding="utf-8")) if path.exists() else {}
    rows, had = dict(kept), len(kept)
    for label, words in commands():
        command = shlex.join(["python", "-m", "evoharness_jax.aot", *words])
        if command in rows:
            continue
        print(f"{label}: {command}", file=sys.stderr, flush=True)
        rows[command] = _row(label, answer(["aot", *words]), command)
        lines = [rows[c] for c in _order() if c in rows]
        path.write_text(HEAD + "\n".join(lines) + "\n", encoding="utf-8")
    return {"table": file, "rows": len(rows), "kept": had}


def _order():
    return [
        shlex.join(["python", "-m", "evoharness_jax.aot", *words])
        for _, words in commands()
    ]


def _rows(text: str) -> dict[str, str]:
    """Read a table back: command -> line."""
    lines = [line for line in text.splitlines() if line.endswith("` |")]
    return {line.split("`")[-2]: line for line in lines}


def _row(label: str, facts: dict[str, Any], command: str) -> str:
    usable = slices.USABLE[slices.kind(facts["topology"])]
    columns = [
        label,
        *(facts[k] for k in ("seq", "rows", "tp", "args_gib", "temp_gib", "peak_gib")),
        usable,
        "yes" if facts["fits"] else "no",
        f"`{command}`",
    ]
    return f"| {' | '.join(map(str, columns))} |"
