"""Settings: what is refused, in which words; ranks of a job; JSON there and back; presets."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest

from ddrl import algorithms, rundir
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
from ddrl.options.train_options import parse
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


def test_unknown_preset():
    with pytest.raises(UsageError, match="--preset other: there is none"):
        algorithms.preset("other", None, TWO_CORES)


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
