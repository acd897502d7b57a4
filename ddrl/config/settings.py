"""The settings of a run by groups, and all together.

The field docstrings are the texts of `--help`. Units are in the names or in the docstrings.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Any, Literal

from ddrl import checks, plugins
from ddrl.config import validation
from ddrl.config.algorithm import LONGEST_ROLLOUT, AlgorithmConfig, FromReplay, FromUnrolls
from ddrl.config.apex import ApexConfig
from ddrl.config.evaluation import EvaluationConfig
from ddrl.errors import UsageError
from ddrl.exchange.settings import ExchangeConfig, OptimizerConfig
from ddrl.replay.settings import ReplayConfig
from ddrl.types import Continuous

CONVOLUTIONAL = ("a3c", "nature", "ba3c", "impala")
DENSE = ("mlp",)
FUNCTION = re.compile(r"\w+(\.\w+)*:\w+")  # module:function
MOST_SIMULATORS, MOST_THREADS, MOST_BATCHES, MOST_NEURONS = 65_536, 4_096, 4_096, 1_000_000
MOST_RANDOM_STEPS, MOST_LAYER_NEURONS = 1_000_000, 65_536
"""Beyond these a rank would allocate until the machine gives up, where somebody mistyped a number."""
LONGEST_TIME = 100_000_000  # minutes or seconds: three years and more, which Python can wait for


@dataclasses.dataclass(frozen=True)
class EnvironmentConfig:
    """Environment."""

    game: str = "breakout"
    """Atari game, Gymnasium id, or a name that a --plugin registers. An Atari game is the name of a ROM in snake case
    (breakout, space_invaders). A Gymnasium id, such as CartPole-v1 or ddrl/Catch-v0, may begin with the module that
    registers it (my_module:My/Thing-v0). Scenarios of Google Research Football begin with football/
    (football/academy_3_vs_1_with_keeper)."""
    game_options: tuple[str, ...] = ()
    """Arguments with which the environment is made, as in is_slippery=False map_name=8x8. They apply in evaluation,
    too. A value is a number, True, False, None, a list or tuple as Python writes it, or else a text."""
    wrappers: tuple[str, ...] = ()
    """Wrappers that plugins register, by name, innermost first. They apply in evaluation, too. NAME:KEY=VALUE,KEY=VALUE
    gives a wrapper options, with values as in --game-options."""
    protocol: Literal["nature", "machado18", "ba3c", "stooke"] = "nature"
    """Named evaluation protocol for Atari. It is stamped into every result."""
    backend: Literal["auto", "envpool"] = "auto"
    """What steps the simulators. auto: ale-py's threads for Atari where they support the protocol, and Gymnasium for
    everything else; envpool: EnvPool's threads, for the games that it has (extra `envpool`)."""
    life_loss_terminal: bool = False
    """Treat the loss of a life as the end of an episode. This affects training returns only; the game goes on."""
    reset: Literal["at-once", "in-pause", "swap"] = "at-once"
    """When an environment is reset after a training episode. at-once: when its next step is due; in-pause: while the
    learner works, and the environment idles until then; swap: beforehand, in a second instance that takes over. Atari's
    native threads support only at-once."""
    episode_frames: int = 0
    """Frames after which a training episode of an Atari game is cut off (0: as in the protocol)."""
    random_start_steps: int = 0
    """Largest number of random actions before training (0: none). Each simulator draws its own number up to this."""
    step_time_mean_ms: float = 0.0
    """Mean of the shortest time that a simulator's step takes, in milliseconds (0: off). The times are drawn from a
    Gamma distribution."""
    step_time_cv: float = 0.0
    """Standard deviation of those times, divided by their mean (1: exponential, 0: all equal)."""
    step_time_straggler: float = 1.0
    """How many times as long those times are in the last worker (1: as long as in the others). It makes a straggler, to
    see what it costs, and what --quorum gains."""
    pin_simulators: bool = False
    """Pin each simulator thread or process to one core of this process's affinity mask."""
    simulator_processes: int = 0
    """Processes per group that step its simulators (0: the group's own thread does). There are never more of them than
    simulators. Atari's native threads use none."""
    football_view: Literal["map", "pixels"] = "map"
    """What a football player sees: the extracted map of 4 planes, or the picture in color. Both have 72x96 pixels and 4
    frames."""
    football_players: int = 1
    """Football players of the left team that the policy controls. Each has its own observation and action."""
    football_checkpoints: bool = False
    """Reward 0.1 for each tenth of the way to the goal with the ball. This is for training only; scores are still
    goals."""

    def __post_init__(self) -> None:
        checks.known(self)
        if not self.game.strip():
            raise UsageError("--game is empty: name an Atari game (breakout) or a Gymnasium id (CartPole-v1)")
        plugins.game_arguments(self.game_options)  # which refuses what cannot be one
        checks.at_least(self, 0, "episode_frames")
        checks.between(self, 0, MOST_RANDOM_STEPS, "random_start_steps")
        checks.between(self, 0, MOST_SIMULATORS, "simulator_processes")
        checks.at_least(self, 0.0, "step_time_mean_ms", "step_time_cv")
        checks.between(self, 1, 11, "football_players", why="a team has 11")
        if self.step_time_cv and not self.step_time_mean_ms:
            checks.refuse(self, "step_time_cv", "there are no step times to vary; give --step-time-mean-ms")
        checks.at_least(self, 1.0, "step_time_straggler")
        if self.step_time_straggler > 1.0 and not self.step_time_mean_ms:
            checks.refuse(self, "step_time_straggler", "there are no step times to stretch; give --step-time-mean-ms")
        if self.backend == "envpool":
            checks.unused(self, "EnvPool resets games at once (--backend envpool); leave one of the two out", "reset")
            why = "EnvPool steps simulators in threads; give --simulator-threads, or leave --backend out"
            checks.unused(self, why, "simulator_processes")
        if self.backend == "envpool" or self.game.startswith("football/"):
            whose = "EnvPool" if self.backend == "envpool" else "football"
            for name, what in (("game_options", "options"), ("wrappers", "wrappers")):
                why = f"{what} are for Gymnasium's single environments, not for {whose}'s; leave it out"
                checks.unused(self, why, name)
        if not self.game.startswith("football/"):
            why = f"--game {self.game} is not football; leave it out"
            checks.unused(self, why, "football_view", "football_players", "football_checkpoints")


