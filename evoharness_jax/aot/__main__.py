"""What a program of a run holds on a TPU slice: one JSON line.

    python -m evoharness_jax.aot --topology v5e:4x4 --program sft \
        --config=configs/alfworld_sft.py:model=qwen3-8b [--seq N --rows N --tp N]
    python -m evoharness_jax.aot --plan v5e-16 --config=...
    python -m evoharness_jax.aot --table launch/aot_table.md
"""

from evoharness_jax.aot import prepare

if __name__ == "__main__":
    prepare()  # before jax is imported, which `command` does
    from evoharness_jax.aot.command import main

    main()
