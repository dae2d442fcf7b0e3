"""Checkpoints: one Orbax step directory holds the arrays and the words of a run.

    RUN/checkpoints/<step>/state    TrainState
    RUN/checkpoints/<step>/host     JSON: what the host has to remember

A step directory appears by rename, when it is whole. Where a run starts from, first
match wins:

    1. the newest checkpoint under its own workdir    (it was stopped: go on)
    2. the run or Hugging Face folder `model.init`    (weights only, step 0)
    3. random weights
"""

from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp

from evoharness_jax.types import TrainState


class CheckpointError(ValueError):
    """A checkpoint could not be written, read or fitted; says which and why."""


def manager(workdir: str | Path, keep: int) -> ocp.CheckpointManager:
    """Open a run's checkpoints, making the folder if need be."""
    folder = Path(workdir).resolve() / "checkpoints"
    options = ocp.CheckpointManagerOptions(
        max_to_keep=keep, create=True, enable_async_checkpointing=False
    )
    return ocp.CheckpointManager(folder, options=options)


def begun(workdir: str | Path) -> bool:
    """Say whether a run has a checkpoint to go on from."""
    folder = Path(workdir) / "checkpoints"
    return folder.is_dir() and any(path.name.isdigit() for path in folder.iterdir())


def save(
    checkpoints: ocp.CheckpointManager, step: int, state: TrainState, host: dict
) -> None:
    """Write a checkpoint; the ones before it stay as they are until it is whole.

    Raises:
        CheckpointError: it could not be written; names the last good one.
    """
    last = checkpoints.latest_step()
    if last == step:
        return
    items = ocp.args.Composite(
        state=ocp.args.StandardSave(state), host=ocp.args.JsonSave(host)
    )
    try:
        checkpoints.save(step, args=items)
        checkpoints.wait_until_finished()
    except (OSError, ValueError, RuntimeError) as error:
        good = "there is none before it" if last is None else f"step {last} stays good"
        raise CheckpointError(
            f"checkpoint of step {step} under {checkpoints.directory} could not be "
            f"written, {good}: {error}"
        ) from error


def restore(
    checkpoints: ocp.CheckpointManager, state: TrainState, model: dict
) -> tuple[TrainState, dict] | None:
    """Read the newest checkpoint, or None where there is none.

    Args:
        state: what to restore into: arrays or ShapeDtypeStructs with shardings.
        model: this run's model settings; a checkpoint of another model is refused.

    Raises:
        CheckpointError: the checkpoint is of another model, or does not fit.
    """
    step = checkpoints.latest_step()
    if step is None:
        return None
    host = _read(checkpoints, step, host=ocp.args.JsonRestore())["host"]
    same_model(host["model"], model, checkpoints.directory)
    like = jax.tree.map(ocp.utils.to_shape_dtype_struct, state)
    item = ocp.args.StandardRestore(like)
    return _read(checkpoints, step, state=item)["state"], host


def read_host(run: str | Path) -> tuple[int, dict]:
    """Read the newest step of a run and what its host remembered.

    Raises:
        CheckpointError: the folder holds no checkpoint.
    """
    checkpoints = _existing(run)
    step = checkpoints.latest_step()
    return step, _read(checkpoints, step, host=ocp.args.JsonRestore())["host"]


def read_params(run: str | Path, shapes: Any) -> Any:
    """Read the parameters of a run's newest checkpoint, and nothing else.

    Args:
        shapes: tree of ShapeDtypeStructs (with shardings, to place them).
    """
    checkpoints = _existing(run)
    step = checkpoints.latest_step()
    item = ocp.args.PyTreeRestore(
        item={"params": shapes},
        restore_args=ocp.checkpoint_utils.construct_restore_args({"params": shapes}),
        partial_restore=True,
    )
    folder = Path(checkpoints.directory) / str(step) / "state"
    try:
        with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as reader:
            return reader.restore(folder, args=item)["params"]
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise CheckpointError(f"{folder} could not be read: {error}") from error


def same_model(found: dict, wanted: dict, where: Any) -> None:
    """Raise CheckpointError where two model settings differ in shape."""
    differ = [k for k in sorted(wanted) if found.get(k) != wanted[k]]
    if differ:
        lines = ", ".join(f"{k} {found.get(k)} instead of {wanted[k]}" for k in differ)
        raise CheckpointError(f"{where} is of another model: {lines}")


def _existing(run: str | Path) -> ocp.CheckpointManager:
    folder = Path(run).resolve() / "checkpoints"
    if not folder.is_dir():
        raise CheckpointError(f"{run} is not a run: it has no checkpoints folder")
    options = ocp.CheckpointManagerOptions(read_only=True)
    checkpoints = ocp.CheckpointManager(folder, options=options)
    if checkpoints.latest_step() is None:
        raise CheckpointError(f"{folder} holds no whole checkpoint")
    return checkpoints


def _read(checkpoints: ocp.CheckpointManager, step: int, **items) -> Any:
    try:
        return checkpoints.restore(step, args=ocp.args.Composite(**items))
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise CheckpointError(
            f"checkpoint of step {step} under {checkpoints.directory} could not be "
            f"read: {error}"
        ) from error
