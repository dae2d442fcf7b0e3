"""Tokenizer, template and buckets, on literal expectations."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer

from evoharness_jax.models import tokens as tk

TEXTS = [
    "You are in a kitchen. On the countertop 2, you see a mug 1.",
    "<think>The mug is on the countertop.</think><action>go to countertop 2</action>",
    "go to countertop 12\ngo to fridge 1\ntake mug 1 from countertop 2",
] * 5


@pytest.fixture(scope="module")
def tokens():
    return tk.wrap(tk.train(TEXTS, 512))


def pieces(tokens, text):
    """The text of every id, one by one; a token of half a character is not in TEXTS."""
    return [tk.decode(tokens, [i], specials=True) for i in tk.encode(tokens, text)]


@pytest.mark.parametrize(
    "text, want",
    [
        ("go to countertop 2", ["go", " to", " countertop", " 2"]),
        (" mug 12", [" mug", " 1", "2"]),
        ("take mug 21", ["take", " mug", " 2", "1"]),
        ("<action>go</action>", ["<action>", "go", "</action>"]),
        (" mug 1.\ngo", [" mug", " 1", ".", "\n", "go"]),
        ("user\nYou", ["user", "\n", "You"]),
        ("", []),
    ],
)
def test_pieces(tokens, text, want):
    assert pieces(tokens, text) == want


def test_ids(tokens):
    assert (tokens.pad_id, tokens.turn_id, tokens.turn_end_id) == (0, 1, 2)
    assert tokens.stop_ids == (2, 0)
    assert 259 < tokens.vocab_size <= 512
    assert tk.encode(tokens, "!") == [3]  # the first byte after the specials


def test_training_is_deterministic():
    assert tk.train(TEXTS, 400).to_str() == tk.train(iter(TEXTS), 400).to_str()


def test_train_needs_room_for_bytes():
    assert tk.train(TEXTS, 259).get_vocab_size() == 259
    with pytest.raises(ValueError, match="258 < 259"):
        tk.train(TEXTS, 258)


@pytest.mark.parametrize("special", tk.SPECIALS)
def test_text_never_yields_specials(tokens, special):
    text = f"take mug 1{special}\n{special}go"
    ids = tk.encode(tokens, text)
    assert not {0, 1, 2} & set(ids)
    assert tk.decode(tokens, ids) == text
    # In a turn only the glue is special, whatever the text says.
    turn = tk.user(tokens, text)
    assert [i for i in turn if i < 3] == [1, 2]


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet=st.characters(exclude_categories=["Cs"])))
def test_any_text_comes_back(tokens, text):
    ids = tk.encode(tokens, text)
    assert tk.decode(tokens, ids) == text
    assert all(3 <= i < tokens.vocab_size for i in ids)


def test_decode_of_what_no_text_gives(tokens):
    half = tk.encode(tokens, "é")[:1]
    assert tk.decode(tokens, half) == "\ufffd"
    go = tk.encode(tokens, "go")
    assert tk.decode(tokens, [*go, 511_000, *go]) == "go\ufffdgo"
    assert tk.decode(tokens, [1, *go, 2]) == "go"
    assert tk.decode(tokens, [1, *go, 2], specials=True) == "<|im_start|>go<|im_end|>"
    assert tk.decode(tokens, []) == ""
    assert tk.decode(tokens, np.array(go, np.int32)) == "go"


def test_template(tokens):
    ids = tk.system(tokens, "Be brief.") + tk.user(tokens, "You see a mug 1.")
    ids += tk.assistant_start(tokens)
    assert tk.decode(tokens, ids, specials=True) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n"
        "<|im_start|>user\nYou see a mug 1.<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    quiet = tk.assistant_start(tokens, thinking=False)
    assert tk.decode(tokens, quiet) == "assistant\n<think>\n\n</think>\n\n"


def test_an_episode_only_grows(tokens):
    newline = tk.encode(tokens, "\n")
    assert tk.turn_end(tokens) == [2, *newline]
    response = [*tk.encode(tokens, "go"), 2]
    assert tk.close(tokens, response) == newline
    assert tk.close(tokens, response[:-1]) == [2, *newline]
    assert tk.close(tokens, []) == [2, *newline]
    episode = tk.assistant_start(tokens) + response
    episode += tk.close(tokens, response) + tk.user(tokens, "Done.")
    assert tk.decode(tokens, episode, specials=True) == (
        "<|im_start|>assistant\ngo<|im_end|>\n<|im_start|>user\nDone.<|im_end|>\n"
    )


def test_save_and_load(tokens, tmp_path):
    tk.save(tokens, tmp_path)
    loaded = tk.load(tmp_path)
    assert loaded.tokenizer.to_str() == tokens.tokenizer.to_str()
    assert (loaded.vocab_size, loaded.stop_ids) == (tokens.vocab_size, (2, 0))
    assert not {0, 1, 2} & set(tk.encode(loaded, "<|im_end|><|endoftext|>"))


def test_transformers_reads_the_folder(tokens, tmp_path):
    transformers = pytest.importorskip("transformers")
    tk.save(tokens, tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path, local_files_only=True)
    text = "go to countertop 12\n<think>é</think>"
    assert theirs.encode(text, add_special_tokens=False) == tk.encode(tokens, text)
    assert (theirs.pad_token_id, theirs.eos_token_id) == (0, 2)
    assert theirs.decode(tk.encode(tokens, text)) == text


def test_added_words_that_are_not_special_stay_whole(tmp_path):
    """Qwen3's own <think> is an added token but not a special one."""
    tokenizer = tk.train(TEXTS, 259)
    tokenizer.add_tokens([AddedToken("<think>", normalized=False)])
    tk.save(tokenizer, tmp_path)
    tokens = tk.load(tmp_path)
    assert tokens.vocab_size == 260
    assert tk.encode(tokens, "<think>") == [259]
    assert tk.decode(tokens, [259]) == "<think>"


def test_load_refuses(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        tk.load(tmp_path / "nowhere")
    tk.save(tk.train(TEXTS, 300, specials=("<|endoftext|>", "<|im_start|>")), tmp_path)
    with pytest.raises(ValueError, match=r"no <\|im_end\|>"):
        tk.load(tmp_path)
    tokenizer = tk.train(TEXTS, 300, specials=tk.SPECIALS[:2])
    tokenizer.add_tokens([AddedToken("<|im_end|>", normalized=False)])
    with pytest.raises(ValueError, match=r"text can write <\|im_end\|>"):
        tk.wrap(tokenizer)


def test_wrap_leaves_its_argument_alone():
    tokenizer = tk.train(TEXTS, 300)
    tk.wrap(tokenizer)
    assert isinstance(tokenizer, Tokenizer) and not tokenizer.encode_special_tokens


@pytest.mark.parametrize("length, want", [(0, 16), (16, 16), (17, 64), (64, 64)])
def test_bucket(length, want):
    assert tk.bucket(length, (64, 16)) == want


def test_bucket_too_small():
    with pytest.raises(ValueError, match="65 tokens .*64"):
        tk.bucket(65, (16, 64))


def test_pad():
    rows, count = tk.pad([[5, 6, 7], [], [8]], 4, 0)
    assert rows.tolist() == [[5, 6, 7, 0], [0, 0, 0, 0], [8, 0, 0, 0]]
    assert count.tolist() == [3, 0, 1]
    assert rows.dtype == count.dtype == np.int32
    assert tk.pad([], 4, 0)[0].shape == (0, 4)
    with pytest.raises(ValueError, match="row 1 has 5 tokens, more than length=4"):
        tk.pad([[1], [1] * 5], 4, 0)
