"""Any Gymnasium environment with discrete actions, and the Atari protocols that the native one lacks."""

from __future__ import annotations

import importlib.metadata

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import ddrl.envs.catch  # noqa: F401  (registers ddrl/Catch-v0)
from ddrl.envs.atari_frames import AtariFrames
from ddrl.envs.base import EpisodeTracker, Step, environment_seeds
from ddrl.envs.games import unknown_game
from ddrl.envs.protocols import Protocol
from ddrl.envs.saved_state import state_keeper
from ddrl.errors import UsageError
from ddrl.types import Discrete, EpisodeEnd


class GymnasiumEnvironment:
    """Environments stepped one after the other in the calling thread, inside recv.

    recv always gives all num_envs rows: there is nothing to wait for, so batch_size is num_envs.

    Args:
        envs: synchronous vector environment with next-step autoreset.
        stamp: protocol, settings and versions.
    """

    def __init__(self, envs: SyncVectorEnv, stamp: dict) -> None:
        game, space, actions = stamp["game"], envs.single_observation_space, envs.single_action_space
        if not isinstance(actions, gymnasium.spaces.Discrete):
            raise UsageError(f"{game} has the action space {actions}; only Discrete is supported yet")
        if not isinstance(space, gymnasium.spaces.Box):
            raise UsageError(f"{game} has the observation space {space}; only Box is supported")
        self._envs, self.stamp = envs, stamp
        self.num_envs = self.batch_size = envs.num_envs
        self.observation_shape = tuple(space.shape)
        self.observation_dtype = np.dtype(np.uint8 if space.dtype == np.uint8 else np.float32)
        self.action_space, self._first_action = Discrete(int(actions.n)), int(actions.start)
        self.render_modes = tuple(envs.metadata.get("render_modes") or ())
        self.fps = int(envs.metadata.get("render_fps") or 30)  # of pictures, one per agent step
        self._keepers = [state_keeper(env) for env in envs.envs]
        self.can_save_state = all(keeper is not None for keeper in self._keepers)
        self._tracker = EpisodeTracker(self.num_envs)
        self._seed, self._actions = -1, np.zeros(self.num_envs, np.int32)
        self._due = "reset"

    def reset(self, seed: int) -> None:
        """New games at the next recv."""
        environment_seeds(seed, 0)
        self._seed, self._due = seed, "first recv"
        self._tracker.reset()

    def recv(self) -> Step:
        """Step (or reset) all environments."""
        if self._due not in ("recv", "first recv"):
            raise RuntimeError(f"recv called where {self._due} is due")
        if self._due == "first recv":
            seeds = environment_seeds(self._seed, self.num_envs).tolist()
            observation, info = self._envs.reset(seed=seeds)
            reward, terminated, truncated = np.zeros((3, self.num_envs))
        else:
            actions = self._actions + self._first_action
            observation, reward, terminated, truncated, info = self._envs.step(actions)
        self._due = "send"
        observation = np.asarray(observation, self.observation_dtype)
        ids = np.arange(self.num_envs)
        return self._tracker.step(ids, observation, reward, terminated, truncated, info.get("lives"))

    def send(self, actions: np.ndarray) -> None:
        """<int32>[num_envs]. Raises ValueError for an action out of range."""
        if self._due != "send":
            raise RuntimeError(f"send called where {self._due} is due")
        actions = np.array(actions, np.int32)
        if actions.shape != (self.num_envs,) or actions.min() < 0 or actions.max() >= self.action_space.count:
            raise ValueError(f"expected {self.num_envs} actions in 0..{self.action_space.count - 1}, got {actions}")
        self._actions, self._due = actions, "recv"

    def pop_episodes(self) -> list[EpisodeEnd]:
        """Whole games finished since the last call."""
        return self._tracker.pop_episodes()

    def get_state(self) -> dict[str, np.ndarray]:
        """At any time; after set_state the same one of recv or send is due, so the caller that saves
        between recv and send keeps its Step itself.
        """
        self._check_can_save()
        state = {f"tracker/{name}": value for name, value in self._tracker.get_state().items()}
        for i, keeper in enumerate(self._keepers):
            state.update({f"{i}/{name}": value for name, value in keeper.get_state().items()})
        due = _DUE.index(self._due)
        return {**state, "due": np.array(due), "seed": np.array(self._seed), "actions": self._actions.copy()}

    def set_state(self, state: dict[str, np.ndarray]) -> None:
        """Inverse of get_state. Raises UsageError when it was saved with another number of environments."""
        self._check_can_save()
        saved = len(state["actions"])
        if saved != self.num_envs:
            raise UsageError(f"saved state has {saved} environments, this run {self.num_envs}; use as many")
        self._tracker.set_state(_under("tracker/", state))
        for i, keeper in enumerate(self._keepers):
            keeper.set_state(_under(f"{i}/", state))
        # Gymnasium keeps which environments to reset at the next step, without a setter.
        self._envs._autoreset_envs = self._tracker.resetting.copy()
        self._due, self._seed = _DUE[int(state["due"])], int(state["seed"])
        self._actions = np.array(state["actions"], np.int32)

    def render(self) -> np.ndarray:
        """<uint8>[h, w, 3] picture of environment 0, when made with render_mode 'rgb_array'."""
        return self._envs.render()[0]

    def close(self) -> None:
        """Close all environments."""
        self._envs.close()

    def _check_can_save(self) -> None:
        if not self.can_save_state:
            raise UsageError(f"{self.stamp['game']} cannot save its state; reset it at checkpoints instead")


