"""The modules that plugins are: how they are found, imported, and recorded.

A plugin is a file, a module or an installed package's entry point of the group `ddrl.plugins`. Its name is recorded
with the run, and every process of the run imports it before it looks anything up.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ddrl.checks import did_you_mean
from ddrl.errors import UsageError, in_one_line, raised_at
from ddrl.plugins import REGISTRIES, same_file

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "ddrl.plugins"
"""The group of plugins' entry points."""

_loaded: dict[str, str] = {}  # plugin, as it is recorded -> its module
_contents: dict[str, str] = {}  # the same -> SHA-256 of the module's file when it was imported
_named: set[str] = set()  # modules of the plugins that users named, which replace recorded ones
_importing: set[int] = set()  # threads that import a plugin


def recorded(plugin: str) -> str:
    """How a run's configuration names a plugin: a file by its absolute path, anything else as it is."""
    return os.path.abspath(plugin) if _is_file(plugin) else plugin


def module_of(plugin: str) -> str:
    """The module that a plugin's file becomes; anything else as it is."""
    return Path(plugin).stem if _is_file(plugin) else plugin


def loaded() -> tuple[str, ...]:
    """The plugins that this process has loaded, to be passed to processes that it starts."""
    return tuple(_loaded)


def digest() -> str:
    """SHA-256 of the files of this process' plugins, which must be the same in all ranks of a run."""
    whole = hashlib.sha256()
    for module in sorted(set(_loaded.values())):
        file = getattr(sys.modules.get(module), "__file__", None)
        whole.update(Path(file).read_bytes() if file else module.encode())
    return whole.hexdigest()


def contents(plugins: Iterable[str]) -> dict[str, str]:
    """Plugin -> SHA-256 of the file that this process imported for it; empty if there was none.

    Other files that a plugin imports do not count.

    Args:
        plugins: plugins that are loaded, as `recorded` gives them.
    """
    by_module = {module: _contents[plugin] for plugin, module in _loaded.items()}
    return {plugin: by_module.get(_loaded.get(plugin, module_of(plugin)), "") for plugin in plugins}


def load(plugins: Iterable[str]) -> None:
    """Imports plugins that this process has not imported yet.

    A file is passed over if a module of its name was imported from another place, and the file is gone, has the same
    contents, or is replaced: see `load_named`.

    Args:
        plugins: as `recorded` gives them.

    Raises:
        UsageError: one cannot be imported, registers nothing, or registers a name that is taken.
    """
    for plugin in plugins:
        _load_once(plugin, replaced=module_of(plugin) in _named)


def not_loaded(plugins: Iterable[str]) -> list[str]:
    """Those of the plugins whose modules this process has not loaded, from whatever place."""
    known = {module_of(plugin) for plugin in _loaded} | set(_loaded.values())
    return [plugin for plugin in plugins if module_of(plugin) not in known]


def load_named(
    named: str | os.PathLike[str] | Iterable[str | os.PathLike[str]] | None, anew: bool = False
) -> list[str]:
    """Loads plugins as users name them, one, several, or none (None); returns them as they are recorded.

    From then on, they replace recorded plugins of the same modules, whatever those contain.

    Args:
        named: files, modules, or entry points.
        anew: whether plugins that were named before no longer replace recorded ones. A lasting process reads many runs,
            and what is named for one of them does not count for the next.

    Raises:
        UsageError: one of them cannot be loaded.
    """
    several = [named] if isinstance(named, (str, os.PathLike)) else named or ()
    new = [recorded(os.fspath(plugin)) for plugin in several]
    for plugin in new:
        _load_once(plugin, replaced=False)
    if anew:
        _named.clear()
    _named.update(map(module_of, new))
    return new


def _load_once(plugin: str, replaced: bool) -> None:
    """Imports a plugin unless it is imported, or a module of its name stands for it."""
    if plugin not in _loaded and not _stood_for(plugin, replaced):
        _loaded[plugin] = _load(plugin)
        _contents[plugin] = _content(_loaded[plugin])


