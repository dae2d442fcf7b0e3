"""Training rows from recorded episodes: what a model should have read and answered.

The ids are those that the loop would have made with the same words, so a fine-tuned
model meets in a rollout exactly what it was trained on.
"""

from typing import Any

from evoharness_jax.models.tokens import Tokens
from evoharness_jax.rollout import prompt as prompt_
from evoharness_jax.rollout import stream as stream_
from evoharness_jax.rollout.prompt import Style
from evoharness_jax.rollout.stream import Row, Stream


def texts(record: dict[str, Any]) -> list[str]:
    """Return the texts of an episode, to train a tokenizer on."""
    found = [f"system\n{record['system']}", f"user\n{record['opening']}\n"]
    for turn in record["turns"]:
        found += [turn["prompt"], "assistant\n", answer(turn)]
    return found


def answer(turn: dict[str, Any]) -> str:
    """Return what the policy should have answered; "" where it was not asked."""
    return turn.get("label", turn.get("response", ""))


def rows(tokens: Tokens, record: dict[str, Any]) -> list[Row]:
    """Return an episode's rows: one a turn (`per_turn`), or one in all (`append`).

    Where a teacher erred on purpose, `per_turn` learns what it should have done. In
    `append` the error stays in the text, and is not learned from.
    """
    style = Style(**record["setting"]["style"])
    head = prompt_.head_ids(tokens, record["system"], record["opening"])
    result, stream = [], Stream()
    for t, turn in enumerate(record["turns"]):
        if "response" not in turn:
            continue
        if style.regime == "append" and t:
            last = stream.ids[stream.last :]
            new = prompt_.next_ids(tokens, style, last, turn["prompt"])
        else:
            stream = Stream()
            stream_.read(stream, head)
            new = prompt_.tail_ids(tokens, style, turn["prompt"])
        stream_.read(stream, new)
        if style.regime == "per_turn":
            stream_.write(stream, prompt_.response_ids(tokens, answer(turn)))
            result.append(stream_.row(stream, t))
            continue
        stream_.write(stream, prompt_.response_ids(tokens, turn["response"]))
        if "label" in turn:
            stream.mask[stream.last :] = [False] * (len(stream.ids) - stream.last)
    if style.regime == "append" and stream.ids:
        result.append(stream_.row(stream, len(record["turns"]) - 1))
    return result
