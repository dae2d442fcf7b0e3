"""What the policy reads at a turn: text first, then ids.

    system    the environment's rules and tools
    opening   objective and first observation
    tail      last actions, current observation, commands, the standing workspace

`per_turn`: every prompt is the constant head (system, opening) and a fresh tail.
`append`: the episode is one growing id list; later tails say only what is new.
The same functions serve collection, training and evaluation: what a policy is trained
on is what it is evaluated on.
"""

from typing import NamedTuple

from evoharness_jax.bpe import views
from evoharness_jax.bpe.lexicon import BankText, Lexicon
from evoharness_jax.models import tokens as tokens_
from evoharness_jax.models.tokens import Tokens
from evoharness_jax.types import COMMIT, ENV, NULL

MODES = ("inline", "env_only", "always_on")
REGIMES = ("per_turn", "append")
COMMAND_STYLES = ("full", "local", "none")
DID = "did: "  # the way there


class Style(NamedTuple):
    """How an episode is put into words."""

    mode: str = "inline"
    regime: str = "per_turn"
    commands: str = "local"
    history: int = 6  # last actions shown (per_turn)
    thinking: bool = True  # False: prefix the empty think block of Qwen3

    def check(self) -> None:
        """Raise ValueError, naming the setting, where one is unknown."""
        choices = {"mode": MODES, "regime": REGIMES, "commands": COMMAND_STYLES}
        for name, known in choices.items():
            if getattr(self, name) not in known:
                raise ValueError(
                    f"{name}: {getattr(self, name)!r}, not one of {', '.join(known)}"
                )


def opening(objective: str, observation: str) -> str:
    """Return the text that stands at the head of every prompt of an episode."""
    return f"goal: {objective}\nstart: {observation}"


def tail(
    style: Style,
    lexicon: Lexicon,
    bank: BankText,
    episode,
    observation: str,
    commands: tuple[str, ...],
) -> str:
    """Return what is new at this turn.

    Args:
        episode: one Episode, numpy leaves.
        observation: the last feedback that the environment gave to an accepted action.
        commands: those that the style shows.
    """
    lines = []
    first = int(episode.turn) == 0
    appended = style.regime == "append" and not first
    if style.regime == "per_turn":
        if words := views.history(lexicon, episode, style.history):
            lines.append(f"{DID}{words}")
    acted = int(episode.reply.verb) == ENV and not episode.reply.tag
    if not first and (acted or not appended):
        lines.append(f"now: {observation}")
    if commands and (first or acted or not appended):
        lines.append(f"can: {', '.join(commands)}")
    always = style.mode == "always_on"
    if appended and not always:
        if words := views.reply(lexicon, bank, episode):
            lines.append(words)
        if int(episode.reply.verb) == COMMIT and not episode.reply.tag:
            lines.append(f"plan: {views.plan(lexicon, episode.workspace.progress)}")
    elif style.mode != "env_only" or int(episode.reply.verb) != NULL:
        lines += views.standing(lexicon, bank, episode, always)
    return "\n".join(lines)


def place(tail: str) -> str:
    """Return what a `per_turn` tail says of where the episode stands.

    That is the observation, the commands and the standing workspace, but not the way
    there: two episodes that got to the same point otherwise give the same text.
    """
    first, _, rest = tail.partition("\n")
    return rest if first.startswith(DID) else tail


def head_ids(tokens: Tokens, system: str, opening: str) -> list[int]:
    """Return the ids of system turn and opening: the user turn is still open.

    Its last line break is part of the head: tokenizers may join one to what stands
    before it, but never to the word behind it.
    """
    start = tokens_.user(tokens, f"{opening}\n")
    return tokens_.system(tokens, system) + start[: -len(tokens_.turn_end(tokens))]


def tail_ids(tokens: Tokens, style: Style, tail: str) -> list[int]:
    """Return the ids that finish the user turn which `head_ids` opened."""
    words = tokens_.quote(tokens, tail)
    glue = tokens_.turn_end(tokens)
    return words + glue + tokens_.assistant_start(tokens, style.thinking)


def next_ids(tokens: Tokens, style: Style, response: list[int], tail: str) -> list[int]:
    """Return the ids that stand between a response and the next one (`append`)."""
    return (
        tokens_.close(tokens, response)
        + tokens_.user(tokens, tail)
        + tokens_.assistant_start(tokens, style.thinking)
    )


def response_ids(tokens: Tokens, response: str) -> list[int]:
    """Return the ids of a response that was not sampled: a teacher's."""
    return [*tokens_.encode(tokens, response), tokens.turn_end_id]
