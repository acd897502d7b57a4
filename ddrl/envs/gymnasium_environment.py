"""Any Gymnasium environment, and the Atari protocols that the native one lacks, stepped in the calling thread."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import gymnasium
import numpy as np

import ddrl.envs.catch  # registers ddrl/Catch-v0 and ddrl/CatchPicture-v0
import ddrl.envs.deep_sea  # noqa: F401  (registers ddrl/DeepSea-v0)
from ddrl.envs.adapted import Adapted, first_start, number_in
from ddrl.envs.base import EpisodeTracker, InTurn, Step, environment_seeds
from ddrl.envs.observations import ObservationFormat, as_bytes, as_numbers, in_space, short
from ddrl.envs.pinning import pin_thread, use_all_cores
from ddrl.envs.saved_state import get_simulator_state, gives_state, set_simulator_state, state_keeper
from ddrl.envs.simulators import PausingSimulator, Simulator, SwappingSimulator, random_start
from ddrl.envs.spaces import action_space_of, check_actions, check_legal, no_actions, random_action, random_start_of
from ddrl.errors import UsageError
from ddrl.structured import ACTION_MASK, has_mask, legal_actions, whole
from ddrl.types import Continuous, Discrete
from ddrl.wording import counted

_DUE = ("reset", "recv", "send")


class GymnasiumEnvironment(InTurn):
    """Simulators stepped one after the other in the calling thread, inside recv.

    recv takes the rows that have waited longest since their send, `batch_size` of them, in order of their numbers.

    Args:
        make: makes one Gymnasium environment; called num_envs times (twice as often for reset 'swap'). An environment
            with an attribute `players` above 1 is a game with that many rows: its step takes that many actions and
            gives that many observations and rewards; `score_reward` of its `info` is what a step adds to the score.
        num_envs: simulators.
        stamp: protocol, settings and versions.
        batch_size: simulators per recv (0: all).
        reset: what happens when an episode has ended; see ddrl.envs.simulators. 'in-pause' waits for `reset_ended`.
        random_start_steps: every simulator begins with a number of random actions of its own, uniform in 0 to this.
        first: number of the first simulator among all simulators with the same seed.
        core: the thread that first calls recv is pinned to this core.

    Attributes:
        first_action: the number that the game has for action 0.
        native_action: converts an action of `action_space`, plus `first_action`, to one that the game takes; None if
            they are the same.
        observation_spaces: the game's own, see `ObservationFormat.spaces`.
    """

    chooses_rows = True

    def __init__(
        self,
        make: Callable[[], gymnasium.Env],
        num_envs: int,
        stamp: dict,
        *,
        batch_size: int = 0,
        reset: str = "at-once",
        random_start_steps: int = 0,
        first: int = 0,
        core: int | None = None,
    ) -> None:
        self._resets = None if reset == "at-once" else ThreadPoolExecutor(1, "resets", use_all_cores)
        self._pause: Future | None = None  # the resets that the last `reset_ended` began
        self._simulators = [_simulator(make, reset, self._resets, stamp["game"]) for _ in range(num_envs)]
        env = self._simulators[0].env
        self.players = _players_of(env)
        self.num_envs, self.batch_size = num_envs * self.players, (batch_size or num_envs) * self.players
        self._whole_batch = self.batch_size  # batch_size while no simulator rests
        format = env.format if isinstance(env, Adapted) else ObservationFormat(stamp["game"], env.observation_space)
        self.observation_shape, self.observation_dtype = format.shape, format.dtype
        self.observation_spaces, self._bytes = format.spaces, self.observation_dtype == np.uint8
        self.action_space = action_space_of(stamp["game"], env.action_space)
        self._unmasked = not isinstance(self.action_space, Continuous) and not has_mask(self.observation_dtype)
        self.native_action = env.native_action if isinstance(env, Adapted) else None
        self.first_action = int(getattr(env.action_space, "start", 0)) if isinstance(self.action_space, Discrete) else 0
        self.stamp, self._first, self._core = stamp, first, core
        self._random_start_steps = random_start_steps
        self.render_modes = tuple(env.metadata.get("render_modes") or ())
        self.fps = int(env.metadata.get("render_fps") or 30)  # of pictures, one per agent step
        self.can_save_state = reset != "swap" and state_keeper(env) is not None
        self._untried = self.can_save_state  # what a game's own get_state gives is known once a game has begun
        self._tracker = EpisodeTracker(self.num_envs, self.players)
        self._seed = -1
        self._actions = no_actions(self.action_space, self.num_envs)
        self._legal: np.ndarray | None = None  # masks of the rows last received, if there are any
        self._begun = np.zeros(num_envs, bool)
        self._waiting = np.ones(num_envs, bool)  # True: it waits for its step; False: for an action
        self._resting = np.zeros(num_envs, bool)
        self._turn = np.arange(num_envs)  # the simulator with the lowest number is next

    def reset(self, seed: int) -> None:
        """Start new games; each begins when its first row is received."""
        self._end_pause()
        environment_seeds(seed, 0)
        self._seed, self._due = seed, "recv"
        self.batch_size, self._resting[:] = self._whole_batch, False
        self._begun[:], self._waiting[:], self._turn[:] = False, True, np.arange(len(self._turn))
        self._tracker.reset()

    def recv(self, order: np.ndarray | None = None) -> Step:
        """Step (or begin) simulators.

        Args:
            order: <float>[num_envs]; the simulators with the lowest values step, not those that waited longest.
        """
        self._check_due("recv")
        self._end_pause()
        if self._core is not None:
            pin_thread(self._core)
            self._core = None
        simulators = self._choose(order)
        env_id = (simulators[:, None] * self.players + np.arange(self.players)).ravel()
        observation = np.empty((len(env_id), *self.observation_shape), self.observation_dtype)
        reward, points = np.zeros((2, len(env_id)))
        terminated, truncated, ended = np.zeros((3, len(env_id)), bool)
        lives = np.zeros(len(env_id), np.int64)
        seen = whole(observation)
        for k, i in enumerate(simulators.tolist()):
            rows = slice(k * self.players, (k + 1) * self.players)
            if self._begun[i]:
                row = self._simulators[i].next(self._taken(self._actions[i * self.players : (i + 1) * self.players]))
            else:
                row = self._begin(i)
            seen[rows] = whole(self._observation(row[0]))
            try:
                reward[rows], terminated[rows], truncated[rows], info = row[1:]
            except (TypeError, ValueError) as error:
                given = f"the reward {short(row[1])}, terminated = {short(row[2])}, and truncated = {short(row[3])}"
                game = self.stamp["game"]
                raise UsageError(f"{game} gave {given} from its step: have it return one of each") from error
            points[rows], lives[rows] = self._told(info, row[1]) if info else (row[1], 0)
            ended[rows] = self._simulators[i].ended
        if self._untried:
            self._untried, self.can_save_state = False, gives_state(self._simulators[int(simulators[0])].env)
        self._waiting[simulators], self._due = False, "send"
        self._legal = legal_actions(observation)
        return self._tracker.step(env_id, observation, reward, terminated, truncated, lives, points=points, ended=ended)

    def send(self, actions: np.ndarray) -> None:
        """Take actions <int32>[batch_size] or [batch_size, K], or <float32>[batch_size, A], clipped to the bounds.

        Raises ValueError for an action out of range, not finite or not legal.
        """
        self._check_due("send")
        received = np.repeat(~(self._waiting | self._resting), self.players)
        self._actions[received] = checked = check_actions(actions, self.action_space, self.batch_size)
        if self._legal is not None:
            check_legal(checked, self.action_space, self._legal)
        self._waiting[:], self._due = ~self._resting, "recv"

    def rest(self, env_id: np.ndarray) -> None:
        """Let the simulators of env_id <int>[b] step no more until the next reset."""
        self._check_due("recv", "rest")
        self._resting[env_id // self.players] = True
        self._waiting &= ~self._resting
        self.batch_size = min(self._whole_batch, self.players * int((~self._resting).sum()))

    def reset_ended(self) -> None:
        """Begin to reset the simulators that idle, in a thread; called when acting pauses and send is due.

        The next recv waits for the resets, and the rows of these simulators show new episodes.
        """
        self._check_due("send", "reset_ended")
        self._end_pause()
        idle = [self._simulators[i] for i in np.flatnonzero(~self._waiting) if self._simulators[i].ended]
        if self._resets is not None and idle:
            self._pause = self._resets.submit(self._reset_all, idle)

    def get_state(self) -> dict[str, np.ndarray]:
        """Everything that decides the future; may be called at any time.

        After set_state the same one of recv or send is due as now, so a caller that saves between recv and send must
        keep its Step itself.
        """
        if not self.can_save_state:
            return super().get_state()
        self._end_pause()
        state = {f"tracker/{name}": value for name, value in self._tracker.get_state().items()}
        for i, simulator in enumerate(self._simulators):
            state.update({f"{i}/{name}": value for name, value in get_simulator_state(simulator).items()})
        own = {name: getattr(self, f"_{name}").copy() for name in ("actions", "begun", "waiting", "turn")}
        return {**state, **own, "due": np.array(_DUE.index(self._due)), "seed": np.array(self._seed)}

    def set_state(self, state: dict[str, np.ndarray]) -> None:
        """Inverse of get_state. Raises UsageError when it was saved with another number of environments."""
        if not self.can_save_state:
            super().set_state(state)
        self._end_pause()
        saved = len(state["actions"])
        if saved != self.num_envs:
            raise UsageError(
                f"the saved state has {counted(saved, 'environment')}, and this run has {self.num_envs}; "
                "use as many as were saved"
            )
        self._tracker.set_state(_under("tracker/", state))
        for i, simulator in enumerate(self._simulators):
            set_simulator_state(simulator, _under(f"{i}/", state))
        for name in ("actions", "begun", "waiting", "turn"):
            getattr(self, f"_{name}")[:] = state[name]
        self._due, self._seed, self._legal = _DUE[int(state["due"])], int(state["seed"]), None

    def render(self) -> np.ndarray:
        """<uint8>[h, w, 3] picture of environment 0, when made with render_mode 'rgb_array'."""
        return np.asarray(self._simulators[0].env.render())

    @property
    def game(self) -> gymnasium.Env:
        """Environment 0 itself."""
        return self._simulators[0].env

    def close(self) -> None:
        """Close all environments."""
        if self._pause is not None:
            self._pause.exception()  # waits; what it raised has no meaning any more
        for simulator in self._simulators:
            simulator.close()
        if self._resets is not None:
            self._resets.shutdown()

    def _end_pause(self) -> None:
        """Waits for the resets of `reset_ended`, and raises what they raised, each time: no step can follow."""
        if self._pause is not None:
            self._pause.result()
            self._pause = None

    def _reset_all(self, idle: list[Simulator]) -> None:
        """Resets simulators that idle. Raises UsageError for a start that recv would refuse: it may be saved before."""
        for simulator in idle:
            simulator.reset_ended()
            if isinstance(simulator, PausingSimulator) and simulator.fresh is not None:
                observation, info = simulator.fresh
                self._observation(observation)
                self._told(info, 0.0)

    def _choose(self, order: np.ndarray | None) -> np.ndarray:
        """Numbers of the simulators that step, ascending."""
        waiting = np.flatnonzero(self._waiting)
        first = self._turn[waiting] if order is None else order[:: self.players][waiting]
        chosen = waiting[np.argsort(first, kind="stable")[: self.batch_size // self.players]]
        self._turn[chosen] = self._turn.max() + 1 + np.arange(len(chosen))
        return np.sort(chosen)

    def _begin(self, i: int) -> tuple[Any, float, bool, bool, dict]:
        """The first row of simulator i: the start of an episode, or where the random first actions led."""
        simulator, number = self._simulators[i], self._first + i
        seed = int(environment_seeds(self._seed, 1, number)[0])
        start = first_start(self.stamp["game"], lambda: simulator.reset(seed))
        if self._random_start_steps:
            generator, steps = random_start_of(self._seed, number, self._random_start_steps)
            start = random_start(simulator, start, steps, lambda seen: self._random_action(seen, generator))
            self._tracker.begin_amid(np.arange(i * self.players, (i + 1) * self.players))
        self._begun[i] = True
        return start[0], 0.0, False, False, start[1]

    def _random_action(self, observation: Any, generator: np.random.Generator) -> Any:
        """Random actions of all players of a game, which are legal at its `observation`."""
        mask = legal_actions(np.asarray(observation))
        return self._taken(np.array([random_action(self.action_space, generator, mask) for _ in range(self.players)]))

    def _observation(self, observation: Any) -> np.ndarray:
        """The observation of all rows of a game as an array, once it is checked.

        Raises UsageError if it is not of numbers, if its shape is not that of the space, as it might be broadcast, and
        if the space has bytes and the cast to bytes would change a number.
        """
        if not isinstance(observation, np.ndarray) or observation.dtype != self.observation_dtype:
            observation = in_space(self.stamp["game"], "", as_bytes if self._bytes else as_numbers, observation)
        expected = (self.players, *self.observation_shape) if self.players > 1 else self.observation_shape
        if observation.shape != expected:
            several = f" (its attribute `players` is {self.players}: a row for each)" if self.players > 1 else ""
            raise UsageError(
                f"{self.stamp['game']} gave an observation of shape {observation.shape}, and its observation space has "
                f"{expected}{several}: fix the environment"
            )
        return observation

    def _told(self, info: dict, reward: Any) -> tuple[Any, Any]:
        """What a row adds to the score, and the lives then, as its `info` tells.

        Raises UsageError if they are no numbers, and for a mask if the first reset gave none.
        """
        game = self.stamp["game"]
        if self._unmasked and info.get(ACTION_MASK) is not None:
            remedy = "give one with each reset, too"
            raise UsageError(f"{game} gave an action_mask, but its first reset gave none; {remedy}")
        points = number_in(game, info, "score_reward", self.players) if "score_reward" in info else reward
        return points, number_in(game, info, "lives", self.players) if "lives" in info else 0

    def _taken(self, actions: np.ndarray) -> Any:
        """The actions of a game's players as its step takes them."""
        actions = actions + self.first_action if self.first_action else actions
        return actions if self.players > 1 else actions[0]


