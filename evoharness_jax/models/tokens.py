"""Words <-> token ids: the tokenizer, the chat template as ids, and buckets.

    <|im_start|>system\\n{text}<|im_end|>\\n            system(tokens, text)
    <|im_start|>user\\n{text}<|im_end|>\\n              user(tokens, text)
    <|im_start|>assistant\\n                           assistant_start(tokens)
    ...sampled ids... <|im_end|>                      the policy's own
    \\n                                                close(tokens, response)

An episode is a list of ids that only grows: what the policy sampled is kept as
sampled, only new text is tokenised, and past turns are never rendered again (Qwen3's
own template would strip their thoughts). For one turn the ids are those that its
template renders, tested. Two kinds of text:

    encode    ours and the policy's: <think> is one id where the tokenizer has it
    quote     what others wrote (all of a user turn): plain words, whatever it says

Neither ever gives a special id; only this module's glue writes those.
"""

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

END, TURN, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
SPECIALS = (END, TURN, TURN_END)
QUIET = "<think>\n\n</think>\n\n"  # what a Qwen3 whose thinking is off answers first

# What the glue below renders, for those who ask a tokenizer folder: servers.
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}"
    f"{QUIET}{{% endif %}}{{% endif %}}"
)

# In this order: a markup tag whole, a word with the space before it, one digit with
# the space before it (a number is as many tokens as it has digits, so 12 and 21 share
# nothing with 1221), a run of punctuation, line breaks, what is left of white space.
SPLIT = (
    r"</?[A-Za-z_]+>"
    r"| ?\p{L}+"
    r"| ?\p{N}"
    r"| ?[^\s\p{L}\p{N}<]+|<"
    r"|[\r\n]+"
    r"|\s+(?=\s\S)|\s+"
)


@dataclass(frozen=True, eq=False)
class Tokens:
    """A tokenizer and the ids that the rest of the package asks for."""

    tokenizer: Tokenizer = field(repr=False)
    vocab_size: int  # ids run below this; a model's vocabulary may be larger
    turn_id: int  # <|im_start|>
    turn_end_id: int  # <|im_end|>
    pad_id: int  # <|endoftext|>
    stop_ids: tuple[int, ...]  # what ends a response
    quoting: Tokenizer = field(repr=False)  # the same, without any added token
    template: str = field(default=TEMPLATE, repr=False)  # Jinja, of its folder


def train(
    texts: Iterable[str], vocab_size: int, specials: Sequence[str] = SPECIALS
) -> Tokenizer:
    """Train a byte-level BPE tokenizer; the same texts give the same tokenizer.

    Args:
        texts: the corpus. Words should come as they will be read, with their spaces.
        vocab_size: ids in all, specials and the 256 bytes included; fewer come out
            where the texts hold too few repeated words.
        specials: they get the first ids, in this order.

    Raises:
        ValueError: vocab_size leaves no room for the bytes and the specials.
    """
    least = 256 + len(specials)
    if vocab_size < least:
        raise ValueError(
            f"vocab_size must hold bytes and specials: {vocab_size} < {least}"
        )
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        special_tokens=list(specials),
        # Sorted, because the library's own order differs between processes.
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_with_roles(texts), trainer)
    return tokenizer


def _with_roles(texts):
    """Let the template's words, which every turn pays for, become tokens too."""
    for text in texts:
        yield text
        yield from ("system\n", "user\n", "assistant\n")


def save(tokenizer: Tokenizer | Tokens, folder: str | os.PathLike) -> None:
    """Write tokenizer.json, and what transformers needs to load the folder too."""
    template = TEMPLATE
    if isinstance(tokenizer, Tokens):
        tokenizer, template = tokenizer.tokenizer, tokenizer.template
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": TURN_END,
        "pad_token": END,
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2))
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")


def load(folder: str | os.PathLike) -> Tokens:
    """Read a tokenizer folder: one of `save`'s, or a Qwen3's own.

    tokenizer.json is read as it stands. A folder without it (vocab.json and
    merges.txt) goes through transformers, which must then be installed; nothing is
    downloaded.

    Raises:
        FileNotFoundError: no such folder.
        ValueError: it lacks one of the three ChatML specials, or text can write one.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"no tokenizer folder at {folder}")
    template = _template(folder)
    if (folder / "tokenizer.json").exists():
        return _wrap(Tokenizer.from_file(str(folder / "tokenizer.json")), template)
    from transformers import AutoTokenizer

    auto = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    return _wrap(auto.backend_tokenizer, template)


def _template(folder):
    """Return the folder's chat template, where newer and older ones keep it."""
    if (folder / "chat_template.jinja").exists():
        return (folder / "chat_template.jinja").read_text(encoding="utf-8")
    config = folder / "tokenizer_config.json"
    found = json.loads(config.read_text("utf-8")) if config.exists() else {}
    template = found.get("chat_template")
    return template if isinstance(template, str) else TEMPLATE


def wrap(tokenizer: Tokenizer) -> Tokens:
    """Look up the special ids of a tokenizer, on a copy that text cannot fool.

    Raises:
        ValueError: a ChatML special is missing, or text can write one.
    """
    return _wrap(Tokenizer.from_str(tokenizer.to_str()))


