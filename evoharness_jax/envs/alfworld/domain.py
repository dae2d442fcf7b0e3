"""ALFWorld as a `Domain`: the engine, the reader, what is shown, and the prompt."""

import re
from functools import partial
from importlib import resources

from evoharness_jax.bpe import lexicon as lexicon_
from evoharness_jax.envs.alfworld import data, engines, goals, teacher
from evoharness_jax.envs.alfworld.read import ATTRIBUTES, read
from evoharness_jax.envs.domain import Domain, Observation, Task

BANNER = "-= Welcome to TextWorld, ALFRED! =-"
MODES = ("inline", "env_only", "always_on")
MODULES = ("belief", "progress", "experience")
STYLES = ("full", "local", "none")
# Commands that are grammar rather than news: every place can be gone to, always.
ALWAYS = frozenset(("help", "look", "inventory"))
SECTION = re.compile(r"^\[([a-z ]+)\]\n", re.MULTILINE)


def make(
    engine: str = "native",
    root: str | None = None,
    workers: int = 4,
    timeout: float = 120.0,
    cache_dir: str | None = None,
    prompt: str = "full",
) -> Domain:
    """Return ALFWorld on an engine.

    Args:
        engine: "native", "textworld" or "both"; see `engines`.
        root: the data folder, or several; None: $ALFWORLD_DATA.
        workers: textworld: episodes that may be alive at once.
        timeout: textworld: seconds one call may take.
        cache_dir: where compiled and translated games are kept; None: not.
        prompt: "full" for a pretrained model, "terse" for a small one from scratch.
    """
    data.data_roots(root)
    template = _template(prompt)
    played = engines.make(engine, workers, timeout, cache_dir)
    return Domain(
        name="alfworld",
        tasks=partial(data.games, root=root),
        reset=played.reset,
        step=played.step,
        close=played.close,
        lexicon=lexicon,
        read=read,
        show=show,
        offer=offer,
        prompt=partial(system_text, template),
        task_type=task_type,
        teacher=teacher.decide,
        manual=(),
        capacity=played.capacity,
        workers=played.workers,
    )


def lexicon(task: Task, observation: Observation) -> lexicon_.Lexicon:
    """Return the lexicon of a new episode."""
    return lexicon_.empty(ATTRIBUTES, task.type, observation.objective)


def show(text: str) -> str:
    """Drop the banner and the goal sentence: neither is seen more than once."""
    return goals.TASK.sub("", text.replace(BANNER, "")).strip()


def offer(commands: tuple[str, ...], style: str) -> tuple[str, ...]:
    """Select the commands to show: all, what is special to this place, or none."""
    if style == "full":
        return tuple(c for c in commands if c != "help")
    if style == "local":
        return tuple(
            c for c in commands if c not in ALWAYS and not c.startswith("go to ")
        )
    if style == "none":
        return ()
    raise ValueError(f"unknown style of commands: {style=}, there are: {STYLES}")


def task_type(objective: str) -> str:
    """Return the task type that an objective's words ask for."""
    return goals.goal(objective).type


def system_text(template: dict[str, str], mode: str, modules: frozenset[str]) -> str:
    """Compose the system text.

    Args:
        template: sections by name.
        mode: inline (tools to call), always_on (views to read) or env_only (neither).
        modules: which of belief, progress and experience are switched on.
    """
    if mode not in MODES:
        raise ValueError(f"unknown mode: {mode=}, there are: {MODES}")
    if unknown := set(modules) - set(MODULES):
        raise ValueError(f"unknown modules: {sorted(unknown)}, there are: {MODULES}")
    parts = ["job", "commands"]
    on = [module for module in MODULES if module in modules]
    if on and mode == "inline":
        parts += ["tools", *on]
    if on and mode == "always_on":
        parts += ["always", *(f"always {module}" for module in on)]
    return "\n".join(template[part] for part in [*parts, "format"])


def _template(style: str) -> dict[str, str]:
    folder = resources.files("evoharness_jax") / "data" / "prompts"
    file = folder / f"alfworld_{style}.txt"
    if not file.is_file():
        raise ValueError(f"unknown prompt: {style!r}, there are: full, terse")
    _, *parts = SECTION.split(file.read_text(encoding="utf-8"))
    return {name: text.strip() for name, text in zip(parts[::2], parts[1::2])}
