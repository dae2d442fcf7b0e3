import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evoharness_jax.train import packing
from evoharness_jax.types import Turns


def ragged(*sizes):
    """Rows with tokens 10 i + t and weights all 1."""
    return {
        "tokens": [10 * i + np.arange(n, dtype=np.int32) for i, n in enumerate(sizes)],
        "weight": [np.ones(n, np.float32) for n in sizes],
    }


def test_pack_by_hand():
    # Longest first: row 1 (4) opens packed row 0, row 0 (3) opens 1, row 2 (2) fits
    # into 0, row 3 (2) into 1; a third, empty one makes the count a multiple of 3.
    batch, index, fill, _ = packing.pack(ragged(3, 4, 2, 2), 6, multiple=3)
    np.testing.assert_array_equal(
        batch.tokens,
        [[10, 11, 12, 13, 20, 21], [0, 1, 2, 30, 31, 0], [0] * 6],
    )
    np.testing.assert_array_equal(
        batch.segment_ids, [[1, 1, 1, 1, 2, 2], [1, 1, 1, 2, 2, 0], [0] * 6]
    )
    np.testing.assert_array_equal(
        batch.positions, [[0, 1, 2, 3, 0, 1], [0, 1, 2, 0, 1, 0], [0] * 6]
    )
    np.testing.assert_array_equal(
        batch.weight, [[0, 1, 1, 1, 0, 1], [0, 1, 1, 0, 1, 0], [0] * 6]
    )
    np.testing.assert_array_equal(
        index, [[1, 0, 0, 0, 3], [0, 0, 0, 0, 4], [0, 4, 0, 4, 2], [1, 3, 0, 3, 2]]
    )
    assert fill == 11 / 18
    assert batch.tokens.dtype == np.int32 and batch.old_logp.dtype == np.float32


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 16), max_size=30),
    multiple=st.integers(1, 4),
    rows=st.integers(1, 3),
    accum=st.one_of(st.none(), st.integers(1, 3)),
)
def test_unpack_undoes_pack_and_batches_lose_nothing(sizes, multiple, rows, accum):
    given_rows = ragged(*sizes)
    values = [np.random.default_rng(i).normal(size=n) for i, n in enumerate(sizes)]
    given_rows["old_logp"] = [v.astype(np.float32) for v in values]
    batch, index, fill, _ = packing.pack(given_rows, 16, multiple=multiple)
    count = batch.tokens.shape[0]
    assert count % multiple == 0
    # first fit leaves no two packed rows half empty or emptier
    used = int(index[:, 0].max(initial=-1)) + 1
    assert used <= max(1, 2 * sum(sizes) / 16 + 1)
    assert fill == pytest.approx(sum(sizes) / max(1, count * 16))
    for name in ("tokens", "old_logp"):
        for got, row in zip(
            packing.unpack(getattr(batch, name), index), given_rows[name], strict=True
        ):
            np.testing.assert_array_equal(got, row)
    parts = packing.batches(batch, rows, accum)
    assert {part.tokens.shape[1:] for part in parts} == {(rows, 16)}
    assert len({part.tokens.shape for part in parts}) == 1
    if accum is None:
        assert len(parts) == 1
    total = sum(float(part.weight.sum()) for part in parts)
    assert total == float(batch.weight.sum()) == sum(sizes) - len(sizes)


def test_batches_deal_rows_out():
    batch = packing.pack(ragged(6, 5, 4, 3), 6).batch  # four packed rows, by length
    first, second = packing.batches(batch, rows=1, accum=2)
    np.testing.assert_array_equal(first.tokens[:, 0, 0], [0, 20])
    np.testing.assert_array_equal(second.tokens[:, 0, 0], [10, 30])


