"""Evaluation: every game of a split once, in sorted order; writes DIR/summary.json.

    python -m evoharness_jax.evaluate --workdir=DIR \
        --config=configs/alfworld_eval.py:checkpoint=RUN,split=valid_seen

Arguments: checkpoint, split, engine=native|textworld|both, mode, regime, env,
policy=model|teacher|random, debug. A checkpoint is a run folder, a folder of weights,
or one that comes with the package: embedded-sft, and embedded, the best of them. The
model, its tokenizer and the bank come with it (a teacher's bank is `bank.path`);
`mode`, `regime` and everything below can differ from what it was trained with.

What to expect: policy=teacher wins 3,552 of the 3,553 training games (2026-11-30).
"""

from configs import common


def get_config(arg: str = ""):
    args = common.parse_arg(
        arg,
        **common.ARGUMENTS,
        checkpoint="embedded",  # embedded | embedded-sft | run | folder of weights
        split="",  # "": the environment's usual one
        engine="native",  # native | textworld: official figures | both: compared
        policy="model",  # model | teacher | random
    )
    config = common.base(args)
    config.env.engine = args.engine
    config.checkpoint = args.checkpoint
    config.policy = args.policy
    config.evaluate = common.evaluation(args)
    if args.debug and common.is_qwen(args):
        config.rules.max_turns = 4
    if args.split:
        config.evaluate.split = args.split
    return config