_DUE = ("reset", "first recv", "recv", "send")


def _under(prefix: str, state: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name[len(prefix):]: value for name, value in state.items() if name.startswith(prefix)}


def make_atari(rom: str, protocol: Protocol, num_envs: int, on_frame=None) -> GymnasiumEnvironment:
    """An Atari ROM under any protocol; see AtariFrames for on_frame."""
    make = [lambda: AtariFrames(rom, protocol, on_frame)] * num_envs
    envs = SyncVectorEnv(make, autoreset_mode=AutoresetMode.NEXT_STEP)
    stamp = {**protocol.stamp(), "game": rom, "backend": "gymnasium", **_versions("ale-py")}
    return GymnasiumEnvironment(envs, stamp)


def make_gymnasium(game: str, num_envs: int, render_mode: str | None = None) -> GymnasiumEnvironment:
    """A registered Gymnasium id. Raises UsageError when it is unknown, lacks a package, or cannot render."""
    options = {} if render_mode is None else {"render_mode": render_mode}
    try:
        spec = gymnasium.spec(game)
        envs = gymnasium.make_vec(
            game, num_envs=num_envs, vectorization_mode="sync",
            vector_kwargs={"autoreset_mode": AutoresetMode.NEXT_STEP}, **options,
        )
    except gymnasium.error.DependencyNotInstalled as error:
        raise UsageError(f"{game} needs a package that is not installed: {error}") from error
    except gymnasium.error.UnregisteredEnv as error:
        raise unknown_game(game) from error
    except (gymnasium.error.Error, ModuleNotFoundError, TypeError) as error:
        reason = str(error).splitlines()[0]
        message = f"cannot make the game {game!r}: {reason}; `python -m ddrl.envs` lists games"
        raise UsageError(message) from error
    stamp = {
        "protocol": "gymnasium", "game": game, "max_agent_steps": spec.max_episode_steps or 0,
        "repeat_fire_after": 0, "backend": "gymnasium", **_versions(),
    }
    return GymnasiumEnvironment(envs, stamp)


def _versions(*packages: str) -> dict[str, str]:
    return {name.replace("-", "_"): importlib.metadata.version(name) for name in ("gymnasium", *packages)}
