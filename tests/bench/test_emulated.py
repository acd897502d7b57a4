"""Jobs of emulated workers under real mpirun: what they count and drop."""

from __future__ import annotations

import pytest

from cluster.launch import find_mpirun
from ddrl.bench.emulated.exchange import ScalingArguments, StragglerArguments, measure_scaling, measure_stragglers

needs_mpirun = pytest.mark.skipif(find_mpirun() is None, reason="no mpirun here")


@needs_mpirun
def test_a_quorum_drops_the_slow_workers_gradients():
    arguments = StragglerArguments(
        workers=3, parameter_servers=1, parameters=1000, step_ms=20.0, spread=0.0, slow_factor=5.0, steps=10
    )
    found = measure_stragglers(arguments)
    everyone, quorum = found["wait for all"], found["quorum 2"]
    assert everyone["share_dropped"] <= 0.1
    assert 0 < quorum["share_dropped"] < 0.5


@needs_mpirun
def test_scaling_compares_with_the_first_number_of_workers():
    arguments = ScalingArguments(workers=(1, 2), parameter_servers=1, parameters=1000, step_ms=(20.0,), seconds=0.2)
    found = measure_scaling(arguments)
    assert set(found["updates_per_s_at_20_ms"]) == {"1", "2"}
    assert found["efficiency_at_20_ms"]["1"] == 1.0
    assert 0 < found["updates_per_s_at_20_ms"]["2"] <= 50


def test_no_more_slow_workers_than_workers():
    with pytest.raises(Exception, match="--slow-workers 3: must be below --workers 3"):
        StragglerArguments(workers=3, slow_workers=3)
