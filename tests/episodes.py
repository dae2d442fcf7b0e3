"""Short episodes on `counter`, and who plays them: what the loop's tests share."""

from evoharness_jax.bpe.workspace import Rules
from evoharness_jax.envs import counter
from evoharness_jax.experience import bank as bank_
from evoharness_jax.rollout import loop, policies
from evoharness_jax.rollout.loop import Setting
from evoharness_jax.rollout.policies import Policy, Response
from evoharness_jax.rollout.prompt import Style

DOMAIN = counter.make()
BANK, WORDS = bank_.arrays(bank_.from_lessons(DOMAIN.manual), 32)
TASKS = {t.id: t for split in ("train", "test") for t in counter.tasks(split)}
TEACHER = policies.teacher(DOMAIN.teacher)
RULES = Rules(max_turns=9)


def play(policy, *tasks, rules=RULES, domain=DOMAIN, batch=5, tokens=None, **style):
    """Play tasks; one batch size, so that most tests share their programs."""
    wanted = [TASKS[name] for name in tasks]
    setting = Setting(rules, Style(**style))
    return loop.rollout(
        policy,
        domain,
        BANK,
        WORDS,
        wanted,
        setting,
        batch=batch,
        tokens=tokens,
    )


def say(*responses):
    """The policy that answers each turn with a text as it stands."""

    def act(requests):
        return [Response(responses[min(r.turn, len(responses) - 1)]) for r in requests]

    return Policy("say", act)


def prompts(played, row=0):
    return [turn["prompt"] for turn in played.records[row]["turns"]]


def tags(played, row=0):
    return [turn["tag"] for turn in played.records[row]["turns"]]


SCRIPT = policies.scripted(
    [
        "Commit [reach 2]",
        "recall [golf]",
        "track [counter]",
        "inc",
        "jump",
        "recall [nothing]",
        "inc",
    ]
)

NAMES = ["plain+1", "coded-golf", "plain-2", "coded-mike", "plain+5"]
