"""The settings of a run as the board shows them, read without running anything that they name."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ddrl import rundir
from ddrl.board.texts import shown
from ddrl.checks import hyphenated, is_finite
from ddrl.config import TrainConfig
from ddrl.errors import UsageError
from ddrl.options.named_settings import OWN, RULES, by_group
from ddrl.studies.provenance import value_text

NOT_LEARNED_WITH = ("run", "evaluation")
"""Groups that say nothing of what a run learns: seed and budget, and when and how it is evaluated."""


class Settings:
    """What config.json says.

    A configuration that this version of ddrl knows is read with its defaults, so that runs of earlier versions can be
    compared. One with plugins is not, since reading it imports them; nor is one that is damaged or of a later version:
    of these the board shows what is written there.

    Args:
        path: of the run directory.
    """

    def __init__(self, path: Path) -> None:
        content = rundir.read_json(path / rundir.CONFIG)
        self._content: Mapping[str, Any] = content or {}
        self.readable = content is not None
        self._config = _decoded(self._content)

    @property
    def algorithm(self) -> str:
        """Its name on the command line, or what config.json has for it."""
        return shown(self._config.title if self._config else str(self._content.get("algorithm_name", "unknown")))

    @functools.cached_property
    def group(self) -> str:
        """Equal for runs that differ alone in their seed, in how long they go on, and in when they are evaluated."""
        groups = self.by_group()
        learned = {name: values for name, values in groups.items() if name not in NOT_LEARNED_WITH}
        rules = {name: value for name, value in groups.get("evaluation", {}).items() if name in RULES}
        began_with = self.value("run", "init_from", "")  # which counts, though it is in the group `run`
        content = [self.algorithm, learned, rules, began_with]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]

    def value(self, group: str, name: str, default: Any = None) -> Any:
        """Of one setting, or `default` where it has none of that type, or a number that is not finite as a float."""
        values = self._content.get(group)
        value = values.get(name, default) if isinstance(values, dict) else default
        if isinstance(value, (int, float)) and not is_finite(value):
            return default
        same = isinstance(value, type(default)) or (isinstance(default, float) and type(value) is int)
        return value if same or default is None else default

    def by_group(self) -> dict[str, dict[str, str]]:
        """Group -> names as on the command line -> values, as texts."""
        if self._config is not None:
            groups = by_group(self._config)
        else:
            found = {group: values for group, values in self._content.items() if isinstance(values, dict)}
            groups = {group: {hyphenated(str(n)): value for n, value in of.items()} for group, of in found.items()}
        return {
            shown(group): {shown(name): shown(value_text(value)) for name, value in values.items() if name not in OWN}
            for group, values in groups.items()
        }


def _decoded(content: Mapping[str, Any]) -> TrainConfig | None:
    run = content.get("run")
    if not isinstance(run, dict) or run.get("plugins"):
        return None
    try:
        return rundir.config_from_dict(dict(content))
    except UsageError:
        return None
