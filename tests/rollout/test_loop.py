"""The loop on `counter`: prompts letter for letter, refusals, errors, ids, replay."""

import json

import jax
import numpy as np
import pytest

from episodes import (
    BANK,
    DOMAIN,
    NAMES,
    RULES,
    SCRIPT,
    TASKS,
    TEACHER,
    WORDS,
    play,
    prompts,
    say,
    tags,
)
from evoharness_jax.bpe.workspace import Rules
from evoharness_jax.experience import bank as bank_
from evoharness_jax.models import tokens as tokens_
from evoharness_jax.rollout import examples, loop, policies, record
from evoharness_jax.rollout import prompt as prompt_
from evoharness_jax.rollout.loop import CONTEXT_FULL, Setting
from evoharness_jax.rollout.prompt import Style
from evoharness_jax.types import NONE


def test_prompts_per_turn():
    played = play(SCRIPT, "plain+2")
    assert played.records[0]["opening"] == "goal: reach 2\nstart: counter: 0"
    shown = "can: dec, inc\nplan: [ ] reach 2\n"
    did = "did: commit [reach 2]"
    assert prompts(played) == [
        "can: dec, inc",
        f"{did}\nnow: counter: 0\n{shown}plan updated",
        f"{did}; recall [golf]\nnow: counter: 0\n{shown}recalled: golf: -1",
        f"{did}; recall [golf]; track [counter]\nnow: counter: 0\n{shown}"
        "hints: golf: -1\ntracked: counter: at 0",
        f"{did}; recall [golf]; track [counter]; inc\nnow: counter: 1\n{shown}"
        "hints: golf: -1",
        f"{did}; recall [golf]; track [counter]; inc; jump (refused)\n"
        f"now: counter: 1\n{shown}hints: golf: -1\nrefused: not a command here",
        f"{did}; recall [golf]; track [counter]; inc; jump (refused); "
        f"recall [nothing]\nnow: counter: 1\n{shown}hints: golf: -1\n"
        "recalled: nothing fits",
    ]
    assert tags(played) == ["ok", "ok", "ok", "ok", "refused", "ok", "ok"]
    assert played.records[0]["won"]


def test_history_and_commands_are_as_the_style_says():
    played = play(SCRIPT, "plain+2", commands="none", history=2)
    assert prompts(played)[0] == ""
    assert prompts(played)[3] == (
        "did: recall [golf]; track [counter]\nnow: counter: 0\nplan: [ ] reach 2\n"
        "hints: golf: -1\ntracked: counter: at 0"
    )


def test_prompts_append():
    """Each says only what is new since the last."""
    assert prompts(play(SCRIPT, "plain+2", regime="append")) == [
        "can: dec, inc",
        "plan updated\nplan: [ ] reach 2",
        "recalled: golf: -1",
        "tracked: counter: at 0",
        "now: counter: 1\ncan: dec, inc",
        "refused: not a command here",
        "recalled: nothing fits",
    ]


STUMBLE = policies.scripted(["inc", "track [x]", "inc", "inc"])


def test_prompts_env_only():
    played = play(STUMBLE, "plain+3", mode="env_only")
    assert played.records[0]["system"] == (
        "Make the counter show the number. Actions: inc, dec."
    )
    assert prompts(played) == [
        "can: dec, inc",
        "did: inc\nnow: counter: 1\ncan: dec, inc",
        "did: inc; track [x] (refused)\nnow: counter: 1\ncan: dec, inc\n"
        "refused: not a command here",
        "did: inc; track [x] (refused); inc\nnow: counter: 2\ncan: dec, inc",
    ]
    # Without tools the verb is an action that the environment does not know.
    assert played.records[0]["attempted"]["track"] == 0
    assert tags(played) == ["ok", "refused", "ok", "ok"]


def test_prompts_always_on():
    """echo is 3."""
    played = play(STUMBLE, "coded-echo", mode="always_on")
    stands = "plan: [ ] reach echo\nhints: echo: 3\nknown: counter: at"
    assert prompts(played) == [
        f"can: dec, inc\n{stands} 0",
        f"did: inc\nnow: counter: 1\ncan: dec, inc\n{stands} 1",
        f"did: inc; track [x] (refused)\nnow: counter: 1\ncan: dec, inc\n{stands} 1\n"
        "refused: not a command here",
        f"did: inc; track [x] (refused); inc\nnow: counter: 2\ncan: dec, inc\n"
        f"{stands} 2",
    ]
    assert played.records[0]["won"] and played.records[0]["uses"] == [4]


