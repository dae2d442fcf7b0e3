"""The engine on a small random model: what it keeps, what it draws, how it scores."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evoharness_jax.models import qwen3
from evoharness_jax.rollout import slots
from evoharness_jax.rollout.engine import Engine
from evoharness_jax.rollout.sampling import Sampling
from evoharness_jax.rollout.slots import Asked, Rows

CONFIG = qwen3.CONFIGS["counter-tiny"]
STOP = 2
KEY = jax.random.key(7)
ENGINE = Engine(CONFIG, 3, 96, 8, Sampling(), (STOP,))
GREEDY = Engine(CONFIG, 3, 96, 8, Sampling(temperature=0.0), (STOP,))


logprobs = jax.jit(qwen3.logprobs, static_argnums=1)
forward = jax.jit(qwen3.forward, static_argnums=1)


def padded(ids):
    """A batch of one; what stands behind the last id is not looked at."""
    return jnp.array([ids + [0] * (ENGINE.context - len(ids))])


@pytest.fixture(scope="module")
def params():
    drawn = jax.jit(qwen3.init, static_argnums=1)(jax.random.key(0), CONFIG)
    # Sharper than init draws them, so that a wrong context changes what is said.
    return jax.tree.map(lambda x: x * 6 if x.ndim > 2 else x * 3, drawn)


def prompt(seed, length):
    ids = jax.random.randint(jax.random.key(seed), (length,), 3, CONFIG.vocab_size)
    return ids.tolist()


def answer(engine, params, prompts, episodes=None, rows=None):
    episodes = episodes or {row: (row, 0) for row in prompts}
    rows = rows or Rows(engine)
    asked = [Asked(row, ids, *episodes[row]) for row, ids in prompts.items()]
    return slots.answer(rows, params, KEY, asked)


def assert_same(one, two, atol=1e-5):
    assert one.ids == two.ids
    np.testing.assert_allclose(one.logp, two.logp, atol=atol)
    np.testing.assert_allclose(one.raw_logp, two.raw_logp, atol=atol)


def test_an_answer_has_ids_and_as_many_scores(params):
    said = answer(ENGINE, params, {0: prompt(1, 20), 2: prompt(2, 5)})
    assert set(said) == {0, 2}
    for one in said.values():
        assert 1 <= len(one.ids) <= ENGINE.response
        assert len(one.logp) == len(one.raw_logp) == len(one.ids)
        assert one.logp.dtype == np.float32 and (one.logp < 0).all()
        np.testing.assert_allclose(one.logp, one.raw_logp, atol=1e-5)  # none left out


def test_scores_are_those_of_the_model(params):
    prompts = {0: prompt(1, 20), 1: prompt(2, 33), 2: prompt(3, 70)}
    for row, said in answer(ENGINE, params, prompts).items():
        ids, n = prompts[row] + said.ids, len(prompts[row])
        want = logprobs(params, CONFIG, padded(ids))[0][0, n : len(ids)]
        np.testing.assert_allclose(said.raw_logp, want, atol=1e-4)


def test_greedy_is_the_argmax_of_the_whole_text(params):
    prompts = {0: prompt(1, 20), 1: prompt(2, 33)}
    for row, said in answer(GREEDY, params, prompts).items():
        ids, n = prompts[row] + said.ids, len(prompts[row])
        logits = forward(params, CONFIG, padded(ids))[0, n - 1 : len(ids) - 1]
        assert said.ids == logits.argmax(axis=-1).tolist()
        assert not said.logp.any() and (said.raw_logp < 0).all()


def test_a_kept_prefix_gives_the_same_as_from_scratch(params):
    """Turns of an appended text, then a fresh tail behind the same head."""
    rows, head = Rows(ENGINE), prompt(1, 30)
    text = head
    for turn in range(3):
        episodes = {1: (4, turn)}
        kept = answer(ENGINE, params, {1: text}, episodes, rows)
        fresh = answer(ENGINE, params, {1: text}, episodes)
        assert_same(kept[1], fresh[1])
        text = text + kept[1].ids + prompt(10 + turn, 4)
    for turn in range(3, 6):
        episodes, text = {1: (4, turn)}, head + prompt(turn, 9)
        kept = answer(ENGINE, params, {1: text}, episodes, rows)
        assert_same(kept[1], answer(ENGINE, params, {1: text}, episodes)[1])


def test_a_kept_prefix_is_not_computed_again(params):
    rows, head = Rows(ENGINE), prompt(1, 60)
    answer(GREEDY, params, {0: head + [9]}, rows=rows)
    first = rows.computed
    assert first >= 3 * 64
    answer(GREEDY, params, {0: head + [11, 12]}, rows=rows)
    # One block of 16 for what is new, and at most 8 tokens of response.
    assert rows.computed - first <= 3 * (16 + 8)
    rows.forget()
    answer(GREEDY, params, {0: head + [11, 12]}, rows=rows)
    assert rows.computed - first >= 3 * 64


def test_a_shorter_prompt_than_the_last(params):
    rows, text = Rows(ENGINE), prompt(1, 40)
    answer(ENGINE, params, {0: text}, rows=rows)
    for cut in (text[:11], text[:1], text):
        kept = answer(ENGINE, params, {0: cut}, rows=rows)
        assert_same(kept[0], answer(ENGINE, params, {0: cut})[0])


def test_an_answer_depends_on_nothing_but_its_prompt_and_name(params):
    """Not on the row, the batch mates, their order, or what the row held before."""
    a, b, c = prompt(1, 20), prompt(2, 33), prompt(3, 7)
    names = {0: (5, 2), 1: (6, 0), 2: (7, 1)}
    alone = answer(ENGINE, params, {0: a}, {0: (5, 2)})[0]
    together = answer(ENGINE, params, {0: a, 1: b, 2: c}, names)
    assert_same(together[0], alone)
    names = {2: (5, 2), 0: (7, 1), 1: (6, 0)}
    moved = answer(ENGINE, params, {2: a, 0: c, 1: b}, names)
    assert_same(moved[2], alone)
    assert_same(moved[1], together[1])
    assert_same(moved[0], together[2])
    used = Rows(ENGINE)
    answer(ENGINE, params, {0: c, 1: a}, rows=used)
    assert_same(answer(ENGINE, params, {0: a}, {0: (5, 2)}, used)[0], alone)


def test_another_turn_or_episode_draws_otherwise(params):
    text = prompt(1, 20)
    drawn = [
        answer(ENGINE, params, {0: text}, {0: name})[0].ids
        for name in [(0, 0), (0, 1), (1, 0)]
    ]
    assert drawn[0] != drawn[1] and drawn[0] != drawn[2]


def test_rows_are_as_long_as_they_need_to_be(params):
    """They grow and shrink between answers, up to the context and no further."""
    long = Engine(CONFIG, 1, 400, 8, Sampling(temperature=0.0), (STOP,))
    rows, lengths = Rows(long), []
    for n in (100, 392, 300, 100):
        said = answer(long, params, {0: prompt(1, 400)[:n]}, rows=rows)[0]
        logp, _ = logprobs(params, CONFIG, jnp.array([prompt(1, 400)[:n] + said.ids]))
        np.testing.assert_allclose(said.raw_logp, logp[0, n:], atol=1e-4)
        lengths.append(rows.cache.k.shape[3])
    assert lengths == [256, 400, 384, 256]


def test_a_waiting_row_keeps_what_it_holds(params):
    rows, a, b = Rows(ENGINE), prompt(1, 20), prompt(2, 33)
    answer(ENGINE, params, {0: a, 1: b}, rows=rows)
    held = list(rows.held[0])
    answer(ENGINE, params, {1: prompt(3, 50)}, rows=rows)
    assert rows.held[0] == held
    kept = answer(ENGINE, params, {0: held + [9]}, {0: (0, 1)}, rows)
    assert_same(kept[0], answer(ENGINE, params, {0: held + [9]}, {0: (0, 1)})[0])


def test_a_stop_id_ends_a_response_and_is_part_of_it(params):
    text = prompt(1, 20)
    said = answer(GREEDY, params, {0: text})[0]
    assert STOP not in said.ids and len(said.ids) == GREEDY.response
    stop = said.ids[2]
    first = said.ids.index(stop)
    cut = GREEDY._replace(stop_ids=(STOP, stop))
    rows = Rows(cut)
    short = answer(cut, params, {0: text}, rows=rows)[0]
    assert short.ids == said.ids[: first + 1]
    assert rows.held[0] == text + short.ids[:-1]
    # And what goes on behind it does so as from scratch.
    more = {0: text + short.ids + prompt(5, 6)}
    kept = answer(cut, params, more, rows=rows)[0]
    assert_same(kept, answer(cut, params, more)[0])


def test_a_full_context(params):
    """The longest prompt there may be, its response to the very end."""
    text = prompt(1, ENGINE.context - ENGINE.response)
    rows = Rows(ENGINE)
    said = answer(ENGINE, params, {0: text}, rows=rows)[0]
    logp, _ = logprobs(params, CONFIG, padded(text + said.ids))
    np.testing.assert_allclose(said.raw_logp, logp[0, len(text) :], atol=1e-4)


def test_a_prompt_that_leaves_no_room_is_refused_with_its_numbers(params):
    text = prompt(1, 89)
    with pytest.raises(ValueError, match="prompt of 89 .* of 8 .* context of 96"):
        answer(ENGINE, params, {0: text})
