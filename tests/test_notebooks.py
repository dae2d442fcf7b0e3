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
    nbclient.NotebookClient(notebook, timeout=120, resources=settings).execute()
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