@pytest.mark.parametrize(
    "response, line, steps",
    [
        ("inc", "refused: write exactly one <action>...</action>", 1),
        ("<action></action>", "refused: write exactly one <action>...</action>", 1),
        (
            "<action>track</action><action>inc</action>",
            "refused: write exactly one <action>...</action>",
            0,
        ),
        ("<action>jump</action>", "refused: not a command here", 1),
        ("<action>commit</action>", "refused: this tool needs words in [ ]", 0),
        ("<action>note [x]</action>", "refused: this tool is switched off", 0),
        (
            "<action>track</action>",
            "refused: no tool calls are left, act on the environment",
            0,
        ),
    ],
)
def test_a_refusal_is_answered_by_a_line_that_names_its_rule(response, line, steps):
    spent = "no tool calls" in line
    rules = Rules(max_turns=3, experience=False, max_meta=0 if spent else -1)
    played = play(say(response), "plain+2", rules=rules)
    for prompt in prompts(played)[1:]:
        assert prompt.splitlines()[-1] == line
        assert "now: counter: 0" in prompt
    kept = played.records[0]
    assert (kept["num_turns"], kept["env_steps"]) == (3, 3 * steps)
    assert (kept["stop"], kept["invalid"]) == ("out of turns", 3)
    assert sum(kept["calls"].values()) == 0
    assert "ok" not in tags(played)


def test_two_blocks_play_the_first_and_are_counted_invalid():
    played = play(say("<action>inc</action><action>dec</action>"), "plain+2")
    kept = played.records[0]
    assert (kept["won"], kept["env_steps"], kept["invalid"]) == (True, 2, 2)
    assert prompts(played)[1] == "did: inc\nnow: counter: 1\ncan: dec, inc"


def test_a_module_that_is_off_is_not_advertised():
    played = play(SCRIPT, "plain+2", rules=RULES._replace(belief=False))
    assert "track" not in played.records[0]["system"]
    assert tags(played)[2] == "off"


def test_the_teacher_wins_what_its_turns_allow():
    played = play(TEACHER, "plain+1", "coded-golf", "plain-5")
    won = [r["won"] for r in played.records]
    assert won[:2] == [True, True]
    for kept in played.records:
        assert kept["calls"]["commit"] == kept["calls"]["recall"] == 1
        assert kept["invalid"] == kept["dropped"] == 0
        assert kept["num_turns"] == sum(kept["calls"].values()) + kept["env_steps"]


def test_chance_only_takes_commands_and_differs_by_episode():
    names = ["plain+4"] * 5
    played = play(policies.random_choice(0), *names)
    taken = [tuple(t["action"] for t in r["turns"]) for r in played.records]
    assert {word for actions in taken for word in actions} == {"inc", "dec"}
    assert len(set(taken)) > 1
    again = play(policies.random_choice(0), *names)
    assert again.records == played.records


def test_free_calls_leave_the_environment_its_steps():
    free = Rules(max_turns=2, charge=False)
    played = play(policies.scripted(["track", "recall", "inc"]), "plain+2", rules=free)
    kept = played.records[0]
    assert (kept["won"], kept["num_turns"], kept["env_steps"]) == (True, 4, 2)


def test_the_batch_size_changes_nothing():
    whole = play(TEACHER, *NAMES)
    assert [r["uid"] for r in whole.records] == [0, 1, 2, 3, 4]
    for batch in (2, 8):  # a short last batch, spare rows
        other = play(TEACHER, *NAMES, batch=batch)
        assert other.records == whole.records
        jax.tree.map(np.testing.assert_array_equal, other.episodes, whole.episodes)
        np.testing.assert_array_equal(other.leading, whole.leading)


def test_a_group_is_a_task_given_several_times():
    played = play(policies.random_choice(3), *["plain+2"] * 3)
    assert [r["task"] for r in played.records] == ["plain+2"] * 3


def test_one_program_serves_every_rollout_of_a_setting():
    play(TEACHER, *NAMES)
    before = loop.step_batch._cache_size()
    play(policies.random_choice(1), *NAMES[::-1], mode="always_on")
    assert loop.step_batch._cache_size() == before


def test_leading_words_are_numbered_over_the_rollout():
    played = play(say("<action>Track[x]</action>", "hm", "<action>inc</action>"),
                  "plain+1", "plain+2")  # fmt: skip
    assert played.leading[0].tolist() == [0, NONE, 1] + [NONE] * 6
    assert played.leading[1].tolist() == [0, NONE, 1, 1] + [NONE] * 5


