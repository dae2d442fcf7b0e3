"""Supervised harness fine-tuning: a model learns the four verbs from teacher episodes.

    python -m evoharness_jax.train_sft --config=configs/alfworld_sft.py --workdir=DIR
    python -m evoharness_jax.collect   --config=configs/alfworld_sft.py --workdir=DIR

Arguments, after a colon: model=household-tiny|counter-tiny|qwen3-8b|..., lora=RANK,
mode=inline|env_only|always_on, regime=per_turn|append, env=alfworld|counter, debug.
`collect` makes the episodes alone; `train_sft` makes them itself unless `data.episodes`
names a folder that `collect` wrote.

A Qwen3 wants weights: --config.model.init=FOLDER, as it was published. On a laptop
`model=qwen3-8b,debug` goes through the same path with narrow random layers.

What to expect: with env=counter,model=counter-tiny half a minute on two CPU cores and
70 % of the test split (2026-11-30); on ALFWorld's training games not yet run in full.
"""

from configs import common


def get_config(arg: str = ""):
    args = common.parse_arg(arg, **common.ARGUMENTS)
    config = common.base(args)
    config.collect = common.collect(args)

    config.data = data = common.ConfigDict()
    # Folders of `collect` runs, as a:b (the first one's bank); "": collect first, here.
    data.episodes = ""
    data.only_won = True  # learn from episodes that reached the goal
    data.held_out = 0.05  # share of episodes kept for the held-out loss
    # Weight of a prompt's token, beside 1 for a response's: a model from scratch learns
    # from what it reads how names are copied.
    data.prompt_weight = 0.0 if common.is_qwen(args) else 0.3
    data.length = max(1024, config.model.context)  # ids of a packed row
    # Turns of an episode compute what they begin with once; splash cannot.
    data.share_heads = config.model.attention != "splash"
    data.rows = 2  # packed rows of a microbatch; few: on CPU, memory is the cost
    data.accum = 4  # microbatches of an update

    # More than that, and a model that begins with heads that copy unlearns them.
    config.optim = common.optim(lr=1e-3, steps=600, warmup=30, schedule="cosine")
    config.train = train = common.ConfigDict()
    train.log_every = 10  # updates between lines of metrics
    train.check_every = 100  # updates between held-out losses
    train.logprob_chunk = 256  # places whose logits exist at a time
    config.checkpoint = common.checkpoint(every=100)

    if common.is_qwen(args):
        config.optim = common.optim(lr=1e-5, steps=600, warmup=30, schedule="cosine")
        data.length = 8192 if args.regime == "append" else 4096
        data.rows, data.accum = 8, 1
    if args.lora:
        config.optim.lr *= 10  # few parameters take larger steps
    if args.env == "counter":
        data.length = max(256, config.model.context)
        data.prompt_weight = 0.05  # little has to be copied
        data.rows = 4
        config.optim.steps = 180
        config.optim.lr = 3e-3
        config.optim.warmup = 10
        train.check_every = 60
        config.checkpoint.every = 60
    if args.debug:
        config.optim.steps = 20
        config.optim.warmup = 2
        config.checkpoint.every = 10
        train.check_every = 10
    if args.debug and common.is_qwen(args):
        config.optim.steps = 4
        data.length = config.model.context
        data.rows, data.accum = 1, 1
        train.log_every = 1
        train.check_every = config.checkpoint.every = 4
    return config
