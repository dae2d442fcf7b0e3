"""Finding games: what is played, what is skipped and why, and what errors say."""

import json

import pytest

from evoharness_jax.envs.alfworld import data

GAME = {"pddl_domain": "d", "grammar": "g", "pddl_problem": "p", "solvable": True}
PLAIN = "pick_and_place_simple-Mug-None-Desk-1"


def put(root, split, task, trial="trial_1", game=GAME, trajectory="{}"):
    """Write one trial folder; a game that is text is written as it is."""
    folder = root / "json_2.1.1" / split / task / trial
    folder.mkdir(parents=True)
    if game is not None:
        text = game if isinstance(game, str) else json.dumps(game)
        (folder / data.GAME).write_text(text)
    if trajectory is not None:
        (folder / data.TRAJECTORY).write_text(trajectory)
    return folder / data.GAME


def test_games_are_sorted_by_id_and_know_their_type(tmp_path):
    put(tmp_path, "train", "look_at_obj_in_light-Book-None-DeskLamp-2", "trial_2")
    put(tmp_path, "train", "look_at_obj_in_light-Book-None-DeskLamp-2", "trial_1")
    last = put(tmp_path, "train", "pick_two_obj_and_place-Pen-None-Desk-3")
    found = data.games("train", str(tmp_path))
    assert [task.id for task in found] == [
        "look_at_obj_in_light-Book-None-DeskLamp-2/trial_1",
        "look_at_obj_in_light-Book-None-DeskLamp-2/trial_2",
        "pick_two_obj_and_place-Pen-None-Desk-3/trial_1",
    ]
    assert found[2].type == "pick_two_obj_and_place"
    assert (found[2].split, found[2].spec) == ("train", str(last))


def test_the_trajectory_names_the_type_where_the_folder_does_not(tmp_path):
    trajectory = json.dumps({"task_type": "pick_two_obj_and_place"})
    put(tmp_path, "train", "home-7", trajectory=trajectory)
    assert data.games("train", str(tmp_path))[0].type == "pick_two_obj_and_place"


def test_what_is_not_played_is_counted_by_reason(tmp_path):
    put(tmp_path, "train", PLAIN, "good")
    put(tmp_path, "train", PLAIN, "unsolvable", {**GAME, "solvable": False})
    unsaid = {key: value for key, value in GAME.items() if key != "solvable"}
    put(tmp_path, "train", PLAIN, "unsaid", unsaid)
    put(tmp_path, "train", PLAIN, "cut", json.dumps(GAME)[:-9])
    put(tmp_path, "train", PLAIN, "gameless", None)
    put(tmp_path, "train", PLAIN, "trackless", trajectory=None)
    put(tmp_path, "train", "pick_and_place_with_movable_recep-Pen-Cup-Desk-1")
    put(tmp_path, "train", "pick_and_place_simple-AppleSliced-None-Desk-1")
    put(tmp_path, "train", "juggle-Mug-None-Desk-1")
    found = data.scan("train", str(tmp_path))
    assert [task.id for task in found.tasks] == [f"{PLAIN}/good"]
    assert found.skipped == {
        "unsolvable": 1,
        "without `solvable`": 1,
        "broken": 1,
        "without game.tw-pddl": 1,
        "without traj_data.json": 1,
        "with a movable receptacle": 1,
        "with a sliced object": 1,
        "of another task type": 1,
    }


def test_a_missing_variable_is_named(monkeypatch):
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    with pytest.raises(ValueError, match="set ALFWORLD_DATA"):
        data.games("train")


def test_a_missing_folder_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(ValueError, match="nowhere is not a folder"):
        data.games("train")


def test_several_folders_are_one(tmp_path):
    homes = "pick_and_place_simple-Pen-None-Desk-301"
    put(tmp_path / "real", "train", PLAIN)
    put(tmp_path / "real", "valid_seen", PLAIN)
    put(tmp_path / "made", "train", homes)
    twice = put(tmp_path / "made", "train", PLAIN)
    both = f"{tmp_path / 'real'}:{tmp_path / 'made'}"
    found = data.scan("train", both)
    assert [task.id for task in found.tasks] == [f"{PLAIN}/trial_1", f"{homes}/trial_1"]
    assert found.tasks[0].spec != str(twice)
    assert dict(found.skipped) == {"named as one of an earlier folder": 1}
    assert len(data.games("valid_seen", both)) == 1
    with pytest.raises(ValueError, match="'test' in .*real:.*made, there are: train"):
        data.games("test", both)
    with pytest.raises(ValueError, match="nowhere is not a folder"):
        data.games("train", f"{tmp_path / 'real'}:{tmp_path / 'nowhere'}")


def test_an_unknown_split_lists_those_there(tmp_path):
    put(tmp_path, "train", PLAIN)
    put(tmp_path, "valid_seen", PLAIN)
    with pytest.raises(ValueError, match="'test'.*there are: train, valid_seen"):
        data.games("test", str(tmp_path))


def test_an_empty_split_says_what_was_skipped(tmp_path):
    put(tmp_path, "train", PLAIN, "unsolvable", {**GAME, "solvable": False})
    with pytest.raises(ValueError, match=r"no playable games.*\(1 unsolvable\)"):
        data.games("train", str(tmp_path))
    (tmp_path / "json_2.1.1" / "bare").mkdir()
    with pytest.raises(ValueError, match=r"no playable games.*\(no game files\)"):
        data.games("bare", str(tmp_path))


def test_a_broken_game_asked_for_by_name_is_named(tmp_path):
    good = put(tmp_path, "train", PLAIN)
    assert data.game(str(good)).id == f"{PLAIN}/trial_1"
    cut = put(tmp_path, "train", PLAIN, "cut", json.dumps(GAME)[:-9])
    with pytest.raises(ValueError, match=f"broken game file: {cut}"):
        data.game(str(cut))
    bare = put(tmp_path, "train", PLAIN, "bare", {"grammar": "g"})
    with pytest.raises(ValueError, match="lacks pddl_domain, pddl_problem"):
        data.game(str(bare))
    with pytest.raises(ValueError, match="no such game: .*/none"):
        data.game(str(tmp_path / "none"))


@pytest.mark.alfworld
def test_real_games_of_all_types_are_found(alfworld_data):
    found = data.scan("train", str(alfworld_data))
    assert {task.type for task in found.tasks} == set(data.TASK_TYPES)
    assert not found.skipped


def test_the_command_tells_what_is_there_and_what_is_not(tmp_path, capsys):
    put(tmp_path, "train", PLAIN, game={**GAME, "grammar": "move {o} to {r}"})
    put(tmp_path, "train", PLAIN, "unsolvable", {**GAME, "solvable": False})
    data.main(str(tmp_path))
    told = capsys.readouterr().out
    row = next(line for line in told.splitlines() if "json_2.1.1/train" in line)
    assert row.split() == "json_2.1.1/train move 1 0 0 0 0 0 1".split()
    assert "skipped in json_2.1.1/train: 1 unsolvable" in told
    (tmp_path / "nothing").mkdir()
    data.main(str(tmp_path / "nothing"))
    assert "alfworld-download" in capsys.readouterr().out
