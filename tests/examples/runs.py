"""What the tests of the examples have in common."""

from __future__ import annotations

import ddrl
from tests.examples.conftest import EXAMPLES


def train(algorithm, name, directory, **settings):
    """A run of an algorithm with the plugin in a file of examples/."""
    plugin = EXAMPLES / f"{name}.py"
    return ddrl.train(algorithm, plugin=plugin, run_dir=directory / "run", video=False, progress=False, **settings)
