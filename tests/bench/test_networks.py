"""`ddrl bench networks`: what is refused before anything is measured."""

from __future__ import annotations

import pytest

from ddrl import plugins
from ddrl.bench.networks import NetworksArguments, configs_of
from ddrl.errors import UsageError
from tests.options.begins import DISCRETE, Begins

pytestmark = pytest.mark.slow  # Gymnasium is imported


def test_a_game_that_fails_is_refused_whatever_the_networks():
    """Its observations suit no network for images either, which is not what is wrong with it."""
    plugins.register_environment("test-fails", lambda: Begins([0, 0], DISCRETE, step=RuntimeError("no level")))
    arguments = NetworksArguments(networks=("nature", "mlp"), train_options=("--game", "test-fails"))
    with pytest.raises(UsageError, match="^test-fails fails at its first step: RuntimeError: no level"):
        configs_of(arguments)
