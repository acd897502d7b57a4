"""How the suite is shared by three processes (`make test`): most tests of whole jobs wait more than they compute.

What `make check` leaves out has the mark `slow`: all of some folders here, modules and tests by a mark of their own.
What has the mark `minutes` runs only if it is asked for: `pytest -m minutes`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.session import SessionFiles
from ddrl import plugins

HERE = Path(__file__).parent
LONGEST = ("slurm", "parallel")  # folders, to begin with
SLOW = (*LONGEST, "bench", "studies", "tuning")  # folders that are no part of `make check`


@pytest.fixture(scope="session", autouse=True)
def session_files() -> Iterator[None]:
    """For the mpiruns that tests start by themselves."""
    with SessionFiles() as files, pytest.MonkeyPatch.context() as patch:
        for name, value in files.variables.items():
            patch.setenv(name, value)
        yield


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """A test's plugins are not there for the next; what ddrl itself registers, when it is first needed, stays."""
    registered, loaded, modules = plugins._registered(), dict(plugins._loaded), set(sys.modules)
    yield
    for number, name in plugins._registered() - registered:
        if not plugins.REGISTRIES[number].origin(name).module.startswith("ddrl."):
            plugins.REGISTRIES[number].remove(name)
    for plugin in plugins._loaded.keys() - loaded.keys():
        module = plugins._loaded.pop(plugin)
        if module not in modules:
            sys.modules.pop(module, None)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A file stays in one process (`--dist loadfile`), for what its tests share."""
    items.sort(key=lambda item: LONGEST.index(_folder(item)) if _folder(item) in LONGEST else len(LONGEST))
    for item in items:
        if _folder(item) in SLOW:
            item.add_marker(pytest.mark.slow)
        if item.get_closest_marker("minutes") and "minutes" not in config.option.markexpr:
            item.add_marker(pytest.mark.skip(reason="takes minutes: pytest -m minutes"))


def _folder(item: pytest.Item) -> str:
    """Of tests/, in which a test is."""
    return item.path.relative_to(HERE).parts[0]
