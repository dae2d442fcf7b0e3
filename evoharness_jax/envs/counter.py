"""The counter: the smallest environment in which the harness has a price and a worth.

A counter starts at 0; `inc` and `dec` change it; the task is won when it shows the
number asked for. Two task types:

    plain   "reach -3"     the number is in the objective: every call is waste
    coded   "reach kilo"   the number of a code word stands in the manual only: one
                           `recall` is worth its turn, as even the direction is unknown

Code words of the two splits differ: what a word means cannot be learned by heart.
"""

from typing import NamedTuple

from evoharness_jax.bpe import experience, lexicon
from evoharness_jax.bpe.lexicon import Lexicon
from evoharness_jax.envs.domain import Domain, Lesson, Observation, Sight, Task
from evoharness_jax.types import AT, COMMIT, NONE, RECALL, THING, TRACK, Event

COMMANDS = ("dec", "inc")
WORDS = (
    "alpha bravo charlie delta echo foxtrot golf hotel india juliet kilo lima mike "
    "november oscar papa quebec romeo sierra tango uniform victor whiskey xray yankee "
    "zulu"
).split()
FAR = 5
TARGETS = (*range(-FAR, 0), *range(1, FAR + 1))
# Every second word is for training. 7 is prime to the number of targets, so that all
# of them come up on both sides.
NUMBERS = {
    word: TARGETS[(7 * (i // 2) + 5 * (i % 2) + 3) % len(TARGETS)]
    for i, word in enumerate(WORDS)
}


class State(NamedTuple):
    target: int
    value: int
    objective: str


def make() -> Domain:
    """Return the counter domain."""
    return Domain(
        name="counter",
        tasks=tasks,
        reset=reset,
        step=step,
        close=lambda state: None,
        lexicon=lambda task, observation: lexicon.empty(
            task_type=task.type, objective=observation.objective
        ),
        read=read,
        show=lambda text: text,
        offer=offer,
        prompt=prompt,
        task_type=task_type,
        teacher=teacher,
        manual=tuple(
            Lesson(experience.HINT, "coded", f"{word}: {number}")
            for word, number in NUMBERS.items()
        ),
        capacity=4096,
        workers=1,
    )


def tasks(split: str) -> tuple[Task, ...]:
    """Return a split's tasks: `train` or `test`, both types, sorted by id."""
    halves = {"train": WORDS[::2], "test": WORDS[1::2]}
    if split not in halves:
        raise ValueError(f"counter has no split {split!r}, only {', '.join(halves)}")
    plain = [Task(f"plain{n:+}", "plain", split, str(n)) for n in TARGETS]
    coded = [Task(f"coded-{w}", "coded", split, w) for w in halves[split]]
    return tuple(sorted(plain + coded))


def reset(task: Task) -> tuple[State, Observation]:
    """Begin a task."""
    target = NUMBERS[task.spec] if task.spec in NUMBERS else int(task.spec)
    state = State(target, 0, f"reach {task.spec}")
    return state, _observe(state)


def step(state: State, action: str) -> tuple[State, Observation]:
    """Take one action; anything but `inc` and `dec` is refused."""
    change = {"inc": 1, "dec": -1}.get(action.strip().lower())
    if change is None:
        return state, _observe(state)._replace(text="unknown", valid=False)
    state = state._replace(value=state.value + change)
    return state, _observe(state)


def _observe(state: State) -> Observation:
    won = state.value == state.target
    return Observation(
        text=f"counter: {state.value}",
        commands=COMMANDS,
        objective=state.objective,
        done=won,
        won=won,
        score=float(won),
        valid=True,
        info={},
    )


def read(words: Lexicon, action: str, observation: Observation):
    """Read feedback: where the counter stands, and that its number was reached."""
    effects = lexicon.no_effects()
    facts, dropped = [], 0
    if observation.valid:
        number = observation.text.removeprefix("counter: ")
        words, counter = lexicon.name(words, "counter")
        words, value = lexicon.name(words, number)
        dropped = (counter, value).count(NONE)
        if not dropped:
            effects.seen[counter] = True
            effects.role[counter] = THING
            effects.place[counter] = value
            effects.relation[counter] = AT
        facts.append(f"reach {number}")
        if observation.won:
            facts += ["reach the number", observation.objective]
    proved = lexicon.proved(words, facts)
    event: Event = lexicon.env_event(effects, proved, observation, dropped)
    return words, event


def offer(commands: tuple[str, ...], style: str) -> tuple[str, ...]:
    """Return the commands shown under a style: full, local or none."""
    return () if style == "none" else commands


def prompt(mode: str, modules: frozenset[str]) -> str:
    """Return the system text for a mode and the modules that are on."""
    lines = ["Make the counter show the number. Actions: inc, dec."]
    tools = {
        "belief": "track [counter]",
        "progress": "commit [subgoal]",
        "experience": "recall, note [insight]",
    }
    on = [tools[m] for m in tools if m in modules]
    if mode == "inline" and on:
        lines.append(f"Tools: {', '.join(on)}.")
    return " ".join(lines)


def task_type(objective: str) -> str:
    """Return `plain` or `coded` for an objective such as "reach 3"."""
    word = objective.removeprefix("reach ").strip()
    if word.removeprefix("-").isdigit():
        return "plain"
    if word in NUMBERS:
        return "coded"
    raise ValueError(f"not a counter objective: {objective!r}")


def teacher(sight: Sight) -> tuple[str, str]:
    """Play well but spend freely: plan first, recall always, track now and then.

    It wins short tasks and runs out of turns on long ones, which leaves something for
    cost-aware training to find.
    """
    episode, words = sight.episode, sight.lexicon
    word = sight.objective.removeprefix("reach ")
    done = [int(v) for v in episode.verbs[: int(episode.turn)]]
    if "commit" in sight.tools and COMMIT not in done:
        return "", "commit [reach the number]"
    if "recall" in sight.tools and RECALL not in done:
        return "", "recall"
    # At even counts half of the episodes look again at what they already know.
    look = done[-1:] != [TRACK] and (sight.seed + len(done)) % 2 == 0
    if "track" in sight.tools and look:
        return "", "track [counter]"
    recalled = [sight.bank_text[s] for s in episode.workspace.hints if s >= 0]
    numbers = dict(text.split(": ", 1) for text in recalled if ": " in text)
    target = int(numbers.get(word, 1) if word in NUMBERS else word)
    counter = words.name_ids["counter"]
    value = int(words.names[int(episode.workspace.belief.place[counter])])
    return "", "inc" if value < target else "dec"
