"""Episodes whose environment breaks: they end alone, are counted, and leak nothing."""

import pytest

from episodes import BANK, DOMAIN, NAMES, SCRIPT, TEACHER, WORDS, play
from evoharness_jax.envs import counter
from evoharness_jax.rollout import record


class Broken:
    """A counter whose calls go wrong as told, and which knows what is open."""

    def __init__(self, step=None, reset=None):
        self.fail_step, self.fail_reset, self.open, self.closed = step, reset, 0, 0

    def domain(self, **fields):
        return DOMAIN._replace(
            reset=self.reset, step=self.step, close=self.close, **fields
        )

    def reset(self, task):
        self.open += 1
        state, seen = counter.reset(task)
        return state, self.fail_reset(task, seen) if self.fail_reset else seen

    def step(self, state, action):
        after, seen = counter.step(state, action)
        return after, self.fail_step(state, seen) if self.fail_step else seen

    def close(self, state):
        self.open -= 1
        self.closed += 1


def lost(seen):
    over = {"done": True, "won": False, "score": 0.0}
    return seen._replace(text="", valid=False, info={"error": "gone"}, **over)


def test_every_state_is_closed_once():
    world = Broken()
    play(TEACHER, *NAMES, domain=world.domain(), batch=5)
    assert (world.open, world.closed) == (0, 5)


def test_an_exception_of_the_environment_stops_the_rollout_and_closes_states():
    def fail(state, seen):
        if state.target == -2:
            raise RuntimeError("the simulator is confused")
        return seen

    world = Broken(step=fail)
    with pytest.raises(RuntimeError, match="confused"):
        play(TEACHER, *NAMES, domain=world.domain())
    assert (world.open, world.closed) == (0, 5)


@pytest.mark.parametrize("workers", [1, 3])
def test_an_error_ends_its_episode_only(workers):
    def fail(state, seen):
        return lost(seen) if (state.target, state.value) == (-2, -1) else seen

    world = Broken(step=fail)
    played = play(TEACHER, *NAMES, domain=world.domain(workers=workers))
    whole = play(TEACHER, *NAMES)
    for row, (kept, want) in enumerate(zip(played.records, whole.records)):
        if row != 2:
            assert kept == want
    broken = played.records[2]
    assert (broken["error"], broken["won"], broken["stop"]) == ("gone", False, "ended")
    assert broken["turns"][-1]["observation"]["info"] == {"error": "gone"}
    assert world.open == 0
    _, final, _ = record.replay(DOMAIN, BANK, WORDS, broken)
    assert record.digest(final) == broken["digest"]


def test_a_game_that_would_not_start_is_over_at_once():
    world = Broken(reset=lambda t, seen: lost(seen) if t.id == "plain-2" else seen)
    played = play(TEACHER, *NAMES, domain=world.domain(), batch=5)
    whole = play(TEACHER, *NAMES)
    broken = played.records[2]
    assert (broken["error"], broken["num_turns"]) == ("gone", 0)
    assert (broken["won"], broken["stop"], broken["turns"]) == (False, "ended", [])
    assert played.records[:2] + played.records[3:] == (
        whole.records[:2] + whole.records[3:]
    )
    assert (world.open, world.closed) == (0, 5)
    _, final, every = record.replay(DOMAIN, BANK, WORDS, broken)
    assert record.digest(final) == broken["digest"]
    assert every.turn.shape == (0,)


def test_a_reset_that_raises_closes_what_was_opened():
    opened = []

    def reset(task):
        if len(opened) == 2:
            raise RuntimeError("no more")
        opened.append(task.id)
        return DOMAIN.reset(task)

    closed = []
    domain = DOMAIN._replace(reset=reset, close=closed.append)
    with pytest.raises(RuntimeError, match="no more"):
        play(SCRIPT, "plain+1", "plain+2", "plain+3", domain=domain)
    assert len(opened) == len(closed) == 2


def test_an_error_ends_the_episode_whether_the_environment_says_done_or_not():
    def step(state, action):
        state, seen = DOMAIN.step(state, action)
        return state, seen._replace(info={"error": "it broke"})

    played = play(TEACHER, "plain+3", domain=DOMAIN._replace(step=step))
    kept = played.records[0]
    assert (kept["error"], kept["stop"], kept["invalid"]) == ("it broke", "ended", 0)
    _, final, _ = record.replay(DOMAIN, BANK, WORDS, kept)
    assert record.digest(final) == kept["digest"]
