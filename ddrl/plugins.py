"""Plugins: modules of users, which register algorithms, networks and more by name. Imports nothing of the system.

A plugin is a file, a module or an installed package's entry point of the group `ddrl.plugins`. Its name is recorded
with the run, and every process of the run imports it before it looks anything up.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from ddrl.checks import did_you_mean
from ddrl.errors import UsageError, in_one_line

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "ddrl.plugins"
"""Of entry points."""
OWN = "ddrl"
"""Where what the system itself registers is from."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_./-]*")
MAIN = "__main__"

Value = TypeVar("Value")


class Origin(NamedTuple):
    """The module that registered something, and its file; empty where it has none."""

    module: str
    file: str

    def __str__(self) -> str:
        if self.module.split(".")[0] == OWN:
            return OWN
        return f"{self.module} ({self.file})" if self.file else self.module


class Registry(Generic[Value]):
    """What there is of one kind, by name.

    Attributes:
        kind: in errors.
        values: by name; whoever holds this sees what comes later, too.
        check: refuses a value with a UsageError; whoever uses the values sets it.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._values: dict[str, Value] = {}
        self._origins: dict[str, Origin] = {}
        self.values: Mapping[str, Value] = MappingProxyType(self._values)
        self.check: Callable[[str, Any], None] = lambda name, value: None

    def add(self, name: str, value: Value) -> None:
        """Registers a value; a program or notebook (`__main__`) may replace what it registered itself, and so may the
        plugin that the program's own file is.

        Raises:
            UsageError: for a name that is taken or cannot be one, or a value that is refused.
        """
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise UsageError(f"{self.kind} {name!r:.80}: a name may have only letters, digits, and _ . / -")
        origin = _caller()
        before = self._origins.get(name)
        if before is not None and not _may_replace(before, origin):
            raise UsageError(f"{self.kind} {name} is registered twice, by {before} and by {origin}: rename one of them")
        self.check(name, value)
        self._values[name], self._origins[name] = value, origin

    def get(self, name: str) -> Value:
        """The value of this name.

        Raises:
            UsageError: there is none.
        """
        if name not in self._values:
            known = f"choose one of {', '.join(self._values)}" if self._values else "a --plugin may register one"
            meant = did_you_mean(name, self._values) or f"; {known}"
            raise UsageError(f"{self.kind} {name:.80}: there is none of that name{meant}")
        return self._values[name]

    def names(self) -> list[str]:
        """In the order in which they were registered."""
        return list(self._values)

    def origin(self, name: str) -> Origin:
        """Where it is from."""
        return self._origins[name]

    def of_module(self, module: str) -> list[str]:
        """Names that a module or, of a package, its modules have registered."""
        return [name for name, origin in self._origins.items() if f"{origin.module}.".startswith(f"{module}.")]

    def remove(self, name: str) -> None:
        """Forgets it."""
        del self._values[name], self._origins[name]


algorithms: Registry[Any] = Registry("algorithm")
"""`ddrl.algorithms.Algorithm`, by the name of their settings."""
networks: Registry[Callable[..., Any]] = Registry("network")
environments: Registry[Callable[..., Any]] = Registry("environment")
wrappers: Registry[Callable[..., Any]] = Registry("wrapper")
exchanges: Registry[Any] = Registry("exchange")
"""`ddrl.exchange.kind.Exchange`, by their names."""
loggers: Registry[Callable[..., Any]] = Registry("logger")
callbacks: Registry[Callable[..., Any]] = Registry("callback")
REGISTRIES: tuple[Registry[Any], ...] = (
    algorithms, networks, environments, wrappers, exchanges, loggers, callbacks,
)  # fmt: skip


def register_algorithm(algorithm: Any) -> None:
    """Makes an algorithm known under the names that it has on the command line.

    Args:
        algorithm: a `ddrl.algorithms.Algorithm`.

    Raises:
        UsageError: as `Registry.add`.
    """
    algorithms.add(_attribute(algorithm, "name", "register_algorithm takes a ddrl.algorithms.Algorithm"), algorithm)


def register_network(name: str, build: Callable[..., Any]) -> None:
    """Makes a network known to --network.

    Args:
        name: for --network.
        build: (Spaces, NetworkConfig) -> a Keras model or a `Network`, see `ddrl.networks`.

    Raises:
        UsageError: as `Registry.add`.
    """
    networks.add(name, _callable(build, "register_network"))


def register_environment(name: str, make: Callable[..., Any]) -> None:
    """Makes an environment known to --game.

    Args:
        name: for --game.
        make: makes a `gymnasium.Env`.

    Raises:
        UsageError: as `Registry.add`.
    """
    environments.add(name, _callable(make, "register_environment"))


def register_wrapper(name: str, wrap: Callable[..., Any]) -> None:
    """Makes a wrapper of environments known.

    Args:
        name: by which it is asked for.
        wrap: takes a `gymnasium.Env` and returns one.

    Raises:
        UsageError: as `Registry.add`.
    """
    wrappers.add(name, _callable(wrap, "register_wrapper"))


def register_exchange(exchange: Any) -> None:
    """Makes a `ddrl.exchange.kind.Exchange` known to --exchange.

    Raises:
        UsageError: as `Registry.add`.
    """
    exchanges.add(_attribute(exchange, "name", "register_exchange takes a ddrl.exchange.kind.Exchange"), exchange)


def register_logger(name: str, make: Callable[..., Any]) -> None:
    """Makes a logger known.

    Args:
        name: by which it is asked for.
        make: makes it for a run.

    Raises:
        UsageError: as `Registry.add`.
    """
    loggers.add(name, _callable(make, "register_logger"))


def register_callback(name: str, make: Callable[..., Any]) -> None:
    """Makes a callback known.

    Args:
        name: by which it is asked for.
        make: makes it for a run.

    Raises:
        UsageError: as `Registry.add`.
    """
    callbacks.add(name, _callable(make, "register_callback"))


_loaded: dict[str, str] = {}  # plugin, as it is recorded -> its module
_contents: dict[str, str] = {}  # the same -> SHA-256 of the module's file when it was imported


def recorded(plugin: str) -> str:
    """How a run's configuration names a plugin: a file by its absolute path, anything else as it is."""
    return os.path.abspath(plugin) if _is_file(plugin) else plugin


