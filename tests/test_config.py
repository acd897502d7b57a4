"""Settings: what is refused, in which words; JSON there and back; presets; what fits a machine."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import math
import os
import socket
import types

import pytest

from ddrl import algorithms, run_lock, rundir
from ddrl.algorithms import ba3c
from ddrl.algorithms.ba3c import BA3CConfig
from ddrl.config import (
    EnvironmentConfig,
    EvaluationConfig,
    ExchangeConfig,
    NetworkConfig,
    OptimizerConfig,
    RunConfig,
    SamplingConfig,
    TrainConfig,
)
from ddrl.errors import UsageError
from ddrl.launch.job import quieten
from ddrl.options.train_options import parse
from ddrl.placement import resources
from ddrl.reporting.metrics import MetricsWriter
from ddrl.types import Machine

GB = 10**9
TWO_CORES = Machine(2, 16 * GB)

REFUSED = [
    (EnvironmentConfig, {"game": " "}, "--game is empty"),
    (
        EnvironmentConfig,
        {"wrappers": ("a",), "game": "football/x"},
        "--wrappers a: wrappers are for Gymnasium's single environments",
    ),
    (
        EnvironmentConfig,
        {"game_options": ("a=1", "b=2"), "game": "football/x"},
        "--game-options a=1 b=2: options are for Gymnasium's single environments, not for football's; leave it out",
    ),
    (
        EnvironmentConfig,
        {"game_options": ("a=1",), "game": "CartPole-v1", "backend": "envpool"},
        "--game-options a=1: options are for Gymnasium's single environments, not for EnvPool's; leave it out",
    ),
    (EnvironmentConfig, {"game_options": ("a",)}, "--game-options a: it is not KEY=VALUE; write is_slippery=False, "),
    (EnvironmentConfig, {"game_options": ("a-b=1",)}, "--game-options a-b=1: it is not KEY=VALUE"),
    (EnvironmentConfig, {"game_options": ("=1",)}, "--game-options =1: it is not KEY=VALUE"),
    (EnvironmentConfig, {"game_options": ("a=1", "a=2")}, "--game-options a=2: a is there twice; give it once"),
    (EnvironmentConfig, {"game_options": ("id=x",)}, "--game-options id=x: ddrl gives id itself; leave it out"),
    (
        EnvironmentConfig,
        {"game_options": ("render_mode=human",)},
        "--game-options render_mode=human: ddrl gives render_mode itself; leave it out",
    ),
    (EnvironmentConfig, {"game_options": ("a=false",)}, "--game-options a=false: the value would be a text; write a=F"),
    (
        EnvironmentConfig,
        {"game_options": ("a=False,b=2",)},
        "--game-options a=False,b=2: a comma does not separate options; write spaces between them",
    ),
    (EnvironmentConfig, {"protocol": "other"}, "--protocol other: must be one of nature"),
    (NetworkConfig, {"network": "resnet"}, "--network resnet: must be one of a3c"),
    (NetworkConfig, {"fc_neurons": 0}, "--fc-neurons 0"),
    (SamplingConfig, {"simulators": 10, "groups": 3}, "--simulators 10: must be a multiple of --groups 3"),
    (SamplingConfig, {"simulators": 0}, "--simulators 0"),
    (SamplingConfig, {"simulators": 8, "groups": 2, "predict_batch": 5}, "--predict-batch 5: must be between 0 and 4"),
    (SamplingConfig, {"simulator_threads": 0}, "--simulator-threads 0"),
    (EnvironmentConfig, {"episode_frames": 10**400}, "--episode-frames 1000"),
    (OptimizerConfig, {"learning_rate": -1e-3}, "--learning-rate -0.001"),
    (OptimizerConfig, {"learning_rate": math.inf}, "--learning-rate inf"),
    (OptimizerConfig, {"learning_rate": math.nan}, "--learning-rate nan"),
    (OptimizerConfig, {"adam_epsilon": -1e-8}, "--adam-epsilon -1e-08"),
    (OptimizerConfig, {"adam_epsilon": math.nan}, "--adam-epsilon nan"),
    (OptimizerConfig, {"rmsprop_epsilon": math.inf}, "--rmsprop-epsilon inf"),
    (OptimizerConfig, {"beta1": 1.0}, "--beta1 1.0"),
    (OptimizerConfig, {"beta2": math.nan}, "--beta2 nan"),
    (OptimizerConfig, {"clip_global_norm": -0.5}, "--clip-global-norm -0.5"),
    (OptimizerConfig, {"learning_rate_scaling": "linear"}, "--learning-rate-scaling linear: it says how"),
    (OptimizerConfig, {"learning_rate_batch": 64}, "--learning-rate-scaling none: it says how"),
    (OptimizerConfig, {"batch_size": -1}, "--batch-size -1"),
    (TrainConfig, {"algorithm": BA3CConfig(), "optimizer": OptimizerConfig(batch_size=0)}, "--batch-size 0: ba3c has"),
    (BA3CConfig, {"epochs": 0}, "--epochs 0"),
    (BA3CConfig, {"epochs": 2, "pool_batches": 1}, "--pool-batches 1: must be a finite number of at least 2"),
    (BA3CConfig, {"clip_range": 1.5}, "--clip-range 1.5"),
    (BA3CConfig, {"clip_range": 0.1, "importance_clip": 1.0}, "--importance-clip 1.0: --clip-range clips the same"),
    (ExchangeConfig, {"workers": 4, "quorum": 5}, "--quorum 5: no step could ever close"),
    (ExchangeConfig, {"workers": 0}, "--workers 0"),
    (ExchangeConfig, {"workers": 2, "parameter_servers": 0}, "--parameter-servers 0: --workers 2 need at least 1"),
    (ExchangeConfig, {"workers": 1, "parameter_servers": 0, "chief": "dedicated"}, "--chief dedicated"),
    (
        ExchangeConfig,
        {"exchange": "allreduce", "parameter_servers": 2},
        "--parameter-servers 2: --exchange allreduce has none",
    ),
    (ExchangeConfig, {"exchange": "allreduce", "quorum": 1}, "--quorum 1: --exchange allreduce averages all"),
    (
        ExchangeConfig,
        {"exchange": "allreduce", "quorum_deadline_seconds": 0.5},
        "--quorum-deadline-seconds 0.5: --exch",
    ),
    (
        ExchangeConfig,
        {"exchange": "allreduce", "updates": "asynchronous"},
        "--updates asynchronous: --exchange allreduce",
    ),
    (ExchangeConfig, {"exchange": "allreduce", "max_staleness": 3}, "--max-staleness 3: synchronous gradients"),
    (
        ExchangeConfig,
        {"exchange": "central_store", "quorum": 1},
        "--quorum 1: --exchange central_store closes no steps",
    ),
    (
        ExchangeConfig,
        {"local_steps": 3},
        "--local-steps 3: --exchange parameter_server has no steps between synchronizations",
    ),
    (
        ExchangeConfig,
        {"exchange": "central_store", "chief": "dedicated"},
        "--chief dedicated: with --exchange central_st",
    ),
    (ExchangeConfig, {"updates": "asynchronous", "quorum": 1}, "--quorum 1: asynchronous"),
    (ExchangeConfig, {"updates": "asynchronous", "quorum_deadline_seconds": 1.0}, "--quorum-deadline-seconds 1.0"),
    (ExchangeConfig, {"max_staleness": 3}, "--max-staleness 3: synchronous"),
    (EvaluationConfig, {"eval_time_share": 1.5}, "--eval-time-share 1.5"),
    (EvaluationConfig, {"eval_time_share": math.nan}, "--eval-time-share nan"),
    (BA3CConfig, {"entropy_cost_start": 0.001}, "--entropy-cost-start 0.001: it falls to --entropy-cost 0.01"),
    (BA3CConfig, {"entropy_cost_start": -1.0}, "--entropy-cost-start -1.0: must be a finite number of at least 0"),
    (BA3CConfig, {"entropy_cost_start_share": 0.0}, "--entropy-cost-start-share 0.0: must be a finite number above 0"),
    (BA3CConfig, {"entropy_cost_start_share": 1.5}, "--entropy-cost-start-share 1.5: must be between 0.0 and 1.0"),
    (BA3CConfig, {"discount_start": 0.99}, "--discount-start 0.99: it grows to --discount 0.99"),
    (BA3CConfig, {"discount_start": 0.9, "discount": 1.0}, "--discount-start 0.9: it grows to --discount 1, "),
    (BA3CConfig, {"discount_start": 1.5}, "--discount-start 1.5: must be between 0.0 and 1.0"),
    (BA3CConfig, {"discount_start_share": 0.0}, "--discount-start-share 0.0: must be a finite number above 0"),
    (EvaluationConfig, {"target_score": math.nan}, "--target-score nan"),
    (EvaluationConfig, {"target_score": 3.0, "evaluator": False}, "--target-score 3.0: only an evaluator"),
    (EvaluationConfig, {"stop_at_target": False}, "--no-stop-at-target: there is no --target-score to"),
    (EvaluationConfig, {"target_score": 3.0, "eval_time_share": 0.0}, "--target-score 3.0: with --eval-time-share 0"),
    (
        EvaluationConfig,
        {"target_score": 3.0, "eval_agent_steps": 9},
        "--target-score 3.0: --eval-agent-steps scores only",
    ),
    (RunConfig, {"minutes": -1.0}, "--minutes -1.0"),
    (RunConfig, {"minutes": math.inf}, "--minutes inf"),
    (RunConfig, {"agent_steps": -1}, "--agent-steps -1"),
    (RunConfig, {"checkpoints_kept": 0}, "--checkpoints-kept 0"),
]


@pytest.mark.parametrize("kind, values, message", REFUSED)
def test_what_cannot_be_is_refused_in_one_line(kind, values, message):
    with pytest.raises(UsageError) as refused:
        kind(**values)
    assert str(refused.value).startswith(message)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("values", [{"discount": 1.5}, {"unroll_length": 0}, {"entropy_cost": math.nan}])
def test_the_algorithms_settings_are_checked_with_the_rest(values):
    with pytest.raises(UsageError, match="--" + next(iter(values)).replace("_", "-")):
        TrainConfig(algorithm=BA3CConfig(**values))


def test_field_names_are_unique_so_that_flags_can_be_flat():
    groups = [field.default for field in dataclasses.fields(TrainConfig) if field.name != "algorithm"]
    for algorithm in algorithms.ALGORITHMS.values():
        names = [field.name for group in [*groups, algorithm.settings] for field in dataclasses.fields(group)]
        assert len(names) == len(set(names)), algorithm.name


def test_ranks():
    assert TrainConfig(algorithm=BA3CConfig()).ranks == 4
    single = TrainConfig(algorithm=BA3CConfig(), exchange=ExchangeConfig(workers=1, parameter_servers=0))
    assert single.single_process and single.ranks == 1
    assert algorithms.preset("ba3c-paper", None, TWO_CORES).ranks == 70


@pytest.mark.parametrize(("name", "has"), [("dqn", True), ("apex-dqn", False), ("ba3c", False)])
def test_workers_have_a_replay_where_no_others_act(name, has):
    assert parse([name], TWO_CORES).config.has_replay_in_workers is has


@pytest.mark.parametrize("name", ["allreduce", "central_store"])
def test_an_exchange_without_servers_needs_no_second_flag(name):
    config = dataclasses.replace(
        TrainConfig(algorithm=BA3CConfig()),
        exchange=dataclasses.replace(ba3c.smoke("x", TWO_CORES).exchange, exchange=name),
    )
    assert config.exchange.servers == 0 and config.ranks == 3 and not config.single_process
    assert config.exchange.asynchronous == (name == "central_store")


@pytest.mark.parametrize("workers, servers", [(1, 1), (8, 1), (9, 2), (64, 8)])
def test_servers_that_nobody_asked_for(workers, servers):
    assert ExchangeConfig(workers=workers).servers == servers


def a_config() -> TrainConfig:
    return algorithms.preset("ba3c-paper", "pong", TWO_CORES)


def test_json_round_trip():
    config = a_config()
    assert rundir.config_from_dict(json.loads(json.dumps(rundir.config_to_dict(config)))) == config


def test_a_tuple_comes_back_from_json():
    network = NetworkConfig(network="mlp", critic_layers=(3, 4, 5))
    config = dataclasses.replace(algorithms.preset("default", None, TWO_CORES, "dpg"), network=network)
    assert rundir.config_from_dict(json.loads(json.dumps(rundir.config_to_dict(config)))) == config


def test_a_missing_setting_has_its_default_and_an_int_may_stand_for_a_float():
    data = {"format": 1, "algorithm_name": "ba3c", "run": {"minutes": 3}}
    config = rundir.config_from_dict(data)
    assert config == TrainConfig(algorithm=BA3CConfig(), run=RunConfig(minutes=3.0))
    assert type(config.run.minutes) is float


@pytest.mark.parametrize(
    "change, message",
    [
        ({"format": 99}, "not a configuration of this version"),
        ({"algorithm_name": "sarsa"}, "not a configuration of this version"),
        ({"color": {}}, "unknown setting 'color'"),
        ({"run": {"color": 1}}, "unknown setting 'color'"),
        ({"run": []}, "must be an object"),
        ({"run": {"minutes": "3"}}, "not of type float"),
        ({"run": {"video": 1}}, "not of type bool"),
        ({"exchange": {"workers": True}}, "not of type int"),
        ({"evaluation": {"target_score": "x"}}, "not of type float or NoneType"),
        ({"network": {"network": ["a3c"]}}, "network is .*, which is not of type str"),
        ({"network": {"policy_layers": 3}}, "policy_layers is 3, which is not a list"),
        ({"network": {"policy_layers": [3, "a"]}}, "policy_layers is 'a', which is not of type int"),
        ({"optimizer": {"learning_rate": -1.0}}, "--learning-rate"),
    ],
)
def test_foreign_json_is_refused(change, message):
    with pytest.raises(UsageError, match=message):
        rundir.config_from_dict(rundir.config_to_dict(TrainConfig(algorithm=BA3CConfig())) | change)


def test_run_directory_is_made_once(tmp_path):
    config = TrainConfig(algorithm=BA3CConfig(), run=RunConfig(run_dir=str(tmp_path / "a" / "run")))
    path, made = rundir.create_run_dir(config)
    assert rundir.load_config(path) == made == config
    (path / "precious").write_text("x")
    with pytest.raises(UsageError, match=r"exists, and nothing in it is overwritten.*--resume.*--run-dir"):
        rundir.create_run_dir(config)
    assert sorted(file.name for file in path.iterdir()) == ["config.json", "lock", "precious"]


SETTINGS = '{"algorithm_name": "ba3c"}'
EVENT = '{"kind": "event", "wall_seconds": 0.0, "name": "started", "text": ""}\n'
LEFT = {
    "nothing": {},
    "its settings": {"config.json": SETTINGS, "lock": "", "log.txt": "No space left on device"},
    "no settings": {"config.json": ""},
    "hashes": {"config.json": SETTINGS, "parameter_hashes.txt": ""},
    "half its settings": {".config.json.1f.tmp": ""},
    "half its settings, by an earlier version": {"config.json.17.tmp": ""},
    "ranks that died": {
        "config.json": SETTINGS,
        "result.json": '{"status": "failed"}',
        "ranks/0": "{}",
        "ranks/11": "{}",
    },
    "a stop": {"config.json": SETTINGS, "stop": "", "trained": ""},
    "half its earlier settings": {"config.json": SETTINGS, ".config-0.json.1f.tmp": ""},
    "half a stop": {"config.json": SETTINGS, ".stop.1f.tmp": ""},
    "half a script": {".job.sbatch.1f.tmp": ""},
    "no update": {"metrics.jsonl": EVENT, "events.out.tfevents.1.vm.2.3": "x", "stacks-2.txt": "x", "stalled": ""},
}
WANTED = {
    "a checkpoint": {"config.json": SETTINGS, "checkpoints/update-000000005.npz": ""},
    "a replay": {"replay/worker-0": ""},
    "something else": {"config.json": SETTINGS, "notes.txt": ""},
    "another program's settings": {"config.json": '{"model": "mine"}', "log.txt": ""},
    "updates": {"metrics.jsonl": EVENT + '{"kind": "train", "update": 1}\n'},
    "a damaged line": {"metrics.jsonl": EVENT + "x\n"},
    "a result": {"result.json": '{"status": "finished"}'},
    "a hidden file": {".profile": ""},
}


def left_in(path, files):
    path.mkdir()
    (path / "checkpoints").mkdir()
    for name, text in files.items():
        (path / name).parent.mkdir(exist_ok=True)
        (path / name).write_text(text)
    return path, TrainConfig(algorithm=BA3CConfig(), run=RunConfig(run_dir=str(path)))


@pytest.mark.parametrize("files", LEFT.values(), ids=LEFT)
def test_a_directory_in_which_nothing_was_trained_is_taken(tmp_path, files):
    path, config = left_in(tmp_path / "run", files)
    assert rundir.create_run_dir(config) == (path, config)
    assert rundir.load_config(path) == config


@pytest.mark.parametrize("files", WANTED.values(), ids=WANTED)
def test_a_directory_with_what_may_be_wanted_is_left_as_it_is(tmp_path, files):
    path, config = left_in(tmp_path / "run", files)
    with pytest.raises(UsageError, match="exists, and nothing in it is overwritten|holds other files"):
        rundir.create_run_dir(config)
    assert {str(file.relative_to(path)): file.read_text() for file in path.rglob("*") if file.is_file()} == files


def test_directories_that_are_made_are_not_writable_by_everybody(tmp_path):
    before = os.umask(0)
    try:
        rundir.make_run_dir(tmp_path / "runs" / "one")
    finally:
        os.umask(before)
    assert [path.stat().st_mode & 0o777 for path in (tmp_path / "runs", tmp_path / "runs" / "one")] == [0o775] * 2


def test_earlier_settings_come_in_their_order(tmp_path):
    config = TrainConfig(algorithm=BA3CConfig())
    for number in (0, 2, 10):
        of_part = config.changed(run={"seed": number})
        rundir.write_json(tmp_path / f"config-{number}.json", rundir.config_to_dict(of_part))
    assert [part.run.seed for _, part in rundir.earlier_configs(tmp_path)] == [0, 2, 10]


def test_a_directory_that_is_being_trained_is_not_taken(tmp_path):
    path, config = left_in(tmp_path / "run", {"config.json": SETTINGS})
    with run_lock.locked(path), pytest.raises(UsageError, match="is being trained by another process"):
        rundir.create_run_dir(config)
    assert (path / "config.json").read_text() == SETTINGS


def test_only_who_works_in_a_directory_holds_its_lock(tmp_path):
    assert not run_lock.is_held(tmp_path) and run_lock.holder(tmp_path) == ""
    with run_lock.locked(tmp_path):
        assert run_lock.is_held(tmp_path)
        assert run_lock.holder(tmp_path) == f"process {os.getpid()} on {socket.gethostname()}"
    with (tmp_path / run_lock.LOCK).open("rb") as looks:
        fcntl.flock(looks, fcntl.LOCK_SH)
        assert not run_lock.is_held(tmp_path), "another process looks, too"


@pytest.mark.parametrize(
    "held, restarts, taken, told",
    [
        (0.2, "", True, 0),
        (2.0, "", False, 0),
        (2.0, "0", False, 0),
        (0.2, "1", True, 0),
        (90.0, "1", True, 1),
        (200.0, "2", False, 1),
    ],
)
def test_a_lock_that_is_held_is_tried_again(tmp_path, monkeypatch, capsys, held, restarts, taken, told):
    """Whoever looks at the state of a run holds it for a moment, and a lost node may seem to hold it for longer."""
    pauses = []
    monkeypatch.setenv("SLURM_RESTART_COUNT", restarts)
    monkeypatch.setattr(run_lock, "STARTED", 0.0)
    with (tmp_path / run_lock.LOCK).open("wb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)

        def sleep(seconds):
            pauses.append(seconds)
            if sum(pauses) >= held:
                other.close()

        monkeypatch.setattr(run_lock, "time", types.SimpleNamespace(monotonic=lambda: sum(pauses), sleep=sleep))
        refused = pytest.raises(UsageError, match="is being trained by another process")
        with contextlib.nullcontext() if taken else refused, run_lock.locked(tmp_path):
            pass
    assert capsys.readouterr().err.count("this requeued job waits up to 1") == told


def test_a_requeued_job_waits_once_for_all_locks(tmp_path, monkeypatch, capsys):
    """That of a study and those of its points, or of a search and a trial, are lost with the same node."""
    pauses = []
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    monkeypatch.setattr(run_lock, "STARTED", 0.0)
    clock = types.SimpleNamespace(monotonic=lambda: sum(pauses), sleep=pauses.append)
    monkeypatch.setattr(run_lock, "time", clock)
    with (tmp_path / run_lock.LOCK).open("wb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        for _ in range(2):
            with pytest.raises(UsageError, match="is being trained by another process"), run_lock.locked(tmp_path):
                pass
    assert sum(pauses) < run_lock.REQUEUED_SECONDS + 2.0
    assert capsys.readouterr().err.count("this requeued job waits up to") == 1


@pytest.mark.parametrize(
    "name, why",
    [
        ("~/run", "the shell did not expand ~"),
        ("a\nb", "control characters"),
        ("a\x1b[31m", "control characters"),
        ("/dev/null", "cannot make run directory /dev/null: it is not a directory"),
        ("/dev/null/x", "Not a directory"),
        ("x" * 300, "File name too long"),
    ],
)
def test_names_that_are_no_run_directories(tmp_path, monkeypatch, name, why):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=why) as refused:
        rundir.create_run_dir(TrainConfig(algorithm=BA3CConfig(), run=RunConfig(run_dir=name)))
    assert "\n" not in str(refused.value) and list(tmp_path.iterdir()) == []


def test_run_directory_under_a_file_cannot_be_made(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="choose another --run-dir"):
        rundir.create_run_dir(
            TrainConfig(algorithm=BA3CConfig(), run=RunConfig(run_dir=str(tmp_path / "file" / "run")))
        )


def test_a_json_file_that_cannot_be_written_leaves_no_part_behind(tmp_path):
    (tmp_path / "result.json").mkdir()
    with pytest.raises(OSError):
        rundir.write_json(tmp_path / "result.json", {"status": "finished"})
    assert [path.name for path in tmp_path.iterdir()] == ["result.json"]


def test_a_json_file_is_on_the_disk_before_it_takes_the_place_of_another(tmp_path, monkeypatch):
    """Else a node that goes down leaves an empty one, and with config.json a run that cannot be resumed."""
    calls = []
    for name in ("fsync", "replace"):
        do = getattr(os, name)
        monkeypatch.setattr(rundir.os, name, lambda *words, name=name, do=do: (calls.append(name), do(*words)))
    before = os.umask(0)
    try:
        rundir.write_json(tmp_path / "result.json", {"status": "finished"})
    finally:
        os.umask(before)
    assert calls == ["fsync", "replace"] and rundir.read_json(tmp_path / "result.json") == {"status": "finished"}
    assert (tmp_path / "result.json").stat().st_mode & 0o022 == 0


def test_a_pipe_in_the_place_of_metrics_is_not_waited_for(tmp_path):
    path, config = left_in(tmp_path / "run", {"config.json": SETTINGS})
    os.mkfifo(path / "metrics.jsonl")
    with pytest.raises(OSError, match="no regular file"):
        rundir.create_run_dir(config)


def test_two_hosts_write_one_file_at_once(tmp_path, monkeypatch):
    """Their processes may have the same number, so neither may take the other's temporary file for its own."""
    path, fsync = tmp_path / "result.json", os.fsync

    def meanwhile(descriptor):
        monkeypatch.setattr(os, "fsync", fsync)
        rundir.write_json(path, {"of": "the other"})
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", meanwhile)
    rundir.write_json(path, {"of": "this one"})
    assert rundir.read_json(path) == {"of": "this one"} and list(tmp_path.iterdir()) == [path]