@pytest.mark.parametrize(
    "policy, mode, regime",
    [
        (SCRIPT, "inline", "per_turn"),
        (policies.random_choice(2), "always_on", "per_turn"),
        (SCRIPT, "env_only", "append"),
        (say("no", "<action>inc</action>", "<action>Note [x]</action>"), "inline",
         "append"),
    ],
)  # fmt: skip
def test_a_record_replays_bit_for_bit(policy, mode, regime):
    played = play(policy, "plain+2", "coded-golf", mode=mode, regime=regime)
    for row, kept in enumerate(json.loads(json.dumps(played.records))):
        lexicon, final, every = record.replay(DOMAIN, BANK, WORDS, kept)
        want = record.pick(played.episodes, row)
        jax.tree.map(np.testing.assert_array_equal, final, want)
        assert record.digest(final) == kept["digest"] == record.digest(want)
        assert every.turn.tolist() == list(range(1, kept["num_turns"] + 1))


def test_a_record_needs_the_bank_it_was_played_with():
    kept = play(SCRIPT, "plain+2").records[0]
    bank, words = bank_.arrays((), 8)
    with pytest.raises(ValueError, match="beside a bank of 32 slots, not of 8"):
        record.replay(DOMAIN, bank, words, kept)


def test_records_are_handed_out_as_episodes_end():
    seen = []
    tasks = [TASKS["plain+5"], TASKS["plain+1"]]
    loop.rollout(
        policies.scripted(["inc"]),
        DOMAIN,
        BANK,
        WORDS,
        tasks,
        Setting(RULES),
        batch=5,
        first_uid=40,
        on_episode=lambda r: seen.append((r["uid"], r["won"])),
    )
    assert seen == [(41, True), (40, True)]


def test_a_row_that_is_free_begins_the_next_task():
    asked = []

    def act(requests):
        asked.append([(r.row, r.uid, r.turn) for r in requests])
        return [policies.Response("<action>inc</action>") for _ in requests]

    tasks = [TASKS[name] for name in ("plain+1", "plain+3", "plain+2")]
    played = loop.rollout(
        policies.Policy("inc", act), DOMAIN, BANK, WORDS, tasks, Setting(RULES), batch=2
    )
    assert [r["won"] for r in played.records] == [True] * 3
    # Episode 2 takes over row 0 while episode 1 goes on in row 1.
    assert asked == [
        [(0, 0, 0), (1, 1, 0)],
        [(1, 1, 1), (0, 2, 0)],
        [(1, 1, 2), (0, 2, 1)],
    ]


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match="at least one task"):
        play(SCRIPT, batch=1)
    with pytest.raises(ValueError, match="between 1 and the 2 episodes .* batch=3"):
        play(SCRIPT, "plain+1", batch=3, domain=DOMAIN._replace(capacity=2))
    for style in ({"mode": "x"}, {"regime": "x"}, {"commands": "x"}):
        with pytest.raises(ValueError, match=f"{next(iter(style))}: 'x', not one of"):
            play(SCRIPT, "plain+1", **style)


@pytest.fixture(scope="module")
def tokens():
    names = [name for name in TASKS if not name.startswith("coded-z")]
    texts = [t for r in play(TEACHER, *names).records for t in examples.texts(r)]
    return tokens_.wrap(tokens_.train(texts, 512))


def test_per_turn_ids_are_head_and_tail_and_the_head_is_paid_for_once(tokens):
    played = play(SCRIPT, "plain+2", tokens=tokens)
    kept, turns = played.records[0], played.turns
    head = prompt_.head_ids(tokens, kept["system"], kept["opening"])
    paid = 0
    assert turns.turn.tolist() == list(range(kept["num_turns"]))
    for t, turn in enumerate(kept["turns"]):
        tail = prompt_.tail_ids(tokens, Style(), turn["prompt"])
        response = prompt_.response_ids(tokens, turn["response"])
        assert turns.tokens[t].tolist() == head + tail + response
        mask = [False] * len(head + tail) + [True] * len(response)
        assert turns.response_mask[t].tolist() == mask
        assert turn["tokens"] == len(tail + response) + (0 if t else len(head))
        paid += turn["tokens"]
    assert kept["tokens"] == paid == played.episodes.tokens[0]


