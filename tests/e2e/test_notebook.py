"""The tutorial's notebook runs from top to bottom, and what it says of the tool is so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
NOTEBOOK = Path(__file__).parents[2] / "docs" / "tutorial" / "notebook.ipynb"


def test_the_notebook_runs_and_the_model_learns() -> None:
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    folder = {"metadata": {"path": str(NOTEBOOK.parent)}}
    nbclient.NotebookClient(notebook, timeout=1500, kernel_name="python3", resources=folder).execute()
    said = [output.get("text", "") for cell in notebook.cells for output in cell.get("outputs", ())]
    accuracies = [float(found) for text in said for found in re.findall(r"step .*accuracy (\S+)%", text)]
    assert accuracies[-1] > 60 > 50 > accuracies[0]
    assert re.search(r"^calculator|: calculator\(", "\n".join(said), re.MULTILINE)