def _wrap(tokenizer, template=TEMPLATE):
    tokenizer.encode_special_tokens = True  # "encode", as any other text
    tokenizer.no_padding()
    tokenizer.no_truncation()
    ids = [tokenizer.token_to_id(special) for special in SPECIALS]
    for special, number in zip(SPECIALS, ids):
        if number is None:
            raise ValueError(f"the tokenizer has no {special}")
        if number in tokenizer.encode(special, add_special_tokens=False).ids:
            raise ValueError(f"text can write {special}: it is not marked as special")
    end, turn, turn_end = ids
    return Tokens(
        tokenizer=tokenizer,
        vocab_size=max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1,
        turn_id=turn,
        turn_end_id=turn_end,
        pad_id=end,
        stop_ids=(turn_end, end),
        quoting=_quoting(tokenizer),
        template=template,
    )


def _quoting(tokenizer):
    """Return the tokenizer to which every added token is text like any other."""
    state = json.loads(tokenizer.to_str())
    if all(added["special"] for added in state["added_tokens"]):
        return tokenizer
    for added in state["added_tokens"]:
        added["special"] = True
    quoting = Tokenizer.from_str(json.dumps(state))
    quoting.encode_special_tokens = True
    return quoting


def encode(tokens: Tokens, text: str) -> list[int]:
    """Turn text into ids, none of them special."""
    return tokens.tokenizer.encode(text, add_special_tokens=False).ids


def quote(tokens: Tokens, text: str) -> list[int]:
    """Turn text that others wrote into ids, none of them an added token's."""
    return tokens.quoting.encode(text, add_special_tokens=False).ids


def decode(tokens: Tokens, ids: Iterable[int], specials: bool = False) -> str:
    """Turn ids into text; bytes that are not UTF-8 become U+FFFD.

    Special ids are left out unless `specials` asks to see them. Ids of a model's
    vocabulary that no token has also give U+FFFD.
    """
    text, run = [], []
    for number in map(int, ids):
        if 0 <= number < tokens.vocab_size:
            run.append(number)
            continue
        text += [
            tokens.tokenizer.decode(run, skip_special_tokens=not specials),
            "\ufffd",
        ]
        run = []
    text.append(tokens.tokenizer.decode(run, skip_special_tokens=not specials))
    return "".join(text)


class Heard(NamedTuple):
    """What incremental decoding remembers between two pieces."""

    ids: tuple[int, ...] = ()  # since a character last ended where an id does
    sent: int = 0  # characters of theirs that have been given out


def hear(
    tokens: Tokens, heard: Heard, ids: Iterable[int], last: bool = False
) -> tuple[Heard, str]:
    """Decode ids as they come; half a character is held back until the rest is there.

    Args:
        heard: `Heard()` at first, then what the last call returned.
        last: no more ids follow: what is held back comes out, as U+FFFD.

    Returns:
        What to remember, and the text that is certain now. All texts together are
        `decode` of all ids.
    """
    pending = (*heard.ids, *map(int, ids))
    text = decode(tokens, pending)
    # However many bytes of an unfinished character there are, they decode to one mark.
    open_ = text.endswith("\ufffd") and not last
    new = text[heard.sent : len(text) - open_]
    if open_:
        return Heard(pending, len(text) - open_), new
    return Heard(), new


def _turn(tokens, role, text, write=encode):
    # Role and text are encoded as one string, as the model's own template does.
    return [tokens.turn_id, *write(tokens, f"{role}\n{text}")]


def system(tokens: Tokens, text: str) -> list[int]:
    """Return the ids of a whole system turn."""
    return _turn(tokens, "system", text) + turn_end(tokens)


def user(tokens: Tokens, text: str) -> list[int]:
    """Return the ids of a whole user turn, where everything is quoted."""
    return _turn(tokens, "user", text, quote) + turn_end(tokens)


def assistant_start(tokens: Tokens, thinking: bool = True) -> list[int]:
    """Return the ids after which the policy writes.

    Args:
        tokens: the tokenizer.
        thinking: False writes the empty think block that a Qwen3 with its own
            thinking turned off expects there. Our prompts ask for thoughts in the
            response itself, so the default writes nothing.
    """
    return _turn(tokens, "assistant", "" if thinking else QUIET)


def turn_end(tokens: Tokens) -> list[int]:
    """Return the ids of `<|im_end|>` and the line break after it."""
    return [tokens.turn_end_id, *encode(tokens, "\n")]


def close(tokens: Tokens, response: Sequence[int]) -> list[int]:
    """Return what must follow a response before the next turn's ids.

    The policy writes `<|im_end|>` itself, so that is the line break alone; a response
    that was cut short gets the whole `turn_end`.
    """
    end = turn_end(tokens)
    return end[1:] if len(response) and response[-1] == tokens.turn_end_id else end


def bucket(length: int, buckets: Sequence[int]) -> int:
    """Return the smallest bucket that holds `length`.

    Raises:
        ValueError: none does.
    """
    for size in sorted(buckets):
        if length <= size:
            return size
    raise ValueError(
        f"{length} tokens do not fit: the largest bucket is {max(buckets)}"
    )


def pad(
    rows: Sequence[Sequence[int]], length: int, pad_id: int
) -> tuple[np.ndarray, np.ndarray]:
    """Pad rows on the right.

    Returns:
        tokens int32[B, length] and count int32[B], how many of each row are real.

    Raises:
        ValueError: a row is longer than `length`.
    """
    count = np.array([len(row) for row in rows], np.int32)
    if len(rows) and count.max() > length:
        worst = int(count.argmax())
        raise ValueError(f"row {worst} has {count[worst]} tokens, more than {length=}")
    tokens = np.full((len(rows), length), pad_id, np.int32)
    for out, row in zip(tokens, rows):
        out[: len(row)] = row
    return tokens, count