def module_of(plugin: str) -> str:
    """The module that a plugin's file becomes; anything else as it is."""
    return Path(plugin).stem if _is_file(plugin) else plugin


def loaded() -> tuple[str, ...]:
    """The plugins of this process, for those that it starts."""
    return tuple(_loaded)


def digest() -> str:
    """Of the files of this process' plugins: where they differ, ranks are not of one run."""
    whole = hashlib.sha256()
    for module in sorted(set(_loaded.values())):
        file = getattr(sys.modules.get(module), "__file__", None)
        whole.update(Path(file).read_bytes() if file else module.encode())
    return whole.hexdigest()


def load(plugins: Iterable[str]) -> None:
    """Imports plugins that this process has not imported yet. A file that is gone may have been imported from another
    place: a run's plugin that has moved is named anew with --plugin.

    Args:
        plugins: as `recorded` gives them.

    Raises:
        UsageError: one cannot be imported, or registers nothing, or a name that is taken.
    """
    for plugin in plugins:
        moved = _is_file(plugin) and not os.path.exists(plugin) and module_of(plugin) in _loaded.values()
        if plugin not in _loaded and not moved:
            _loaded[plugin] = _load(plugin)
            _contents[plugin] = _content(_loaded[plugin])


def refuse_changed(plugins: Iterable[str]) -> None:
    """A process that goes on, such as that of a notebook, keeps what it imported, while those that it starts import a
    plugin's file as it is now: presets would be of one version, and losses of another.

    Args:
        plugins: of a run, as `recorded` gives them.

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
    """SHA-256 of a module's file; empty where it has none, or none that can be read."""
    file = getattr(sys.modules.get(module), "__file__", None)
    try:
        return hashlib.sha256(Path(file).read_bytes()).hexdigest() if file else ""
    except OSError:
        return ""


