"""How the suite is shared by two processes (`make test`): most tests of whole jobs wait more than they compute.

What `make check` leaves out has the mark `slow`: all of some folders here, modules and tests by a mark of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.session import SessionFiles

HERE = Path(__file__).parent
LONGEST = ("slurm", "parallel")  # folders, to begin with
SLOW = (*LONGEST, "bench", "studies")  # folders that are no part of `make check`


@pytest.fixture(scope="session", autouse=True)
def session_files() -> Iterator[None]:
    """For the mpiruns that tests start by themselves."""
    with SessionFiles() as files, pytest.MonkeyPatch.context() as patch:
        for name, value in files.variables.items():
            patch.setenv(name, value)
        yield


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A file stays in one process, for what its tests share; tests/slurm does, for its one cluster."""
    items.sort(key=lambda item: _place(item)[0])
    for item in items:
        item.add_marker(pytest.mark.xdist_group(_place(item)[1]))
        if item.path.relative_to(HERE).parts[0] in SLOW:
            item.add_marker(pytest.mark.slow)


def _place(item: pytest.Item) -> tuple[int, str]:
    """Order, and what runs in one process."""
    path = item.path.relative_to(HERE)
    folder = path.parts[0]
    return (LONGEST.index(folder) if folder in LONGEST else len(LONGEST)), folder if folder == "slurm" else str(path)
