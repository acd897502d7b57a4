"""What fits a machine: memory, cores, number types, and control groups."""

from __future__ import annotations

import pytest

from ddrl import algorithms
from ddrl.algorithms import ba3c
from ddrl.algorithms.ba3c import BA3CConfig
from ddrl.config import ExchangeConfig, TrainConfig
from ddrl.errors import UsageError
from ddrl.placement import resources
from ddrl.types import Machine

GB = 10**9


@pytest.mark.parametrize(
    "machine, workers, servers",
    [
        (Machine(2, 16 * GB), 2, 1),
        (Machine(1, 16 * GB), 1, 0),
        (Machine(8, 64 * GB), 8, 1),
        (Machine(64, 256 * GB), 16, 2),
        (Machine(8, 4 * GB), 2, 1),
        (Machine(8, 1 * GB), 1, 0),
    ],
)
def test_laptop_takes_what_the_machine_carries(machine, workers, servers):
    config = algorithms.preset("laptop", None, machine)
    assert (config.exchange.workers, config.exchange.servers) == (workers, servers)
    assert config.evaluation.target_score is None
    if machine.memory_bytes >= 2 * GB:
        assert resources.check_machine(config, machine) == []


def test_laptop_keeps_its_effective_batch():
    for cores in (1, 2, 4):
        config = algorithms.preset("laptop", None, Machine(cores, 64 * GB))
        assert config.optimizer.batch_size * config.exchange.workers == ba3c.EFFECTIVE_BATCH
    many = algorithms.preset("laptop", None, Machine(8, 64 * GB))
    assert many.optimizer.batch_size == ba3c.SMALLEST_BATCH


def config_of(workers: int) -> TrainConfig:
    return TrainConfig(algorithm=BA3CConfig(), exchange=ExchangeConfig(workers=workers, parameter_servers=1))