def test_append_ids_only_grow_and_each_is_paid_for_once(tokens):
    played = play(SCRIPT, "plain+2", "plain+3", tokens=tokens, regime="append")
    assert played.turns.episode.tolist() == [0, 1]
    for row, kept in zip(played.turns.tokens, played.records):
        assert len(row) == kept["tokens"]
        text = tokens_.decode(tokens, row, specials=True)
        for turn in kept["turns"]:
            place = text.index(f"{turn['prompt']}<|im_end|>")
            text = text[place:]
            assert f"<|im_start|>assistant\n{turn['response']}<|im_end|>" in text
    said = played.turns.tokens[0][played.turns.response_mask[0]]
    words = "".join(t["response"] + "<|im_end|>" for t in played.records[0]["turns"])
    assert tokens_.decode(tokens, said, specials=True) == words


@pytest.mark.parametrize("regime", prompt_.REGIMES)
@pytest.mark.parametrize("thinking", [True, False])
def test_examples_are_the_rows_of_the_loop(tokens, regime, thinking):
    played = play(TEACHER, *NAMES, tokens=tokens, regime=regime, thinking=thinking)
    rows = [(b, row) for b, kept in enumerate(played.records)
            for row in examples.rows(tokens, kept)]  # fmt: skip
    assert len(rows) == len(played.turns.tokens)
    for w, (episode, row) in enumerate(rows):
        assert episode == played.turns.episode[w]
        assert row.turn == played.turns.turn[w]
        np.testing.assert_array_equal(row.tokens, played.turns.tokens[w])
        np.testing.assert_array_equal(row.response_mask, played.turns.response_mask[w])
        assert not row.logp.any() and not row.raw_logp.any()


def noisy(sight):
    return "", "jump" if sight.episode.turn == 1 else DOMAIN.teacher(sight)[1]


def test_where_a_teacher_errs_on_purpose_the_label_is_learnt(tokens):
    erring = policies.teacher(noisy, DOMAIN.teacher)
    kept = play(erring, "plain+1", tokens=tokens).records[0]
    wrong = kept["turns"][1]
    assert wrong["response"] == "<action>jump</action>"
    assert wrong["label"] == "<action>recall</action>"
    assert all("label" not in t for t in kept["turns"][:1] + kept["turns"][2:])
    row = examples.rows(tokens, kept)[1]
    said = tokens_.decode(tokens, row.tokens[row.response_mask])
    assert said == "<action>recall</action>"
    kept = play(erring, "plain+1", tokens=tokens, regime="append").records[0]
    (row,) = examples.rows(tokens, kept)
    assert "jump" in tokens_.decode(tokens, row.tokens)
    assert "jump" not in tokens_.decode(tokens, row.tokens[row.response_mask])


def test_a_token_budget_ends_an_episode(tokens):
    whole = play(SCRIPT, "plain+2", tokens=tokens).records[0]
    budget = whole["turns"][0]["tokens"] + 1
    kept = play(SCRIPT, "plain+2", tokens=tokens, rules=RULES._replace(
        max_tokens=budget)).records[0]  # fmt: skip
    assert (kept["num_turns"], kept["stop"]) == (2, "out of tokens")


def test_an_episode_that_outgrows_the_context_ends_and_says_so(tokens):
    whole = play(SCRIPT, "plain+2", tokens=tokens, regime="append")
    setting = Setting(RULES, Style(regime="append"), 60, 8)
    played = loop.rollout(SCRIPT, DOMAIN, BANK, WORDS, [TASKS["plain+2"]] * 2, setting,
                          batch=5, tokens=tokens)  # fmt: skip
    for kept in played.records:
        assert (kept["error"], kept["stop"]) == (CONTEXT_FULL, "ended")
        assert 0 < kept["num_turns"] < whole.records[0]["num_turns"]
        assert "response" not in kept["turns"][-1]
        _, final, _ = record.replay(DOMAIN, BANK, WORDS, kept)
        assert record.digest(final) == kept["digest"]


def test_what_did_not_fit_the_context_is_neither_paid_for_nor_learnt(tokens):
    setting = Setting(RULES, Style(regime="append"), 160, 8)
    played = loop.rollout(SCRIPT, DOMAIN, BANK, WORDS, [TASKS["plain+2"]], setting,
                          batch=5, tokens=tokens)  # fmt: skip
    kept = played.records[0]
    (row,) = played.turns.tokens
    assert len(row) <= 160
    assert played.turns.response_mask[0][-1]  # it ends in a response
    assert kept["tokens"] == len(row)
    assert kept["invalid"] == 0 and "tokens" not in kept["turns"][-1]