@dataclasses.dataclass(frozen=True)
class NetworkConfig:
    """Network."""

    network: str = "nature"
    """Architecture: a3c, nature, ba3c, impala (images) or mlp (vectors). a3c has 2 convolutions and 256 neurons, nature
    3 and 512, ba3c 4 and --fc-neurons, impala 15 in residual blocks and 256. A --plugin may register others, and
    module:function names a function that makes one (docs/extending.md). Without this option, a game without images gets
    mlp."""
    fc_neurons: int = 128
    """Neurons of the fully connected layer of the ba3c network (16 to 256)."""
    compute_dtype: Literal["float32", "bfloat16"] = "float32"
    """Data type of activations and kernels. Master weights, heads, losses, and networks for vectors (mlp, DPG, SAC) are
    always float32. Processors without instructions for bfloat16 (avx512_bf16 or amx_bf16) emulate it, several times
    slower."""
    hidden_layers: tuple[int, ...] = ()
    """Neurons of each hidden layer of mlp, in each head's tower (none: 64 64)."""
    activation: Literal["default", "tanh", "relu", "elu", "gelu", "silu"] = "default"
    """Activation of the hidden layers of mlp, DPG, and SAC (default: tanh; relu for SAC)."""
    layer_norm: bool = False
    """Apply layer normalization before the activations of those hidden layers (Ba et al. 2016)."""
    policy_layers: tuple[int, ...] = (300, 200)
    """Neurons of each hidden layer of the policy."""
    critic_layers: tuple[int, ...] = (400, 300)
    """Neurons of each hidden layer of the critic. The action enters after the first layer; in SAC, before it."""
    initial_log_deviation: float = 0.0
    """Logarithm of the standard deviation with which the Gaussian policy of an actor-critic begins. With 0, a network
    of your own keeps its own initial value."""
    normalize_observations: bool = False
    """Normalize observations by their running mean and standard deviation, clipped to +-10. The statistics are those of
    all workers, and are frozen in evaluation. Byte images are left as they are."""

    def __post_init__(self) -> None:
        checks.known(self)
        checks.between(self, 1, MOST_NEURONS, "fc_neurons")
        for name in ("policy_layers", "critic_layers"):
            if not getattr(self, name) or min(getattr(self, name)) < 1:
                checks.refuse(self, name, "give one or more hidden layers of at least 1 neuron each")
        why = "beyond, actions are all alike or at the ends of their range"
        checks.between(self, -20.0, 2.0, "initial_log_deviation", why=why)
        if min(self.hidden_layers, default=1) < 1:
            checks.refuse(self, "hidden_layers", "a hidden layer has at least 1 neuron")
        for name in ("hidden_layers", "policy_layers", "critic_layers"):
            if max(getattr(self, name), default=1) > MOST_LAYER_NEURONS:
                checks.refuse(self, name, f"a hidden layer has at most {MOST_LAYER_NEURONS} neurons")
        if not FUNCTION.fullmatch(self.network):
            known = dict.fromkeys([*CONVOLUTIONAL, *DENSE, *plugins.networks.names()])
            checks.registered(self, "network", list(known), ", module:function")
        if self.network in CONVOLUTIONAL:
            why = f"--network {self.network} has the layers of its paper; leave it out, or use --network mlp"
            checks.unused(self, why, "hidden_layers", "activation", "layer_norm")


