"""Compile a run's programs for a TPU slice that is not there, and say what they hold.

    config -> model of shapes -> the programs of train_sft, train_rl and the rollout
    engine -> libtpu's compiler, on CPU -> bytes per chip

    slices     names of slices, chips, memory; the mesh of a topology
    programs   a program by name, and what it is called with, as shapes
    measure    compile one, one dict of numbers; a program that does not fit is one too
    plan       whether training and rollout fit beside each other
    table      one model over many slices, as Markdown

It is memory at compile time, never speed. `python -m evoharness_jax.aot` prints it.
"""

import os
from pathlib import Path


def prepare() -> None:
    """Set what libtpu reads when it is loaded; to be called before jax is imported.

    Where there is no TPU, several processes may load libtpu at once; where there is
    one, its lock is what keeps two jobs off one chip, and stays.
    """
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
    os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")
    os.environ.setdefault("TPU_STDERR_LOG_LEVEL", "3")
    os.environ.setdefault("TPU_MIN_LOG_LEVEL", "3")
    if not [*Path("/dev").glob("accel*"), *Path("/dev/vfio").glob("[0-9]*")]:
        os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
