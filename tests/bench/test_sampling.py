"""Acting alone is measured in processes of their own, each fixed to its cores."""

from __future__ import annotations

import numpy as np
import pytest

from ddrl.algorithms import preset
from ddrl.bench import phases, timing
from ddrl.bench.children import Children
from ddrl.bench.sampling import Sampling, measure_sampling
from ddrl.config import EnvironmentConfig
from ddrl.errors import UsageError
from ddrl.types import Continuous, Discrete, Machine

CONFIG = preset("smoke", None, Machine(2, 1 << 40), "a2c").changed(sampling={"simulators": 4, "groups": 2})


@pytest.mark.timeout(120)
def test_a_process_acts_with_the_policy_and_waits_at_the_barrier():
    assert measure_sampling(Sampling(CONFIG, barrier=True), 0.2) > 0


def test_random_actions_step_every_simulator_of_every_group():
    kinds, _ = phases.acting_at_random(CONFIG, 1)
    steps = [kinds["act"]() for _ in range(3)]
    assert all(0 < n <= 4 * phases.RANDOM_STEPS for n in steps)  # steps that only reset do not count


def test_work_is_done_once_at_least_and_then_for_as_long_as_was_asked():
    assert timing.work_for(lambda: 7, 0.0)[0] == 7
    done, seconds = timing.work_for(lambda: 7, 0.02)
    assert done > 7 and seconds >= 0.02
    units = iter([0, 0, 3])
    assert timing.work_for(lambda: next(units), 0.0)[0] == 3, "until something is done"


def test_random_actions_are_within_the_space():
    random = np.random.default_rng(0)
    discrete = phases.random_actions(Discrete(3), (200,), random)
    assert discrete.dtype == np.int32 and set(discrete.tolist()) == {0, 1, 2}
    continuous = phases.random_actions(Continuous((-2.0, -np.inf), (0.5, np.inf)), (200,), random)
    assert continuous.dtype == np.float32 and continuous.shape == (200, 2)
    assert (continuous >= [-2.0, -1.0]).all() and (continuous <= [0.5, 1.0]).all()


def test_a_process_that_dies_is_told(tmp_path, monkeypatch):
    (tmp_path / "dies.py").write_text("import sys; sys.exit('no memory')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with Children("dies", [{}], 60.0) as children, pytest.raises(UsageError, match="did not answer in time: no memory"):
        children.hear()


@pytest.mark.timeout(120)
def test_what_cannot_be_is_told():
    with pytest.raises(UsageError, match="--cores: 5000 cores are needed"):
        measure_sampling(Sampling(CONFIG, processes=5000), 0.1)
    unknown = CONFIG.changed(environment={"game": "nosuch"})
    assert isinstance(unknown.environment, EnvironmentConfig)
    with pytest.raises(UsageError, match="unknown game 'nosuch'"):
        measure_sampling(Sampling(unknown, inference=False), 0.1)