def test_links_in_a_run_of_somebody_else_are_not_followed(tmp_path, monkeypatch):
    outside = tmp_path / "outside"
    outside.write_text("mine")
    monkeypatch.setattr("secrets.token_hex", lambda size: "0")
    (tmp_path / ".result.json.0.tmp").symlink_to(outside)
    rundir.write_json(tmp_path / "result.json", {"status": "finished"})
    (tmp_path / rundir.METRICS).symlink_to(outside)
    with pytest.raises(UsageError, match="cannot write metrics in .*: it is a link, which is not followed"):
        MetricsWriter(tmp_path)
    (tmp_path / rundir.LOG).symlink_to(outside)
    with pytest.raises(OSError, match="it is a link, which is not followed"):
        quieten(tmp_path)
    (tmp_path / run_lock.LOCK).symlink_to(outside)
    with pytest.raises(UsageError, match="lock: it is a link, which is not followed"), run_lock.locked(tmp_path):
        pass
    assert outside.read_text() == "mine" and not (tmp_path / "result.json").is_symlink()


def test_default_run_directory_names_the_game(monkeypatch):
    name = rundir.default_run_dir(
        TrainConfig(algorithm=BA3CConfig(), environment=EnvironmentConfig(game="ddrl/Catch-v0"))
    )
    assert name.startswith("runs/ba3c-ddrl-catch-v0-2")


