"""What a step learns from a rollout."""

import numpy as np
import pytest

import runs
from evoharness_jax import learning, train_rl
from evoharness_jax.types import Turns


def turns(count):
    one = [np.full(3, i, np.int32) for i in range(count)]
    numbers = np.arange(count, dtype=np.int32)
    return Turns(one, one, one, one, numbers, numbers, numbers)


def config(sample):
    return runs.config("alfworld_rl", changes={"data.sample": sample})


def test_a_share_of_the_turns_is_drawn_anew_at_every_step():
    drawn = [learning.drawn(config(0.4), turns(50), step) for step in (0, 1, 1)]
    kept = [one.episode.tolist() for one in drawn]
    assert [len(k) for k in kept] == [20, 20, 20]
    assert kept[0] != kept[1] == kept[2]
    assert kept[0] == sorted(set(kept[0]))
    for row, episode in zip(drawn[0].tokens, kept[0]):
        assert row.tolist() == [episode] * 3


def test_all_of_them_or_at_least_one():
    every = turns(5)
    assert learning.drawn(config(1.0), every, 0) is every
    assert len(learning.drawn(config(0.01), every, 0).tokens) == 1


def test_a_share_that_is_none_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"data.sample must lie in \(0, 1\]: 0.0"):
        train_rl.run(config(0.0), str(tmp_path))