def test_what_does_not_fit_is_named():
    with pytest.raises(ValueError, match="row 1 has 7 tokens, not 1 to 6"):
        packing.pack(ragged(3, 7), 6)
    with pytest.raises(ValueError, match="row 0 has 0 tokens"):
        packing.pack(ragged(0), 6)
    with pytest.raises(ValueError, match="need 2 packed rows"):
        packing.pack(ragged(4, 4), 6, max_rows=1)
    with pytest.raises(ValueError, match="unknown fields"):
        packing.pack(ragged(3) | {"reward": [np.zeros(3)]}, 6)
    with pytest.raises(ValueError, match="advantage: row 0"):
        packing.pack(ragged(3) | {"advantage": [np.zeros(2)]}, 6)
    with pytest.raises(ValueError, match="weight: 1 rows of 2"):
        packing.pack(ragged(3, 3) | {"weight": [np.zeros(3)]}, 6)
    with pytest.raises(ValueError, match="does not fit"):
        packing.pad(packing.pack(ragged(4, 4), 6).batch, 1)


def test_turns_become_fields():
    turns = Turns(
        tokens=[np.array([5, 6, 7], np.int32), np.array([8, 9], np.int32)],
        response_mask=[np.array([0, 1, 1], bool), np.array([0, 1], bool)],
        logp=[np.array([0, -1, -2], np.float32), np.array([0, -3], np.float32)],
        raw_logp=[np.zeros(3, np.float32), np.zeros(2, np.float32)],
        episode=np.array([1, 0], np.int32),
        turn=np.array([0, 0], np.int32),
        policy_version=np.zeros(2, np.int32),
    )
    fields = packing.from_turns(turns, np.array([0.5, -2.0]))
    batch = packing.pack(fields, 5).batch
    np.testing.assert_array_equal(batch.weight, [[0, 1, 1, 0, 1]])
    np.testing.assert_array_equal(batch.advantage, [[0, -2, -2, 0, 0.5]])
    np.testing.assert_array_equal(batch.sampler_logp, [[0, -1, -2, 0, -3]])


def test_an_advantage_by_turn_reaches_its_row():
    turns = alike()  # rows: turn 0 of episode 0, of 1, turns 1 and 2 of 0
    table = np.array([[0.5, -1, 2], [4, 9, 9]], np.float32)
    advantage = packing.from_turns(turns, table)["advantage"]
    expected = [[0.5], [4, 4], [-1, -1], [2]]
    for row, mask, want in zip(advantage, turns.response_mask, expected, strict=True):
        np.testing.assert_array_equal(row[mask], want)
        assert not row[~mask].any()
    with pytest.raises(ValueError, match=r"must be \[B\] or \[B, T\]: \(1, 2, 3\)"):
        packing.from_turns(turns, table[None])


def test_sequences_can_weigh_alike():
    turns = alike()
    fields = packing.from_turns(turns, np.array([2.0, -1.0]), "sequences")
    assert [row.sum() for row in fields["weight"]] == [1, 1, 1, 1]
    np.testing.assert_array_equal(fields["weight"][1], [0, 0.5, 0.5])
    np.testing.assert_array_equal(fields["advantage"][1], [0, -1, -1])


@pytest.mark.parametrize("rows, accum", [(1, 2), (3, 1), (4, None)])
def test_gather_undoes_batches(rows, accum):
    batch = packing.pack(ragged(6, 5, 4, 3, 6), 6).batch
    parts = packing.batches(batch, rows, accum)
    whole = packing.gather([part.tokens for part in parts])
    np.testing.assert_array_equal(whole[: len(batch.tokens)], batch.tokens)
    assert not whole[len(batch.tokens) :].any()


def alike():
    """Three turns of an episode that begin with 1 2 3 4, and a row of its own."""
    tokens = [[1, 2, 3, 4, 5, 6], [9, 8, 7], [1, 2, 3, 4, 5, 7, 8], [1, 2, 3, 4, 6, 9]]
    masks = [[0, 0, 0, 0, 0, 1], [0, 1, 1], [0, 0, 0, 0, 0, 1, 1], [0, 0, 0, 0, 0, 1]]
    return Turns(
        tokens=[np.array(row, np.int32) for row in tokens],
        response_mask=[np.array(mask, bool) for mask in masks],
        logp=[-np.arange(len(row), dtype=np.float32) for row in tokens],
        raw_logp=[np.zeros(len(row), np.float32) for row in tokens],
        episode=np.array([0, 1, 0, 0], np.int32),
        turn=np.array([0, 0, 1, 2], np.int32),
        policy_version=np.zeros(4, np.int32),
    )


