"""The notebooks run from top to bottom, and show what their text says."""

import nbclient
import nbformat
import pytest

import runs

FOLDER = runs.ROOT / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


def execute(name: str, monkeypatch) -> str:
    """Run a notebook without games; return all that it printed."""
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    notebook = nbformat.read(FOLDER / name, as_version=4)
    settings = {"metadata": {"path": str(FOLDER)}}
    nbclient.NotebookClient(notebook, timeout=600, resources=settings).execute()
    outputs = [o for cell in notebook.cells for o in cell.get("outputs", [])]
    return "".join(o.get("text", "") for o in outputs if o.get("name") == "stdout")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_short_and_clean(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert len(notebook.cells) < 30
    assert notebook.cells[0].source.startswith("# ")
    badge = "](https://colab.research.google.com/"
    assert badge in notebook.cells[0].source
    assert f"notebooks/{path.name}" in notebook.cells[0].source
    for cell in notebook.cells:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None


def test_the_workspace_notebook_shows_what_it_says(monkeypatch):
    printed = execute("1_workspace.ipynb", monkeypatch)
    for line in (
        "won: True  turns: 6  calls: {'track': 1, 'commit': 1, 'recall': 1, 'note': 1}",
        "answer: recalled: alpha: -2",
        "answer: tracked: counter: at -1",
        "plan:   [x] reach the number",
        "replayed bit for bit: True",
        "refused: no tool calls are left",
        "refused: this tool needs words in [ ]",
        "refused: not a command here",
        "goal: find two egg and put them in microwave",
        "won: True  turns: 18  calls: {'track': 2, 'commit': 1, 'recall': 1, ",
        "GOT    recalled: egg: countertop",
        "GOT    unexplored: fridge 1, cabinet 13,",
        "GOT    tracked: egg 1: in hand; egg 2: in fridge 1; egg 3: in microwave 1",
        "as recorded: True",
        "before: egg: countertop  (recalled 0, won 0)",
        "after:  egg: countertop, fridge  (recalled 1, won 1)",
    ):
        assert line in printed


def test_the_rollout_notebook_shows_what_it_says(monkeypatch):
    printed = execute("2_rollout.ipynb", monkeypatch)
    for line in (
        "parameters: 106944",
        "a: won, 3 turns, 1 calls, ",
        "b: won, 5 turns, 3 calls, ",
        "c: won, 2 turns, 0 calls, ",
        "d: lost, 7 turns, 0 calls, ",
        "rows: 17 of episodes [0, 0, 0, 1, 1, 1, 1, 1, 2, 2, 3, 3, 3, 3, 3, 3, 3]",
        "recalled: alpha: -2<|im_end|>",
        "its end: assistant \n |<action> |track | [ |counter |] |</action> |<|im_end|>",
        # A win for a share of 4, 2 and 5 sevenths of the budget; repeated actions.
        "a          10.000       0.571       0.000      -0.100      -0.000      10.471",
        "b          10.000       0.286       0.000      -0.100      -0.000      10.186",
        "c          10.000       0.714       0.000      -0.100      -0.000      10.614",
        "d           0.000       0.000       0.000      -0.600      -0.000      -0.600",
        "all four  +0.508 +0.457 +0.534 -1.499",
        # Of the winners the price alone, on a scale of 1/4: from the mean 11/21.
        "winners   +0.190 -0.952 +0.762",
        "losers    +0.000 +0.000",
        "finite: True, ratio: 1.000",
        "loss +0.250, minus the mean advantage +0.250",
        "weighed by the advantage it rose: True",
        "c rose more than b: True",
        "log-probabilities beside every sampled id: True",
    ):
        assert line in printed


def test_the_notebook_on_reading_a_run_shows_what_it_says(monkeypatch):
    printed = execute("3_read_a_run.ipynb", monkeypatch)
    for line in (
        "stage: train_rl  version: 0.1.0  finished: True",
        "steps: [1, 2, 3]",
        "episodes: 24  problems: []",
        "calls   commit note recall total track",
        "reward  diversity efficiency invalid spam success total",
        "3 lines of metrics",
        "Success and calls - ['annealing', ",
        "the same 23 games",
        "difference +13.0 points, 95 % interval -8.9 to +34.9;",
        "only the teacher won: 5  only chance: 2",
        "95 % interval of the teacher alone: [0.4079, 0.7784]",
        "2. recall                       recalled: foxtrot: -3",
        "6. dec                          counter: -3",
        "replayed bit for bit: True",
        "of the last step: 8 episodes",
        "step 1  added ('hint: egg: fridge',)  reworded ()",
        "reworded (('hint: egg: fridge', 'hint: egg: fridge, shelf'),)",
        "report.html holds 24 of 24 episodes",
        "below 5 MB: True",
    ):
        assert line in printed
