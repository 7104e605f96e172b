"""Run the notebook of docs/ in an empty folder and keep what its cells show: `make notebook`."""

import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

NOTEBOOK = Path(__file__).parent / "own_data.ipynb"


def executed(path: Path, folder: Path) -> NotebookNode:
    """Return the notebook as it is after all cells ran in this folder; a cell that fails raises."""
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=300, record_timing=False, resources={"metadata": {"path": str(folder)}}).execute()
    notebook.metadata.pop("language_info", None)  # it names the version of the Python that ran the cells
    return notebook


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        nbformat.write(executed(NOTEBOOK, Path(folder)), NOTEBOOK)


if __name__ == "__main__":
    main()
