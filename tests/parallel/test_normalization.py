"""Whole jobs that normalize observations and rewards: all workers' data once, and after a resume the same bits."""

from __future__ import annotations

import json

import numpy as np
import pytest

from ddrl.exchange.statistics import block_size, statistics_in, unpacked
from tests.parallel.support import (
    differences,
    events,
    finish,
    forked_light_train,
    needs_mpirun,
    newest,
    program,
    result,
)

pytestmark = pytest.mark.timeout(300)
UPDATES = 20
NORMALIZED = ("--normalize-observations", "--normalize-rewards", "--no-evaluator", "--minutes", "0")
A2C = (
    "a2c", "--preset", "smoke", "--game", "CartPole-v1", "--groups", "1", "--workers", "2", "--discount", "0.9",
    "--reward-clip", "0", "--max-updates", str(UPDATES), "--reset-at-checkpoint",
    "--checkpoint-every-updates", str(UPDATES // 2), *NORMALIZED,
)  # fmt: skip


def statistics_of(saved):
    """Moments of observations, if there are any, and of returns in a checkpoint."""
    statistics = statistics_in(saved.layout)
    sizes = [block_size(width) for width in statistics.widths]
    return [unpacked(block) for block in np.split(statistics.of(saved.parameters), np.cumsum(sizes)[:-1])]


def noted(run, worker, name):
    """What ranks_seen.py wrote, one array after the other."""
    arrays, path = [], run / f"seen-{worker}-{name}.npy"
    with path.open("rb") as file:
        while file.tell() < path.stat().st_size:
            arrays.append(np.load(file))
    return arrays


def returns_of(steps, discount):
    """Discounted returns of simulators [B] as they run, one step after the other, in float64."""
    found, running = [], np.zeros(steps[0].shape[0])
    for step in steps:
        for simulator, (reward, valid, ended) in enumerate(np.float64(step)):
            if valid:
                running[simulator] = discount * running[simulator] + reward
                found.append(running[simulator])
            if ended or not valid:
                running[simulator] = 0.0
    return np.array(found)


@needs_mpirun
@pytest.mark.parametrize("exchange", [("--parameter-servers", "2"), ("--exchange", "allreduce")], ids=" ".join)
def test_two_workers_have_the_statistics_of_all_that_both_saw(tmp_path, exchange):
    run = tmp_path / "run"
    finish(run, *A2C, *exchange, start=forked_light_train, program="ranks_seen.py")
    saved = newest(run)
    observations, returns = statistics_of(saved)
    length = saved.config["algorithm"]["unroll_length"]
    rows = np.concatenate([part for w in range(2) for part in noted(run, w, "observations")[:UPDATES]]).astype(float)
    running = np.concatenate([returns_of(noted(run, w, "steps")[: 1 + length * UPDATES], 0.9) for w in range(2)])
    assert observations.count == len(rows) and returns.count == len(running)
    for found, wanted in ((observations, rows), (returns, running[:, None])):
        np.testing.assert_allclose(found.mean, wanted.mean(axis=0), rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(found.variance, wanted.var(axis=0), rtol=1e-10)


@needs_mpirun
def test_two_workers_resume_to_the_bit(tmp_path):
    whole, half = tmp_path / "whole", tmp_path / "half"
    servers = ("--parameter-servers", "2")
    finish(whole, *A2C, *servers, "--checkpoint-every-updates", "10", start=forked_light_train)
    finish(half, *A2C, *servers, "--max-updates", "10", start=forked_light_train)
    finish(half, "--resume", str(half), "--max-updates", str(UPDATES), start=forked_light_train)
    assert events(half, "resumed")[0]["update"] == 10
    assert list(differences(newest(half), newest(whole))) == []


SINGLE = {
    "ppo": ("--game", "CartPole-v1", "--batch-size", "32", "--checkpoint-every-updates", "21"),  # within a rollout
    "sac": ("--game", "Pendulum-v1", "--checkpoint-every-updates", "21"),
}


@pytest.fixture(scope="module")
def single(tmp_path_factory):
    """Runs of a single process, all in one, since TensorFlow takes longer to load than they take."""
    directory = tmp_path_factory.mktemp("single")
    jobs = []
    for name, flags in SINGLE.items():
        half, common = str(directory / f"{name}-half"), [name, "--preset", "smoke", *flags, *NORMALIZED]
        common += ["--reset-at-checkpoint", "--checkpoint-every-updates", "21"]
        jobs.append([*common, "--run-dir", str(directory / f"{name}-whole"), "--max-updates", "42"])
        jobs.append([*common, "--run-dir", half, "--max-updates", "21"])
        jobs.append(["--resume", half, "--max-updates", "42"])
    with program("single_runs.py", directory, json.dumps(jobs)) as job:
        assert job.wait() == 0, job.output
    return directory


@pytest.mark.parametrize("name", SINGLE)
def test_one_process_resumes_to_the_bit(single, name):
    whole, resumed = newest(single / f"{name}-whole"), newest(single / f"{name}-half")
    assert events(single / f"{name}-half", "resumed")[0]["update"] == 21 and resumed.version == 42
    assert list(differences(resumed, whole)) == []
    observations, returns = statistics_of(whole)
    assert observations.count == returns.count > 0 and (observations.variance > 0.0).all()


def test_a_reward_that_is_no_number_is_named_and_refused(tmp_path):
    run = tmp_path / "run"
    argv = ["a2c", "--preset", "smoke", "--run-dir", str(run), "--max-updates", "40", "--normalize-rewards"]
    jobs = json.dumps([[*argv, "--no-evaluator", "--minutes", "0"]])
    with program("single_runs.py", tmp_path, jobs, environment={"TEST_NAN_REWARDS": "500"}) as job:
        assert job.wait() == 0, job.output
    (told,) = events(run, "statistics_not_finite")
    assert told["text"].startswith("the discounted return that worker 0 saw is NaN")
    refused = len(events(run, "gradient_refused"))
    assert refused > 1 and result(run)["update"] == 40
    assert newest(run).step == 40 + refused, "a return goes on as if nothing had been"
    (returns,) = statistics_of(newest(run))
    assert np.isfinite(returns.variance).all() and returns.count > 0
