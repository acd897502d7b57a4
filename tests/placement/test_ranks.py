from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest

from cluster.topology import Seat, made_up
from ddrl.algorithms.ba3c import BA3CConfig
from ddrl.config import EvaluationConfig, ExchangeConfig, OptimizerConfig, SamplingConfig, TrainConfig
from ddrl.errors import UsageError
from ddrl.placement.ranks import Threads, expose_gpu, place_ranks, threads_for, with_threads


@pytest.mark.parametrize(
    "settings, cores, threads",
    [
        ({}, 1, Threads(1, 1, 1)),  # two ranks with one thread each beat one rank with two
        ({}, 2, Threads(1, 2, 1)),
        ({}, 8, Threads(4, 2, 2)),
        ({"groups": 1}, 8, Threads(4, 2, 4)),
        ({"simulators": 4}, 64, Threads(32, 2, 2)),  # no more emulator threads than simulators
        ({"simulator_threads": 3}, 1, Threads(1, 1, 3)),  # asked for
        ({"schedule": "synchronized"}, 1, Threads(1, 1, 1)),
        ({"schedule": "synchronized"}, 8, Threads(1, 1, 8)),  # results that are the same on every node
    ],
)
def test_threads_follow_from_the_cores(settings, cores, threads):
    assert (
        threads_for(
            TrainConfig(
                algorithm=BA3CConfig(),
                sampling=SamplingConfig(**settings),
                optimizer=OptimizerConfig(batch_size=10_000),
            ),
            cores,
        )
        == threads
    )


def test_a_rank_has_its_own_emulator_threads():
    config = TrainConfig(algorithm=BA3CConfig())
    mine = with_threads(config, Threads(4, 2, 5))
    assert mine.sampling.simulator_threads == 5 and config.sampling.simulator_threads == 1
    assert mine.exchange == config.exchange


def test_places_of_the_settings():
    config = TrainConfig(
        algorithm=BA3CConfig(), exchange=ExchangeConfig(workers=2, parameter_servers=1, chief="dedicated")
    )
    roles = [a.role for a in place_ranks(config, made_up([5], 4))]
    assert roles == ["chief", "worker", "worker", "parameter_server", "evaluator"]


def test_a_wrong_number_of_ranks_is_the_users():
    with pytest.raises(UsageError, match="this job has 3 ranks and the settings need 4"):
        place_ranks(TrainConfig(algorithm=BA3CConfig()), (Seat(),) * 3)


@pytest.mark.parametrize("gpu, shown", [("1", "1"), ("GPU-5ab", "GPU-5ab"), ("", "-1")])
def test_a_process_sees_its_gpu_only(gpu, shown):
    environ = {"CUDA_VISIBLE_DEVICES": "0,1,2"}
    expose_gpu(gpu, environ)
    assert environ == {"CUDA_VISIBLE_DEVICES": shown}


class FakeTensorFlow:
    """Remembers what was set. Its GPUs are there only when they are asked for."""

    def __init__(self, gpus):
        self.calls = []
        threading = SimpleNamespace(
            set_intra_op_parallelism_threads=lambda n: self.calls.append(("intra", n)),
            set_inter_op_parallelism_threads=lambda n: self.calls.append(("inter", n)),
        )
        growth = SimpleNamespace(
            set_memory_growth=lambda gpu, on: self.calls.append(("growth", gpu, on)),
            enable_op_determinism=lambda: self.calls.append("determinism"),
        )
        self.config = SimpleNamespace(
            threading=threading,
            experimental=growth,
            list_physical_devices=lambda kind: list(gpus),
            set_visible_devices=lambda devices, kind: self.calls.append((kind, devices)),
        )


@pytest.mark.parametrize(
    "gpus, mine, calls",
    [
        ([], "", [("GPU", []), ("intra", 4), ("inter", 2)]),
        (["g"], "", [("GPU", []), ("intra", 4), ("inter", 2)]),  # hidden from the roles that have none
        (["g"], "3", [("GPU", ["g"]), ("growth", "g", True), ("intra", 4), ("inter", 2)]),
    ],
)
def test_tensorflow_is_told_of_the_gpu_and_the_threads(gpus, mine, calls, monkeypatch, capsys):
    from ddrl import learner

    monkeypatch.setattr(learner, "tf", fake := FakeTensorFlow(gpus))
    learner.configure_tensorflow(4, 2, mine)
    assert fake.calls == calls and capsys.readouterr().out == ""


@pytest.mark.parametrize("gpu, told", [("3", True), ("", False)])
def test_a_deterministic_run_on_a_gpu_has_deterministic_operations(gpu, told, monkeypatch):
    from ddrl import learner

    monkeypatch.setattr(learner, "tf", fake := FakeTensorFlow(["g"]))
    learner.configure_tensorflow(1, 1, gpu, deterministic=True)
    assert ("determinism" in fake.calls) == told


def test_a_gpu_that_tensorflow_does_not_see_is_warned_of(monkeypatch, capsys):
    from ddrl import learner

    monkeypatch.setattr(learner, "tf", fake := FakeTensorFlow([]))
    learner.configure_tensorflow(1, 1, "0")
    assert ("GPU", []) in fake.calls
    assert "GPU 0 is there, but TensorFlow sees none" in capsys.readouterr().out


def test_the_gpu_is_chosen_before_tensorflow_is_imported(tmp_path):
    program = (
        "import os, sys\n"
        "from ddrl.roles import main\n"
        "assert 'tensorflow' not in sys.modules\n"
        "class Stop(Exception): pass\n"
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'tensorflow':\n"
        "            print('seen', os.environ['CUDA_VISIBLE_DEVICES'])\n"
        "            raise Stop\n"
        "sys.meta_path.insert(0, Finder())\n"
        "from cluster.roles import Assignment\n"
        "transport = main.LocalTransport(0)\n"
        "try: main._roles_of_rank(None, transport, (Assignment(0, 'worker', 0, gpu='2'),), False, None, None)\n"
        "except Stop: pass\n"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert run.stdout == "seen 2\n", run.stderr


def test_a_central_store_wants_all_workers_on_one_host():
    config = TrainConfig(
        algorithm=BA3CConfig(),
        exchange=ExchangeConfig(workers=2, exchange="central_store"),
        evaluation=EvaluationConfig(evaluator=False),
    )
    seats = (Seat("a"), Seat("b"))
    assert len(place_ranks(config, (seats[0],) * 2)) == 2
    with pytest.raises(UsageError, match="^--exchange central_store is memory that the workers share.* on a, b: start"):
        place_ranks(config, seats)
