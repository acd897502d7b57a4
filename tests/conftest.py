"""How the suite is shared by three processes (`make test`): tests of whole jobs wait, and others compute meanwhile.

What `make check` leaves out has the mark `slow`: all of some folders here, modules and tests by a mark of their own.
What has the mark `minutes` runs only if it is asked for: `pytest -m minutes`.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.session import SessionFiles
from ddrl import plugin_modules, plugins

HERE = Path(__file__).parent
gc.set_threshold(
    20_000, 50, 50
)  # objects of TensorFlow, all of which stay: searching them took 3 to 9% of two folders' time
WAITING = ("slurm", "parallel")  # folders of whole jobs, which wait as much as they compute
EARLY = 0.5  # of the others, which begin before the last of those
# Folders of the longest of the others, and such a file beside them: they begin.
LONG = (
    "examples", "tuning", "bench", "evaluation", "builders", "launch", "doctor", "api", "studies", "submit",
    "test_programs.py",
)  # fmt: skip
SLOW = (*WAITING, "bench", "studies", "tuning")  # folders that are no part of `make check`


@pytest.fixture(scope="session", autouse=True)
def session_files() -> Iterator[None]:
    """For the mpiruns that tests start by themselves."""
    with SessionFiles() as files, pytest.MonkeyPatch.context() as patch:
        for name, value in files.variables.items():
            patch.setenv(name, value)
        patch.delenv("SLURM_RESTART_COUNT", raising=False)  # of a requeued job, in which locks are waited for
        for name in ("FORCE_COLOR", "COLUMNS"):  # the user's, which change what programs print
            patch.delenv(name, raising=False)
        yield


@pytest.fixture
def forked_ranks(monkeypatch) -> None:
    """Ranks of `ddrl.train` start at once, see tests/parallel/forks.py."""
    from tests.parallel.support import use_forks

    use_forks(monkeypatch)


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """A test's plugins and trials of games are not there for the next; what ddrl registers itself when needed stays."""
    registered, loaded, modules = plugin_modules._registered(), dict(plugin_modules._loaded), set(sys.modules)
    named = set(plugin_modules._named)
    yield
    for number, name in plugin_modules._registered() - registered:
        if not plugins.REGISTRIES[number].origin(name).module.startswith("ddrl."):
            plugins.REGISTRIES[number].remove(name)
    for plugin in plugin_modules._loaded.keys() - loaded.keys():
        module = plugin_modules._loaded.pop(plugin)
        if module not in modules:
            sys.modules.pop(module, None)
    plugin_modules._loaded.update(loaded)  # a test may have emptied both
    plugin_modules._named.clear()
    plugin_modules._named.update(named)
    if settings := sys.modules.get("ddrl.options.game_settings"):
        settings.forget_trials()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A file stays in one process (`--dist loadfile`), for what its tests share. Among the WAITING files are others,
    so that the cores are busy, and the longest come first."""
    positions = _positions(items)
    items.sort(key=lambda item: positions[item.path])
    for item in items:
        if _folder(item) in SLOW:
            item.add_marker(pytest.mark.slow)
        if item.get_closest_marker("minutes") and "minutes" not in config.option.markexpr:
            item.add_marker(pytest.mark.skip(reason="takes minutes: pytest -m minutes"))


def _positions(items: list[pytest.Item]) -> dict[Path, float]:
    """The place of each file: the WAITING ones evenly among the EARLY ones of the others, of which LONG ones begin."""
    folders = {item.path: _folder(item) for item in items}
    waiting = sorted(
        (path for path in folders if folders[path] in WAITING), key=lambda path: WAITING.index(folders[path])
    )
    places = {folder: place for place, folder in enumerate(LONG)}
    others = sorted(folders.keys() - waiting, key=lambda path: (places.get(folders[path], len(LONG)), path))
    apart = EARLY * len(others) / max(1, len(waiting))
    return {path: apart * i for i, path in enumerate(waiting)} | {path: i + 0.5 for i, path in enumerate(others)}


def _folder(item: pytest.Item) -> str:
    """Of tests/, in which a test is; its file, if it is in none."""
    return item.path.relative_to(HERE).parts[0]