def _stood_for(plugin: str, replaced: bool) -> bool:
    """Whether a module that was imported from another place stands for a plugin's file, as `load` says."""
    module = module_of(plugin)
    if not _is_file(plugin) or module not in _loaded.values():
        return False
    if replaced or not os.path.exists(plugin):
        return True
    content = _sha256(plugin)
    return bool(content) and content in {_contents.get(other) for other, its in _loaded.items() if its == module}


def refuse_changed(plugins: Iterable[str]) -> None:
    """Refuses plugins whose files have changed since this process imported them.

    A lasting process, such as that of a notebook, keeps what it imported, while those that it starts import a plugin's
    file as it is now: presets would be from one version of the file, and losses from another.

    Args:
        plugins: the plugins of a run, as `recorded` gives them.

    Raises:
        UsageError: the file of one has changed since this process imported it.
    """
    for plugin in plugins:
        content = _content(_loaded.get(plugin, ""))
        if content and content != _contents.get(plugin, content):
            raise UsageError(
                f"plugin {plugin} has changed since this process imported it, and a run would take half of it as it "
                "was: start Python anew (in a notebook, restart the kernel)"
            )


def _content(module: str) -> str:
    """SHA-256 of a module's file; empty if it has no file that can be read."""
    return _sha256(getattr(sys.modules.get(module), "__file__", None))


def _sha256(file: str | None) -> str:
    """SHA-256 of a file; empty if there is none that can be read."""
    try:
        return hashlib.sha256(Path(file).read_bytes()).hexdigest() if file and os.path.isfile(file) else ""
    except OSError:
        return ""


def installed() -> list[EntryPoint]:
    """The entry points of installed packages, by name; nothing of them is imported."""
    from importlib.metadata import entry_points  # slow: a tenth of the time that a page of help may take

    return sorted(entry_points(group=GROUP), key=lambda entry: entry.name)


def refuse_training() -> None:
    """Refuses to train while this thread imports a plugin. Every process of the run would import the plugin, and start
    another run without end.

    Raises:
        UsageError: a plugin is being imported.
    """
    if threading.get_ident() in _importing:
        raise UsageError(
            "ddrl.train was called while it was imported, which every process of a run does: move the call below "
            '`if __name__ == "__main__":`'
        )


def _load(plugin: str) -> str:
    before, outermost = _registered(), threading.get_ident() not in _importing
    _importing.add(threading.get_ident())
    try:
        module = _import_file(plugin) if _is_file(plugin) else _import_named(plugin)
    except UsageError as error:
        _forget(before)
        raise UsageError(f"plugin {plugin}: {error}") from error
    except (Exception, SystemExit) as error:  # whatever it raises, it is the plugin that fails
        _forget(before)
        why = f"{in_one_line(error)}{_place(error)}{_beside(error, plugin)}"
        raise UsageError(f"plugin {plugin} cannot be imported: {why}") from error
    finally:
        if outermost:
            _importing.discard(threading.get_ident())
    if _registered() == before and not any(registry.of_module(module) for registry in REGISTRIES):
        if _is_file(plugin):  # it may be mended and loaded again in this process
            sys.modules.pop(module, None)
        with_gymnasium = f"; an environment that it registers with Gymnasium needs no plugin, but --game {module}:ID"
        raise UsageError(
            f"plugin {plugin} registers nothing: have it call ddrl.register_algorithm, register_network, "
            "register_environment, register_wrapper, register_exchange, register_logger, register_callback, "
            "register_optimizer, or register_learning_rate_schedule" + ("" if _is_file(plugin) else with_gymnasium)
        )
    return module


def _registered() -> set[tuple[int, str]]:
    return {(number, name) for number, registry in enumerate(REGISTRIES) for name in registry.names()}