def test_memory_and_cores():
    assert resources.check_machine(config_of(2), Machine(2, 16 * GB)) == []
    assert "take turns" in resources.check_machine(config_of(4), Machine(2, 16 * GB))[0]
    with pytest.raises(UsageError, match="lower --workers"):
        resources.check_machine(config_of(8), Machine(2, 64 * GB))
    with pytest.raises(UsageError, match=r"6 ranks need about 5.2 GB of memory and 4.0 GB are free"):
        resources.check_machine(config_of(4), Machine(4, 4 * GB))
    with pytest.raises(UsageError, match="ranks that compute are too many for 1 core, at most 4 for each"):
        resources.check_machine(config_of(8), Machine(1, 64 * GB))
    alone = config_of(1).changed(exchange={"parameter_servers": 0})
    with pytest.raises(UsageError, match=r"^1 rank needs about 1.0 GB of memory and 0.5 GB are free"):
        resources.check_machine(alone, Machine(4, GB // 2))


@pytest.mark.parametrize(
    "flags, found",
    [("fpu avx512_bf16 sse", True), ("amx_bf16 amx_tile", True), ("fpu avx2 avx512f avx512_bf16x", False), ("", False)],
)
def test_a_processor_computes_bfloat16_if_one_of_its_flags_says_so(tmp_path, flags, found):
    (tmp_path / "cpuinfo").write_text(f"processor\t: 0\nmodel name\t: P\nflags\t\t: {flags}\nbugs\t: amx_bf16\n")
    assert resources.processor_computes_bfloat16(tmp_path / "cpuinfo") is found


def test_a_system_that_does_not_say_computes_in_float32(tmp_path):
    assert not resources.processor_computes_bfloat16(tmp_path / "none")
    (tmp_path / "cpuinfo").write_text("Features\t: fp asimd bf16\n")  # of ARM: nothing was measured there
    assert not resources.processor_computes_bfloat16(tmp_path / "cpuinfo")


@pytest.mark.parametrize(
    "processor, gpus, cuda, dtype",
    [
        (True, "", False, "bfloat16"),
        (False, "0", True, "bfloat16"),
        (False, "0", False, "float32"),
        (False, "", True, "float32"),
    ],
)
def test_bfloat16_is_faster_with_a_processor_for_it_or_a_gpu_in_use(monkeypatch, processor, gpus, cuda, dtype):
    monkeypatch.setattr(resources, "processor_computes_bfloat16", lambda: processor)
    monkeypatch.setattr(resources, "has_cuda", lambda: cuda)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", gpus)
    machine = resources.this_machine()
    assert machine.faster_dtype == dtype
    assert algorithms.preset("laptop", None, machine).network.compute_dtype == dtype


def test_cuda_is_there_if_pip_or_the_system_has_its_libraries(monkeypatch, tmp_path):
    find = resources.has_cuda.__wrapped__
    monkeypatch.setattr(resources, "CUDNN", str(tmp_path / "none.so"))
    monkeypatch.setattr(resources.importlib.util, "find_spec", lambda name: None)
    assert not find()
    monkeypatch.setattr(resources, "CUDNN", None)  # of this program itself: it can be loaded
    assert find()
    monkeypatch.setattr(resources, "CUDNN", str(tmp_path / "none.so"))
    monkeypatch.setattr(resources.importlib.util, "find_spec", lambda name: name)
    assert find()


def test_a_type_that_is_emulated_is_warned_of():
    emulating = Machine(2, 16 * GB)
    asked = config_of(2).changed(network={"compute_dtype": "bfloat16"})
    (warning,) = resources.check_machine(asked, emulating)
    assert warning.startswith("--compute-dtype bfloat16: ") and warning.endswith("use float32")
    assert resources.check_machine(asked, emulating._replace(bfloat16=True)) == []
    assert resources.check_machine(asked.changed(network={"network": "mlp"}), emulating) == []
    assert len(resources.check_machine(asked, emulating._replace(cores=1))) == 2


def test_shards():
    resources.check_shards(parameters=4, servers=4)
    with pytest.raises(UsageError, match="--parameter-servers 5: the network has 4 parameters"):
        resources.check_shards(parameters=4, servers=5)


def test_this_machine_has_something():
    machine = resources.this_machine()
    assert machine.cores >= 1
    assert machine.memory_bytes > 0


def test_control_group_limit(tmp_path):
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("400\n")
    assert resources._control_group_memory(tmp_path) == 600
    (tmp_path / "memory.stat").write_text("anon 50\nfile 350\nshmem 50\nactive_file 100\ninactive_file 200\n")
    assert resources._control_group_memory(tmp_path) == 900, "files that were read are given up for whoever needs it"
    (tmp_path / "memory.stat").write_text("anon 50\n")
    assert resources._control_group_memory(tmp_path) == 600
    (tmp_path / "memory.max").write_text("max\n")
    assert resources._control_group_memory(tmp_path) == 1 << 62
    assert resources._control_group_memory(tmp_path / "none") == 1 << 62


def test_the_limit_of_each_control_group_around_that_of_this_process_counts(tmp_path):
    own, root = tmp_path / "own", tmp_path / "groups"

    def group(name: str, limit: str, used: int) -> None:
        (root / name).mkdir(parents=True, exist_ok=True)
        (root / name / "memory.max").write_text(f"{limit}\n")
        (root / name / "memory.current").write_text(f"{used}\n")

    own.write_text("4:memory:/elsewhere\n0::/job/step/task\n")
    group("job", "1000", 700)
    group("job/step", "max", 700)
    group("job/step/task", "900", 400)
    group("job/step/other", "10", 0)
    assert resources._control_group_memory(root, own) == 300, "what the job has left, though the task may take 500"
    group("job", "max", 700)
    assert resources._control_group_memory(root, own) == 500
    group("", "450", 50)
    assert resources._control_group_memory(root, own) == 400, "in a container the root has a limit, too"
    for text in ("0::/\n", "0::/../beside\n", "0::/gone/since (deleted)\n", "4:memory:/job\n"):
        own.write_text(text)
        assert resources._control_group_memory(root, own) == 400, text
    assert resources._control_group_memory(root, tmp_path / "none") == 400
