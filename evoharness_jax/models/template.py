"""A chat template rendered by transformers, beside the turns that `tokens` writes."""

import os
from collections.abc import Sequence

from evoharness_jax.models import tokens as tokens_
from evoharness_jax.models.tokens import Tokens

PROBE = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Where is the mug?"},
    {"role": "assistant", "content": "On desk 1."},
    {"role": "user", "content": "Take it.\nNow."},
]


def render(
    folder: str | os.PathLike, messages: Sequence[dict], thinking: bool = True
) -> list[int]:
    """Return the ids of a chat, and of what makes the model answer it.

    Args:
        folder: of a tokenizer with a chat template; nothing is downloaded.
        messages: role and content of each turn.
        thinking: the template's `enable_thinking`.
    """
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    text = tokenizer.apply_chat_template(
        messages, tokenize=False, add_generation_prompt=True, enable_thinking=thinking
    )
    return tokenizer.encode(text, add_special_tokens=False)


def write(tokens: Tokens, messages: Sequence[dict], thinking: bool = True) -> list[int]:
    """Return the same ids by our own glue, for chats without a special word in them."""
    ids: list[int] = []
    for message in messages:
        role, text = message["role"], message["content"]
        if role == "assistant":
            said = [*tokens_.encode(tokens, text), tokens.turn_end_id]
            ids += tokens_.assistant_start(tokens) + said
            ids += tokens_.close(tokens, said)
        else:
            ids += {"system": tokens_.system, "user": tokens_.user}[role](tokens, text)
    return ids + tokens_.assistant_start(tokens, thinking)


def check(tokens: Tokens, folder: str | os.PathLike) -> None:
    """Compare both on a short chat; a folder without a template has nothing to say.

    Raises:
        ValueError: the model was trained on turns that look otherwise.
    """
    if tokens.template == tokens_.TEMPLATE:
        return
    theirs, ours = render(folder, PROBE), write(tokens, PROBE)
    if theirs != ours:
        shown = [tokens_.decode(tokens, ids, specials=True) for ids in (theirs, ours)]
        raise ValueError(
            f"{folder}: its chat template does not write turns as ChatML does: "
            f"{shown[0]!r} instead of {shown[1]!r}"
        )
