"""Cost-aware policy gradient: the model learns when a call is worth its price.

    python -m evoharness_jax.train_rl --config=configs/alfworld_rl.py --workdir=DIR \
        --config.model.init=SFT_RUN

Arguments as in alfworld_sft.py.

What to expect: with env=counter,model=counter-tiny a minute on two CPU cores, 100 % of
the test split, a third fewer calls (2026-11-30); on ALFWorld's training games not yet
run in full.
"""

from configs import common


def get_config(arg: str = ""):
    args = common.parse_arg(arg, **common.ARGUMENTS)
    config = common.base(args)

    config.rollout = rollout = common.ConfigDict()
    rollout.split = "train"
    rollout.tasks = 16  # G, tasks a step
    rollout.group = 8  # R, episodes of each task
    rollout.batch = 8  # episodes under way at once
    rollout.temperature = 1.0
    rollout.top_p = 1.0
    rollout.tp = 1  # devices of a process that share one layer while playing

    config.reward = reward = common.ConfigDict()  # evoharness_jax/train/reward.py
    reward.success = 10.0  # for a win
    reward.efficiency = 1.0  # for a win, times the share of the budget left
    reward.diversity = 0.5  # annealed bonus for using the verbs at all
    reward.diversity_kind = "coverage"  # coverage | verb_ratio (the original's)
    reward.spam = 0.1  # per repeated action
    reward.spam_cap = 10
    reward.invalid = 0.1  # per invalid turn
    reward.anneal_steps = 150  # updates until the diversity bonus is gone
    reward.share_steps = 1.0  # of the cost: priced turns against rules.max_turns
    reward.share_tokens = 0.0  # of the cost: tokens against token_budget
    reward.token_budget = 8192  # tokens that count as a whole budget
    reward.prices = common.ConfigDict()  # what a turn costs, in steps
    reward.prices.env = 1.0
    reward.prices.track = 1.0
    reward.prices.commit = 1.0
    reward.prices.recall = 1.0
    reward.prices.note = 1.0

    config.advantage = advantage = common.ConfigDict()
    advantage.uniform = "rule"  # rule | plain: groups in which all won or all failed
    advantage.scale = 1.0  # reward units that make an advantage of 1 where all won
    advantage.statistic = "episodes"  # episodes | rows (longer ones weigh more)

    config.loss = loss = common.ConfigDict()  # evoharness_jax/train/losses.py
    loss.clip_low = 0.2
    loss.clip_high = 0.28
    loss.dual_clip = 3.0
    loss.kl_kind = "k2"  # k1 | k2 | k3
    loss.kl_coef = 0.01
    loss.entropy_coef = 0.001

    config.data = data = common.ConfigDict()
    data.length = max(1024, config.model.context)  # ids of a packed row
    # Turns of an episode compute what they begin with once; splash cannot.
    data.share_heads = config.model.attention != "splash"
    data.rows = 2  # packed rows of a microbatch; as many as it takes make an update
    data.updates = 1  # updates a rollout is split into

    config.optim = common.optim(lr=1e-4, steps=150, warmup=0, schedule="constant")
    config.train = train = common.ConfigDict()
    train.logprob_chunk = 256  # places whose logits exist at a time
    train.evaluate_every = 10  # steps; 0: never
    train.evolve = True  # the bank learns from each rollout
    config.evaluate = common.evaluation(args)
    config.checkpoint = common.checkpoint(every=5)

    if common.is_qwen(args):
        config.optim.lr = 1e-6
        data.length = 8192
        data.rows = 8
    if args.lora:
        config.optim.lr *= 10  # few parameters take larger steps
    if args.env == "counter":
        rollout.tasks = 8
        rollout.group = 8
        rollout.batch = 64
        data.length = max(256, config.model.context)
        data.rows = 4
        reward.anneal_steps = 30
        advantage.scale = 0.25  # one call of seven turns is worth 0.14
        reward.token_budget = 1024
        config.optim.lr = 3e-4
        loss.entropy_coef = 0.0
        config.optim.steps = 20
        config.checkpoint.every = 10
        train.evaluate_every = 10
    if args.debug:
        config.optim.steps = 2
        rollout.tasks = 2
        rollout.group = 4
        rollout.batch = 8
        train.evaluate_every = 0
        config.checkpoint.every = 1
    if args.debug and common.is_qwen(args):
        config.rules.max_turns = 4
        rollout.tasks = 1
        rollout.group = rollout.batch = 2
        data.length = config.model.context
        data.rows = 1
    return config