def test_a_shared_head_is_written_once_by_hand():
    turns = alike()
    heads = packing.shared_heads(turns)
    assert heads.size.tolist() == [4, 0, 4, 4]
    fields = packing.from_turns(turns)
    # A head of 4 leaves room for tails of 3 and 2; the third tail repeats the head.
    packed = packing.pack(fields, 9, heads=heads)
    np.testing.assert_array_equal(
        packed.batch.tokens, [[1, 2, 3, 4, 5, 6, 5, 7, 8], [1, 2, 3, 4, 6, 9, 9, 8, 7]]
    )
    np.testing.assert_array_equal(
        packed.batch.segment_ids,
        [[1, 1, 1, 1, 2, 2, 3, 3, 3], [1, 1, 1, 1, 2, 2, 3, 3, 3]],
    )
    np.testing.assert_array_equal(
        packed.batch.parents,
        [[1, 1, 1, 1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1, 3, 3, 3]],
    )
    np.testing.assert_array_equal(
        packed.batch.positions,
        [[0, 1, 2, 3, 4, 5, 4, 5, 6], [0, 1, 2, 3, 4, 5, 0, 1, 2]],
    )
    np.testing.assert_array_equal(
        packed.batch.weight,
        [[0, 0, 0, 0, 0, 1, 0, 1, 1], [0, 0, 0, 0, 0, 1, 0, 1, 1]],
    )
    assert packed.fill == 1.0
    assert packed.reuse == 22 / 18
    for got, row in zip(
        packing.unpack(packed.batch.tokens, packed.index), turns.tokens
    ):
        np.testing.assert_array_equal(got, row)


def test_a_head_ends_before_the_token_that_the_first_response_follows():
    turns = alike()._replace(
        tokens=[np.array(row, np.int32) for row in ([1, 2, 3], [1, 2, 3])],
        response_mask=[np.array([0, 0, 1], bool)] * 2,
        episode=np.zeros(2, np.int32),
    )
    assert packing.shared_heads(turns).size.tolist() == [1, 1]


def test_heads_that_are_not_shared_are_named():
    turns = alike()
    fields, heads = packing.from_turns(turns), packing.shared_heads(turns)
    words = {"tokens": fields["tokens"]}
    with pytest.raises(ValueError, match="row 3 does not begin as row 0 does: tokens"):
        packing.pack(words, 9, heads=heads._replace(size=np.array([5, 0, 5, 5])))
    with pytest.raises(ValueError, match="row 0 has nothing behind its head"):
        packing.pack(words, 9, heads=heads._replace(size=np.array([6, 0, 4, 4])))
    fields["weight"][2][1] = 0.5
    with pytest.raises(ValueError, match="row 2 does not begin as row 0 does: weight"):
        packing.pack(fields, 9, heads=heads)


@settings(max_examples=60, deadline=None)
@given(
    episodes=st.lists(
        st.tuples(st.integers(0, 6), st.lists(st.integers(3, 8), max_size=6)),
        max_size=8,
    ),
)
def test_unpack_undoes_shared_heads(episodes):
    tokens, masks, owner = [], [], []
    for number, (head, tails) in enumerate(episodes):
        for turn, size in enumerate(tails):
            tail = 1000 * number + 20 * turn + np.arange(size)
            tokens.append(np.concatenate((np.arange(head), tail)).astype(np.int32))
            masks.append(np.arange(head + size) >= head + size - 1)
            owner.append(number)
    turns = Turns(
        tokens=tokens,
        response_mask=masks,
        logp=[np.zeros(len(row), np.float32) for row in tokens],
        raw_logp=[np.zeros(len(row), np.float32) for row in tokens],
        episode=np.array(owner, np.int32),
        turn=np.zeros(len(tokens), np.int32),
        policy_version=np.zeros(len(tokens), np.int32),
    )
    heads = packing.shared_heads(turns)
    packed = packing.pack(packing.from_turns(turns), 16, heads=heads)
    for got, row in zip(
        packing.unpack(packed.batch.tokens, packed.index), tokens, strict=True
    ):
        np.testing.assert_array_equal(got, row)
    assert packed.batch.weight.sum() == len(tokens)
    assert packed.reuse >= 1.0