def _simulator(
    make: Callable[[], gymnasium.Env], reset: str, resets: ThreadPoolExecutor | None, game: str
) -> Simulator:
    if resets is None:
        return Simulator(make(), game)
    return SwappingSimulator(make(), make(), resets, game) if reset == "swap" else PausingSimulator(make(), game)


def _players_of(env: gymnasium.Env) -> int:
    """The players of a game; 1 where its attribute is something else, as a user's environment may have their names."""
    players = getattr(env.unwrapped, "players", 1)
    return max(1, int(players)) if isinstance(players, (int, np.integer)) else 1


def _under(prefix: str, state: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name[len(prefix) :]: value for name, value in state.items() if name.startswith(prefix)}


def stamp_of(protocol: str, game: str, max_agent_steps: int, *packages: str, **settings: Any) -> dict[str, Any]:
    """The stamp of a game other than Atari, with its own `settings` and the versions of the `packages` it needs."""
    rules = {"protocol": protocol, "game": game, "max_agent_steps": max_agent_steps, **settings}
    return {**rules, "repeat_fire_after": 0, "backend": "gymnasium", **versions(*packages)}


def versions(*packages: str) -> dict[str, str]:
    """The versions of Gymnasium and of `packages`, for the stamp."""
    return {name.replace("-", "_"): importlib.metadata.version(name) for name in ("gymnasium", *packages)}