def test_runs_without_a_name_that_begin_in_the_same_second_have_directories_of_their_own(tmp_path, monkeypatch):
    monkeypatch.setattr(rundir, "default_run_dir", lambda config: str(tmp_path / "runs" / "ppo-pong-1"))
    made = [rundir.create_run_dir(TrainConfig(algorithm=BA3CConfig())) for _ in range(3)]
    assert [path.name for path, _ in made] == ["ppo-pong-1", "ppo-pong-1-2", "ppo-pong-1-3"]
    assert all(rundir.load_config(path) == config and config.run.run_dir == str(path) for path, config in made)


def test_a_default_directory_that_cannot_be_made_is_refused(tmp_path, monkeypatch):
    (tmp_path / "runs").symlink_to(tmp_path / "nowhere")
    monkeypatch.setattr(rundir, "default_run_dir", lambda config: str(tmp_path / "runs" / "ppo-pong-1"))
    with pytest.raises(UsageError, match="cannot make run directory"):
        rundir.create_run_dir(TrainConfig(algorithm=BA3CConfig()))


def test_a_resumed_config_keeps_the_one_before(tmp_path):
    path, first = rundir.create_run_dir(
        TrainConfig(algorithm=BA3CConfig(), run=RunConfig(run_dir=str(tmp_path / "run")))
    )
    rundir.update_run_dir(path, first)
    assert list(path.glob("config-*")) == []
    second = dataclasses.replace(first, exchange=ExchangeConfig(workers=1))
    rundir.update_run_dir(path, second)
    assert rundir.load_config(path) == second
    assert rundir.config_from_dict(rundir.read_json(path / "config-0.json")) == first