def _forget(before: set[tuple[int, str]]) -> None:
    """Removes what a plugin registered before it failed: it may be mended and loaded again in this process."""
    for number, name in _registered() - before:
        REGISTRIES[number].remove(name)


def _is_file(plugin: str) -> bool:
    return plugin.endswith(".py") or os.sep in plugin


def _import_file(path: str) -> str:
    """Imports a file as a module of its name, by which its settings and functions are found; returns the name."""
    name = module_of(path)
    if not os.path.isfile(path):
        if os.path.isfile(f"{path}.py"):
            raise UsageError(f"there is no such file; did you mean {path}.py?")
        raise UsageError(
            "there is no such file on this host: every node of a job must have it at that path; if it has moved, name "
            "its new place with --plugin"
        )
    if not name.isidentifier() or not path.endswith(".py"):
        raise UsageError(
            "a plugin's file is a module; its name may have only letters, digits, and _, and must end in .py"
        )
    known = sys.modules.get(name)
    found = known.__spec__ if known is not None else importlib.util.find_spec(name)
    if found is not None and not same_file(found.origin, path):
        if name in _loaded.values():
            raise UsageError(
                f"another plugin {name} is imported already ({found.origin}), and it has other contents: name the one "
                "to use with --plugin, or give one of them another name"
            )
        raise UsageError(f"there is another module {name} ({found.origin}): give the file a name of its own")
    if known is None:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None, "the name ends in .py"
        _execute(spec.loader, importlib.util.module_from_spec(spec))
    return name


def _execute(loader: Any, module: ModuleType) -> None:
    sys.modules[module.__name__] = module
    try:
        loader.exec_module(module)
    except BaseException:
        del sys.modules[module.__name__]
        raise


def _import_named(plugin: str) -> str:
    """Imports an entry point, or else a module; returns the module's name."""
    entries = [entry for entry in installed() if entry.name == plugin]
    if len({entry.value for entry in entries}) > 1:
        packages = " and ".join(sorted(package_of(entry) for entry in entries))
        raise UsageError(f"{packages} are installed, and each has a plugin of that name; remove one")
    if entries:
        register = entries[0].load()
        if not isinstance(register, ModuleType):
            register()
        return entries[0].module
    try:
        import_named_module(plugin)
    except UsageError as error:
        raise UsageError(f"{error}{did_you_mean(plugin, [entry.name for entry in installed()])}") from error
    return plugin


def import_named_module(name: str) -> ModuleType:
    """Imports a module of Python's path.

    Raises:
        UsageError: there is no module of that name. What the module itself raises stays as it is.
    """
    if not all(part.isidentifier() for part in name.split(".")):
        raise UsageError(f"{name:.80} is not a module; give its name as `import` takes it, or a file that ends in .py")
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        here = Path(*name.split(".")).with_suffix(".py")
        remedy = (
            f"--plugin {os.curdir}{os.sep}{here}" if here.exists() else "install it, or add its directory to PYTHONPATH"
        )
        raise UsageError(f"there is no module {error.name} on Python's path; {remedy}") from error


def package_of(entry: EntryPoint) -> str:
    """Name and version of the package that has an entry point."""
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist is not None else "a package without a name"


def _place(error: BaseException) -> str:
    """As `raised_at`; a SyntaxError itself names its line."""
    return "" if isinstance(error, SyntaxError) else raised_at(error)


def _beside(error: BaseException, plugin: str) -> str:
    """What to do if a module that a plugin's file lacks is a file or package beside it; else empty."""
    name = error.name if isinstance(error, ModuleNotFoundError) and _is_file(plugin) else None
    directory = os.path.dirname(os.path.abspath(plugin))
    beside = os.path.join(directory, (name or "").partition(".")[0])
    if not name or not (os.path.isfile(f"{beside}.py") or os.path.isdir(beside)):
        return ""
    return f"; the directory of a plugin is not on Python's path: name it in PYTHONPATH ({directory})"