@dataclasses.dataclass(frozen=True)
class SamplingConfig:
    """Sampling."""

    schedule: Literal["asynchronous", "synchronized", "double-buffered", "standard", "concurrent"] = "asynchronous"
    """When workers act and when they learn. asynchronous: predictor threads act beside the trainer (BA3C, IMPALA);
    synchronized: acting and learning take turns (A2C, PPO); double-buffered: both at once, one rollout apart (HTS-RL);
    standard: with a replay, acting and learning take turns (DQN); concurrent: with a replay, both at once, acting with
    the parameters of the target network and setting priorities once per target period (fast DQN)."""
    simulators: int = 32
    """Environments per worker, or per actor of Ape-X. The groups share them equally."""
    groups: int = 2
    """Groups of simulators per worker, each with a thread. The policy serves one group while another steps."""
    rollout_length: int = 0
    """Agent steps of each simulator between two synchronizations (0: --unroll-length). HTS-RL calls this alpha."""
    refresh_every_steps: int = 0
    """Agent steps within a rollout after which acting takes newer parameters (0: never)."""
    predictors: int = 0
    """Predictor threads that serve all groups together, as in HTS-RL (0: none). Without them, each group queries the
    policy itself."""
    predict_batch: int = 0
    """Observations per query of the policy (0: all of a group). With --predictors, 0 means those of all simulators. A
    query takes the observations that are ready first."""
    simulator_threads: int = 1
    """Smallest number of emulator threads per group. A rank with cores to spare has more, as `ddrl plan` shows."""
    queue_batches: int = 2
    """Largest number of batches in the training queue. Acting waits while it is full, which bounds the lag."""

    def __post_init__(self) -> None:
        checks.known(self)
        checks.between(self, 1, MOST_SIMULATORS, "simulators", "groups")
        checks.between(self, 1, MOST_BATCHES, "queue_batches")
        checks.between(self, 0, LONGEST_ROLLOUT, "rollout_length")
        checks.at_least(self, 0, "refresh_every_steps")
        checks.between(self, 0, MOST_THREADS, "predictors")
        why = "0 would mean all cores of the machine, in every rank"
        checks.between(self, 1, MOST_THREADS, "simulator_threads", why=why)
        if self.simulators % self.groups:
            checks.refuse(
                self, "simulators", f"must be a multiple of --groups {self.groups}: all groups have the same size"
            )
        group = self.simulators // self.groups
        if not self.predictors:  # these take whole groups, of all players: see the validation
            why = "a group has no more simulators than that, so a larger batch would wait forever"
            checks.between(self, 0, group, "predict_batch", why=why)


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """Run."""

    minutes: float = 10.0
    """Training time of this run, in minutes of wall time (0: no such budget). It begins anew at a --resume, and counts
    over all starts with --resume-or-start. Training that a restart loses does not count: it is done again. The final
    evaluation, curve, and video follow."""
    agent_steps: int = 0
    """Budget in agent steps of all workers (0: none). Steps from before a resume are included. Workers report their
    steps once a second, so a run makes up to a second's more."""
    max_updates: int = 0
    """Budget in updates (0: none). Updates from before a resume are included."""
    run_dir: str = ""
    """Directory of the run (default: runs/ALGORITHM-GAME-TIME). It must hold nothing else, unless the run is
    resumed."""
    plugins: tuple[str, ...] = ()
    """User modules that every process of the run imports first: see --plugin."""
    seed: int = 1
    """Seed of initial parameters, environments, and action draws."""
    init_from: str = ""
    """Begin with the parameters of an earlier run, named as RUN or RUN:CHECKPOINT (default: parameters are drawn). RUN
    is its directory, or the file of one of its checkpoints; CHECKPOINT is the number of an update, best (of the run's
    best evaluation), or a file, and without it the newest is taken. Both networks must have the same tensors. Nothing
    but the parameters is taken; to continue a run, use --resume."""
    checkpoint_every_minutes: float = 5.0
    """Minutes between checkpoints. There is always one at the end."""
    checkpoint_every_updates: int = 0
    """Updates between checkpoints (0: by time only)."""
    checkpoints_kept: int = 3
    """Number of newest checkpoints kept on disk."""
    reset_at_checkpoint: bool = False
    """At each checkpoint by --checkpoint-every-updates (there is none by time then), reset environments whose state
    cannot be saved. A resumed run then equals an uninterrupted one."""
    deterministic: bool = False
    """Promise the same parameters for the same seed, to the bit, or refuse to run. The hash of each version's
    parameters is written to parameter_hashes.txt."""
    stall_seconds: float = 300.0
    """End the job when a rank waits this long for something that is due, and say for what (0: never)."""
    start_seconds: float = 180.0
    """End the job when a rank has not begun after this time, and say which. In a job that
    mpirun or srun started, the first messages between ranks have a third of it. First gradients, which are compiled,
    and other things that happen once have at least this long, however short --stall-seconds is."""
    max_refused_steps: int = 10
    """End the run as failed once this many steps in all were refused because a gradient was not finite."""
    max_restarts: int = 3
    """Largest number of restarts after the loss of a server or the chief without a new checkpoint in between. See
    --on-server-loss."""
    log_every_seconds: float = 5.0
    """Seconds between lines of metrics.jsonl."""
    loggers: tuple[str, ...] = ("tensorboard",)
    """Where metrics go, besides metrics.jsonl. The choices are tensorboard, wandb, and mlflow (extras of these names),
    and what plugins register. NAME:KEY=VALUE,KEY=VALUE gives one options."""
    callbacks: tuple[str, ...] = ()
    """Callbacks that plugins register. The chief calls them. NAME:KEY=VALUE,KEY=VALUE gives one options."""
    norms_every_updates: int = 0
    """Updates between measurements of the norms of each layer (0: none). Parameters, gradients, and steps are
    measured."""
    video: bool = True
    """Record a video of the agent at the end of the run: the best of several games, at most a minute."""

    def __post_init__(self) -> None:
        checks.at_least(self, 0, "minutes", "agent_steps", "max_updates", why="0: no such budget")
        checks.at_least(self, 0, "checkpoint_every_updates", "norms_every_updates", "max_restarts", "stall_seconds")
        checks.seed(self)
        checks.above(self, 0.0, "checkpoint_every_minutes", "log_every_seconds", "start_seconds")
        for name in ("minutes", "checkpoint_every_minutes", "stall_seconds", "log_every_seconds", "start_seconds"):
            checks.between(self, 0, LONGEST_TIME, name)
        checks.at_least(self, 1, "checkpoints_kept", "max_refused_steps")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """A whole run."""

    environment: EnvironmentConfig = EnvironmentConfig()
    network: NetworkConfig = NetworkConfig()
    algorithm: AlgorithmConfig
    sampling: SamplingConfig = SamplingConfig()
    replay: ReplayConfig = ReplayConfig()
    apex: ApexConfig = ApexConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    exchange: ExchangeConfig = ExchangeConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    run: RunConfig = RunConfig()

    def __post_init__(self) -> None:
        validation.check(self)

    @property
    def single_process(self) -> bool:
        """Whether the run is one process without MPI, which evaluates in line."""
        return self.exchange.servers == 0 and self.exchange.workers == 1 and not self.apex.actors

    @property
    def ranks(self) -> int:
        """Ranks of the job."""
        apex = self.apex.actors + self.apex.replay_shards if self.apex.actors else 0
        return self.exchange.ranks + apex + (self.evaluation.evaluator and not self.single_process)

    @property
    def acting_ranks(self) -> int:
        """Ranks that act in training: the actors of Ape-X, or else the workers."""
        return self.apex.actors or self.exchange.workers

    @property
    def has_replay(self) -> bool:
        """Whether the algorithm learns from a replay."""
        return isinstance(self.algorithm.learns_from, FromReplay)

    @property
    def has_replay_in_workers(self) -> bool:
        """Whether each worker has a replay of its own; that of Ape-X is in ranks of its own."""
        return self.has_replay and not self.apex.actors

    @property
    def shard_capacity(self) -> int:
        """Transitions that each replay shard of Ape-X keeps: its part of --replay-capacity."""
        return self.replay.replay_capacity // self.apex.replay_shards

    @property
    def has_gaussian_policy(self) -> bool:
        """Whether the policy is a Gaussian where actions are continuous."""
        return Continuous in self.algorithm.takes and not self.has_replay

    @property
    def replay_data(self) -> FromReplay:
        """What the algorithm, one with a replay, learns from it."""
        data = self.algorithm.learns_from
        if not isinstance(data, FromReplay):
            raise TypeError(f"{self.algorithm.name} has no replay")
        return data

    @property
    def rollout_length(self) -> int:
        """Agent steps of every simulator in one rollout, of an algorithm without a replay."""
        data = self.algorithm.learns_from
        return self.sampling.rollout_length or (0 if isinstance(data, FromReplay) else data.unroll_length)

    @property
    def rows(self) -> int:
        """Observations that one step of a worker's simulators gives: one for each player."""
        return self.sampling.simulators * self.environment.football_players

    @property
    def batch_size(self) -> int:
        """Data-points per gradient, per worker."""
        return self.optimizer.batch_size or self.rollout_length * self.rows

    @property
    def effective_batch(self) -> int:
        """Data-points in one update, of all its gradients."""
        exchange = self.exchange
        return self.batch_size * (1 if exchange.asynchronous else exchange.quorum or exchange.workers)

    @property
    def agent_steps_per_update(self) -> float:
        """Agent steps of all workers that one update stands for. The learner of Ape-X does not count them: 0."""
        if self.apex.actors:
            return 0.0
        data = self.algorithm.learns_from
        if isinstance(data, FromReplay):
            return data.steps_per_update * self.effective_batch / self.batch_size
        return self.effective_batch / (1 if isinstance(data, FromUnrolls) else data.epochs)

    @property
    def title(self) -> str:
        """The name of algorithm, schedule and exchange together: ba3c, a2c, a3c, hts-ppo, rainbow, ..."""
        return self.algorithm.title(self)

    def changed(self, **groups: Any) -> TrainConfig:
        """These settings with others in some groups: each a dict of settings to change, or a whole new group.

        Raises:
            UsageError: for settings that cannot be.
        """
        new = {
            name: dataclasses.replace(getattr(self, name), **change) if isinstance(change, dict) else change
            for name, change in groups.items()
        }
        return dataclasses.replace(self, **new)