def test_what_is_no_run_is_said(tmp_path):
    with pytest.raises(UsageError, match="does not exist, so it is not a run"):
        rundir.load_config(tmp_path / "none")
    with pytest.raises(UsageError, match="is empty, so it is not a run"):
        rundir.load_config(tmp_path)
    (tmp_path / "notes.txt").touch()
    with pytest.raises(UsageError, match="holds no config.json, so it is not a run"):
        rundir.load_config(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(UsageError, match="is damaged"):
        rundir.load_config(tmp_path)


def test_ba3c_paper_is_the_papers_table():
    config = algorithms.preset("ba3c-paper", "breakout", TWO_CORES)
    assert (config.exchange.workers, config.exchange.parameter_servers, config.exchange.quorum) == (64, 4, 60)
    assert config.exchange.chief == "dedicated"
    optimizer = config.optimizer
    assert (optimizer.learning_rate, optimizer.beta1, optimizer.beta2) == (1e-3, 0.8, 0.75)
    assert optimizer.batch_size * config.exchange.quorum == 1920
    assert (config.network.network, config.network.fc_neurons) == ("ba3c", 128)
    assert config.network.compute_dtype == "float32"


@pytest.mark.parametrize(
    "game, target, epsilon",
    [
        ("breakout", 300.0, 1e-8),
        ("pong", 10.0, 1e-3),
        ("ALE/Pong-v5", 10.0, 1e-3),
        ("SpaceInvadersNoFrameskip-v4", 700.0, 1e-8),
        ("riverraid", 4000.0, 1e-8),
        ("seaquest", 1830.0, 1e-8),
        ("asterix", None, 1e-8),
    ],
)
def test_target_and_epsilon_go_with_the_game(game, target, epsilon):
    config = algorithms.preset("ba3c-paper", game, TWO_CORES)
    assert (config.evaluation.target_score, config.optimizer.adam_epsilon) == (target, epsilon)


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


def test_unknown_preset():
    with pytest.raises(UsageError, match="--preset other: there is none"):
        algorithms.preset("other", None, TWO_CORES)


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


def test_what_the_synchronized_schedule_needs():
    synchronized = SamplingConfig(schedule="synchronized", simulators=8)
    settings = {"algorithm": BA3CConfig(), "sampling": synchronized, "optimizer": OptimizerConfig(batch_size=40)}
    TrainConfig(**settings, run=RunConfig(reset_at_checkpoint=True, checkpoint_every_updates=10))
    with pytest.raises(UsageError, match="^--reset-at-checkpoint: .*say with which: --checkpoint-every-updates"):
        TrainConfig(**settings, run=RunConfig(reset_at_checkpoint=True))
    with pytest.raises(UsageError, match="^--batch-size 39: .* raise it to 40") as error:
        TrainConfig(algorithm=BA3CConfig(), sampling=synchronized, optimizer=OptimizerConfig(batch_size=39))
    assert "\n" not in str(error.value)
    with pytest.raises(UsageError, match="^--reset-at-checkpoint: .*--schedule synchronized"):
        TrainConfig(algorithm=BA3CConfig(), run=RunConfig(reset_at_checkpoint=True))


@pytest.mark.parametrize(
    "words, printed",
    [
        ("rainbow", "epsilon-Rainbow"),
        ("categorical-dqn", "Categorical DQN"),
        ("apex-dqn", "Ape-X DQN"),
        ("hts-a2c", "HTS-A2C"),
        ("appo", "APPO"),
    ],
)
def test_headings_name_algorithms_as_the_papers_do(words, printed):
    assert algorithms.printed_name(parse([words], TWO_CORES).config.title) == printed


def test_settings_of_earlier_resumes_are_never_overwritten(tmp_path):
    path, config = rundir.create_run_dir(
        TrainConfig(algorithm=BA3CConfig(), run=RunConfig(run_dir=str(tmp_path / "run")))
    )
    for seed in (5, 6, 7):
        rundir.update_run_dir(path, dataclasses.replace(config, run=dataclasses.replace(config.run, seed=seed)))
    (path / "config-0.json").unlink()
    rundir.update_run_dir(path, config)
    kept = {name: earlier.run.seed for name, earlier in rundir.earlier_configs(path)}
    assert kept == {"config-1.json": 5, "config-2.json": 6, "config-3.json": 7}


@pytest.mark.parametrize(
    ("exchange", "evaluator", "ranks"),
    [
        (ExchangeConfig(), True, 4),
        (ExchangeConfig(), False, 3),
        (ExchangeConfig(workers=1, parameter_servers=0), True, 1),
        (ExchangeConfig(workers=64, parameter_servers=4, chief="dedicated"), True, 70),
    ],
)
def test_ranks_of_a_job(exchange, evaluator, ranks):
    config = TrainConfig(algorithm=BA3CConfig(), exchange=exchange, evaluation=EvaluationConfig(evaluator=evaluator))
    assert config.ranks == ranks


def test_wrappers_are_named_one_by_one():
    argv = ["ppo", "--game", "CartPole-v1", "--network", "mlp", "--wrappers", "a", "b"]
    config = parse(argv, TWO_CORES).config
    assert config.environment.wrappers == ("a", "b")
    assert rundir.config_from_dict(json.loads(json.dumps(rundir.config_to_dict(config)))) == config


def test_options_of_a_game_are_named_one_by_one():
    options = ("is_slippery=False", "map_name=8x8")
    argv = ["ppo", "--game", "FrozenLake-v1", "--network", "mlp", "--game-options", *options]
    config = parse(argv, TWO_CORES).config
    assert config.environment.game_options == options
    saved = json.loads(json.dumps(rundir.config_to_dict(config)))
    assert rundir.config_from_dict(saved) == config
    del saved["environment"]["game_options"]  # as before there were any
    assert rundir.config_from_dict(saved).environment.game_options == ()