def installed() -> list[EntryPoint]:
    """The entry points of installed packages, by name; nothing of them is imported."""
    from importlib.metadata import entry_points  # which takes a tenth of what a page of help may

    return sorted(entry_points(group=GROUP), key=lambda entry: entry.name)


def _load(plugin: str) -> str:
    before = _registered()
    try:
        module = _import_file(plugin) if _is_file(plugin) else _import_named(plugin)
    except UsageError as error:
        _forget(before)
        raise UsageError(f"plugin {plugin}: {error}") from error
    except (Exception, SystemExit) as error:  # whatever it raises, it is the plugin that fails
        _forget(before)
        raise UsageError(f"plugin {plugin} cannot be imported: {in_one_line(error)}{_place(error, plugin)}") from error
    if _registered() == before and not any(registry.of_module(module) for registry in REGISTRIES):
        if _is_file(plugin):  # which may be mended and loaded again in this process
            sys.modules.pop(module, None)
        raise UsageError(
            f"plugin {plugin} registers nothing: have it call ddrl.register_algorithm, register_network, "
            "register_environment, register_wrapper, register_exchange, register_logger, or register_callback"
        )
    return module


def _registered() -> set[tuple[int, str]]:
    return {(number, name) for number, registry in enumerate(REGISTRIES) for name in registry.names()}


def _forget(before: set[tuple[int, str]]) -> None:
    """What a plugin registered before it failed: it may be mended and loaded again in this process."""
    for number, name in _registered() - before:
        REGISTRIES[number].remove(name)


def _is_file(plugin: str) -> bool:
    return plugin.endswith(".py") or os.sep in plugin


def _import_file(path: str) -> str:
    """Imports a file as a module of its name, by which its settings and functions are found; returns the name."""
    name = module_of(path)
    if not os.path.isfile(path):
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
    if found is not None and not _same_file(found.origin, path):
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


def _same_file(one: str | None, other: str) -> bool:
    return one is not None and os.path.exists(one) and os.path.samefile(one, other)


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
    """A module of Python's path.

    Raises:
        UsageError: there is none of that name; what it raises itself stays as it is.
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


def _place(error: BaseException, plugin: str) -> str:
    """The last line of the plugin's own file on the way to where it was raised; a SyntaxError says so itself."""
    frames = traceback.extract_tb(error.__traceback__)
    if isinstance(error, SyntaxError) or not frames:
        return ""
    own = [frame for frame in frames if os.path.abspath(frame.filename) == os.path.abspath(plugin)]
    frame = (own or frames)[-1]
    return f" ({os.path.basename(frame.filename)}, line {frame.lineno})"


def _may_replace(before: Origin, origin: Origin) -> bool:
    """Whether what was registered by `before` may be registered anew by `origin`: see `Registry.add`."""
    itself = bool(origin.file) and _same_file(before.file, origin.file)
    return before.module == MAIN and (origin.module == MAIN or itself)


def _caller() -> Origin:
    """The module that called a function of this one."""
    frame: Any = sys._getframe(1)  # noqa: SLF001  # the one way to see who calls
    while frame is not None and frame.f_globals.get("__name__") == __name__:
        frame = frame.f_back
    names = frame.f_globals if frame is not None else {}
    return Origin(str(names.get("__name__", MAIN)), str(names.get("__file__") or ""))


def _attribute(value: Any, name: str, what: str) -> str:
    found = getattr(value, name, None)
    if not isinstance(found, str):
        raise UsageError(f"{what}, not {value!r:.80}")
    return found


def _callable(value: Any, function: str) -> Callable[..., Any]:
    if not callable(value):
        raise UsageError(f"{function} takes a function, not {value!r:.80}")
    return value
