"""The tokenizer of Qwen3, built once a session."""

import functools

from evoharness_jax.models import tokens as tokens_
from evoharness_jax.models import vocabulary


@functools.cache
def tokens() -> tokens_.Tokens:
    return tokens_.wrap(vocabulary.qwen3())
