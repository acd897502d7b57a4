"""`ddrl plugins`: what is there by name, and where it is from."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import tyro

from ddrl import algorithms, plugin_modules, plugins
from ddrl.options import early_options


@dataclasses.dataclass(frozen=True)
class PluginsArguments:
    """List everything that has a name and where it comes from, and the plugins of installed packages."""

    plugin: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """Load this plugin first: a module, a file that ends in .py, or an installed plugin. May be given several times."""


def main(argv: Sequence[str]) -> int:
    """Runs `ddrl plugins`; returns the exit status."""
    early_options.read_with_plugins(PluginsArguments, argv, "ddrl plugins")
    table = [("kind", "name", "from"), *_registered()]
    widths = [max(len(row[column]) for row in table) for column in range(2)]
    for kind, name, origin in table:
        print(f"{kind:{widths[0]}}  {name:{widths[1]}}  {origin}")
    print("\ninstalled, for --plugin:")
    for entry in plugin_modules.installed():
        print(f"  {entry.name}  {plugin_modules.package_of(entry)}, {entry.value}")
    if not plugin_modules.installed():
        print(f"  none: a package offers one as an entry point of the group {plugin_modules.GROUP} (docs/extending.md)")
    return 0


def _registered() -> Iterator[tuple[str, str, str]]:
    for registry in plugins.REGISTRIES:
        for name in registry.names():
            known = algorithms.ALGORITHMS[name].names if registry is plugins.algorithms else (name,)
            for title in known:
                yield registry.kind, title, str(registry.origin(name))
