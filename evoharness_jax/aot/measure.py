"""Compile one program and say in one dict of numbers what it holds.

    {"topology": "v5e:4x4", "program": "sft", "chips": 16, "seq": 4096, "rows": 16,
     "tp": 1, "params": ..., "trainable_params": ..., "moments_dtype": "float32",
     "grad_reduce_dtype": "bfloat16", "args_gib": ..., "temp_gib": ..., "host_gib": ...,
     "peak_gib": ..., "kv_gib": ..., "fits": true, "compile_s": ...}

GiB are those of one chip. args_gib is what lies there before the program starts: its
arguments, and for "rl" the reference policy's weights, which a run keeps beside the
state. peak_gib is the most that lies there at once; for a program that does not fit,
it is what the compiler says that it asked for, and the compiler stops there, so that
temp_gib is the rest of it.
"""

import re
import time
from typing import Any

import jax
from jax.sharding import Mesh
from ml_collections import ConfigDict

from evoharness_jax.aot import programs, slices
from evoharness_jax.aot.programs import Program
from evoharness_jax.models import qwen3

UNITS = {"G": 2**30, "M": 2**20, "K": 2**10, "": 1}
# What the compiler says of a program that does not fit, in its several wordings.
ASKED = (
    r"\(([\d.]+)([GMK]?)\) exceeds available",
    r"Used ([\d.]+)([GMK]?) of [\d.]+[GMK]? hbm",
    r"allocate ([\d.]+)([GMK]?)i?B?",
)


def measure(
    topology: str, name: str, config: ConfigDict, *, tp: int, seq: int, rows: int
) -> dict[str, Any]:
    """Compile a program for a topology; arguments as `programs.make`.

    Raises:
        ValueError: a topology, program, config or size that cannot be.
    """
    mesh = slices.mesh(topology, tp)
    program = programs.make(name, config, mesh, seq, rows)
    begun = time.monotonic()
    lowered = lower(program)
    try:
        memory = lowered.compile().memory_analysis()
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        numbers = _refused(program, str(error))
    else:
        numbers = _accepted(program, memory, slices.USABLE[slices.kind(topology)])
    numbers["compile_s"] = round(time.monotonic() - begun, 1)
    return _facts(topology, name, program, mesh) | numbers


def lower(program: Program):
    """Trace a program for the devices of its arguments."""
    return program.function.lower(*program.args)


def asked(message: str) -> int:
    """Return the bytes that a program asked for, from the compiler's refusal.

    Raises:
        ValueError: it does not say.
    """
    for pattern in ASKED:
        if found := re.search(pattern, message):
            return int(float(found[1]) * UNITS[found[2]])
    raise ValueError(f"the compiler refused, and named no size: {message[:300]}")


def _facts(topology: str, name: str, program: Program, mesh: Mesh) -> dict[str, Any]:
    trains = name in ("sft", "rl")
    return {
        "topology": topology,
        "program": name,
        "chips": mesh.size,
        "seq": program.seq,
        "rows": program.rows,
        "tp": mesh.shape["tp"],
        "params": qwen3.param_count(program.shape),
        "trainable_params": program.trained,
        "moments_dtype": "float32" if trains else None,
        # Weights are cast before they are gathered, so gradients come back cast.
        "grad_reduce_dtype": program.shape.dtype if trains else None,
    }


def _accepted(program: Program, memory, usable: float) -> dict[str, Any]:
    held = memory.argument_size_in_bytes + program.beside
    peak = memory.peak_memory_in_bytes + program.beside
    host = memory.host_argument_size_in_bytes + memory.host_temp_size_in_bytes
    return {
        "args_gib": _gib(held),
        "temp_gib": _gib(memory.temp_size_in_bytes),
        "host_gib": _gib(host),
        "peak_gib": _gib(peak),
        "kv_gib": _gib(program.kv),
        "fits": peak <= usable * slices.GIB,
    }


def _refused(program: Program, message: str) -> dict[str, Any]:
    held = programs.bytes_of(program.args) + program.beside
    peak = asked(message) + program.beside
    return {
        "args_gib": _gib(held),
        "temp_gib": _gib(max(0, peak - held)),
        "host_gib": 0.0,
        "peak_gib": _gib(peak),
        "kv_gib": _gib(program.kv),
        "fits": False,
    }


def _gib(size: int) -> float:
    return round(size / slices.GIB, 2)
