"""Whether training and rollout fit beside each other on a slice, and what to turn down.

On the same chips, one after the other:

    update   the update's peak, and the cache, which a run keeps
    play     state and reference, and the rollout's peak: its weights, cache and temps

What is too large is named with what a smaller setting would save.
"""

import sys
from typing import Any

from ml_collections import ConfigDict

from evoharness_jax.aot import measure, slices


def plan(name: str, config: ConfigDict, seq: int = 0, rows: int = 0) -> dict[str, Any]:
    """Compile the update of train_rl and the generation of a slice, and add them up.

    Args:
        name: a key of `slices.SLICES`.
        config: of train_rl.
        seq: tokens of a packed row; 0: the config's.
        rows: of the cache, over the slice; 0: the config's episodes for each group of
            chips that shares the weights.

    Raises:
        ValueError: no such slice, or a config of another stage.
    """
    if name not in slices.SLICES:
        known = ", ".join(slices.SLICES)
        raise ValueError(f"--plan: {name!r} is not one of {known}")
    where = slices.SLICES[name]
    print(f"compiling the update for {where.topology}", file=sys.stderr)
    update = measure.measure(
        where.topology, "rl", config, tp=config.mesh.tp, seq=seq, rows=0
    )
    print(f"compiling the rollout, tp={where.tp}", file=sys.stderr)
    play = measure.measure(
        where.topology, "generate", config, tp=where.tp, seq=0, rows=rows
    )
    return {"slice": name, **added(update, play)}


def added(update: dict[str, Any], play: dict[str, Any]) -> dict[str, Any]:
    """Add up what `measure` says of an update and of a generation.

    Returns:
        usable_gib of a chip; update_gib and play_gib, the most that either holds with
        what lies beside it; fits; turn_down, sentences on what would help; and what
        was added.
    """
    usable = slices.USABLE[slices.kind(update["topology"])]
    needs = {
        "update_gib": round(update["peak_gib"] + play["kv_gib"], 2),
        "play_gib": round(update["args_gib"] + play["peak_gib"], 2),
    }
    fits = update["fits"] and play["fits"] and max(needs.values()) <= usable
    return {
        "topology": update["topology"],
        "chips": update["chips"],
        "usable_gib": usable,
        **needs,
        "fits": fits,
        "turn_down": [] if fits else _advice(update, play, usable),
        "training": update,
        "rollout": play,
    }


def _advice(update, play, usable) -> list[str]:
    advice = []
    if not update["fits"]:
        advice.append(
            f"data.length: an update of {update['seq']} tokens a row asks for "
            f"{update['peak_gib']} GiB of {usable}; shorter rows, or the config "
            "argument lora=64, whose state is small"
        )
    spare = usable - max(
        update["peak_gib"], update["args_gib"] + play["peak_gib"] - play["kv_gib"]
    )
    shards = play["chips"] // play["tp"]
    a_row = play["kv_gib"] / (play["rows"] // shards)
    most = max(0, int(spare / a_row)) if a_row else 0
    if most and most < play["rows"] // shards:
        advice.append(
            f"rollout.batch: {most} episodes for each {play['tp']} chips fit, at "
            f"{a_row:.2f} GiB of cache a chip and row of {play['seq']} positions; "
            "or a shorter model.context"
        )
    elif not most:
        weights = play["args_gib"] - play["kv_gib"]
        advice.append(
            f"the rollout's weights: {weights:.2f} GiB a chip at tp={play['tp']} do "
            "not fit beside the state; a larger tp halves them, lora=64 keeps no "
            "moments of the model; or roll out on other chips"
        )
    return advice
