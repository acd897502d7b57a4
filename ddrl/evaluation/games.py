"""Evaluation games with frozen parameters: greedy actions, or epsilon-greedy ones."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, NamedTuple

import numpy as np

from ddrl.config import EnvironmentConfig
from ddrl.envs import VectorEnvironment, environment_seeds, make_environment
from ddrl.envs.starts import Starts
from ddrl.errors import UsageError
from ddrl.ops.draws import exploration_numbers, random_instead
from ddrl.types import ActionSpace, Continuous

Policy = Callable[[np.ndarray], np.ndarray]
"""observations [b, ...] -> the policy's outputs <float>[b, P]: logits or values of actions, or means and logarithms of
deviations, or continuous actions; b varies, a policy with a fixed shape pads itself."""

UNLIMITED_GAME_STEPS = 108_000
"""Agent steps after which a game without a limit of its own is cut off."""
DRAWN_GROUPS = 4
"""Groups at once whose games draw pictures."""


class EvaluationResult(NamedTuple):
    """Raw scores of whole games.

    Attributes:
        mean, maximum: over `scores`.
        scores: raw score per game, in order of the environments, without those that are not finite.
        agent_steps: length per game, in the same order.
        stamp: protocol, every setting, backend, versions, seed and number of games; JSON-able.
        unfinished: games that a limit of steps or time ended; their score until then counts.
        timed_out: those of them that `stop` ended: by their protocol they would have gone on.
        not_finite: games whose score is NaN or infinite.
    """

    mean: float
    maximum: float
    scores: tuple[float, ...]
    agent_steps: tuple[int, ...]
    stamp: dict
    unfinished: int
    timed_out: int = 0
    not_finite: int = 0


class GreedyActions:
    """The largest logit's action, and action 1 from the n-th identical choice in a row on.

    The rule counts what the policy chose, not what was sent, so it lets go when the policy changes its
    mind; after Adamski et al., 2018 (30 identical actions force action 1). n = 0 switches it off.

    Args:
        epsilon: probability of a random action instead, whatever the policy chose.
        seed: of the random actions.
    """

    def __init__(
        self, policy: Policy, num_envs: int, repeat_fire_after: int, epsilon: float = 0.0, seed: int = 0
    ) -> None:
        self._policy, self._limit, self._epsilon, self._seed = policy, repeat_fire_after, epsilon, seed
        self._steps = np.zeros(num_envs, np.int64)
        self._last = np.full(num_envs, -1, np.int32)
        self._run = np.zeros(num_envs, np.int64)

    def __call__(self, observations: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """<int32>[b] for observations [b, ...] of the environments `rows` <int>[b]."""
        logits = _outputs(self._policy, observations)
        choice = logits.argmax(axis=1).astype(np.int32)
        self._run[rows] = np.where(choice == self._last[rows], self._run[rows] + 1, 1)
        self._last[rows] = choice
        stuck = self._run[rows] >= self._limit if self._limit else np.zeros(len(rows), bool)
        return self._explore(np.where(stuck & (logits.shape[1] > 1), 1, choice).astype(np.int32), rows, logits.shape[1])

    def _explore(self, actions: np.ndarray, rows: np.ndarray, count: int) -> np.ndarray:
        if not self._epsilon:
            return actions
        numbers = exploration_numbers(self._seed, rows, self._steps[rows])
        self._steps[rows] += 1
        return random_instead(actions, count, self._epsilon, *numbers)


def mean_actions(policy: Policy, size: int) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """For continuous actions of `size` A: the means <float32>[b, A] of the policy's distributions, or the actions of a
    deterministic one; without noise."""

    def act(observations: np.ndarray, rows: np.ndarray) -> np.ndarray:
        return _outputs(policy, observations)[:, :size]

    return act


def actions_for(
    space: ActionSpace, policy: Policy, rows: int, repeat_fire_after: int, epsilon: float = 0.0, seed: int = 0
) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """What turns observations of some of `rows` rows into the actions of an evaluation.

    Args:
        space: of the environments.
        policy: of a network.
        rows: of all environments together.
        repeat_fire_after, epsilon, seed: as in GreedyActions; continuous actions do without.
    """
    if isinstance(space, Continuous):
        return mean_actions(policy, space.head_size)
    return GreedyActions(policy, rows, repeat_fire_after, epsilon, seed)


def _outputs(policy: Policy, observations: np.ndarray) -> np.ndarray:
    outputs = np.asarray(policy(observations), np.float32)
    if outputs.shape[:1] != (len(observations),) or not np.isfinite(outputs).all():
        problem = f"outputs of shape {outputs.shape}, or not finite, for {len(observations)} observations"
        raise UsageError(f"the policy gave {problem}; is the checkpoint that of this game?")
    return outputs


class _Group:
    """Environments stepped together until the first game of each is over."""

    def __init__(self, env: VectorEnvironment, first_game: int) -> None:
        self.env, self.first_row = env, first_game * env.players
        self.scores = np.zeros(env.num_envs)
        self.steps = np.zeros(env.num_envs, np.int64)
        self.playing = np.ones(env.num_envs, bool)
        self.cut = np.zeros(env.num_envs, bool)
        self._live = np.ones(env.num_envs, bool)

    def recv(self) -> tuple[np.ndarray, np.ndarray]:
        """Observations and numbers of the rows that still play."""
        step = self.env.recv()
        ids = step.env_id
        counted = step.valid & self.playing[ids]
        self.scores[ids] += np.where(counted, step.reward, 0.0)
        self.steps[ids] += counted
        limit = counted & ~step.terminated & (step.truncated | (self.steps[ids] >= UNLIMITED_GAME_STEPS))
        self.cut[ids] |= limit
        self.playing[ids] &= ~(counted & (step.terminated | limit))
        self._live = self.playing[ids]
        return step.observation[self._live], self.first_row + ids[self._live]

    def send(self, live_actions: np.ndarray) -> None:
        """Rows whose game is over get action 0; what they play is not counted."""
        actions = np.zeros((len(self._live), *live_actions.shape[1:]), live_actions.dtype)
        actions[self._live] = live_actions
        self.env.send(actions)


class _Relay(_Group):
    """Environments stepped together that play one game after the other.

    Attributes:
        over: score, agent steps and whether a limit ended it, of each game that is over, in the order of their ends.
    """

    def __init__(self, env: VectorEnvironment, first_game: int) -> None:
        super().__init__(env, first_game)
        self.over: list[tuple[float, int, bool]] = []
        self.total = 0  # agent steps

    def recv(self) -> tuple[np.ndarray, np.ndarray]:
        """Observations and numbers of all rows."""
        step = self.env.recv()
        ids = step.env_id
        self.scores[ids] += np.where(step.valid, step.reward, 0.0)
        self.steps[ids] += step.valid
        self.total += int(step.valid.sum()) // self.env.players
        cut = step.valid & ~step.terminated & (step.truncated | (self.steps[ids] >= UNLIMITED_GAME_STEPS))
        for i in np.flatnonzero(step.valid & (step.terminated | cut)):
            row = ids[i]
            if row % self.env.players == 0:
                self.over.append((float(self.scores[row]), int(self.steps[row]), bool(cut[i])))
            self.scores[row], self.steps[row] = 0.0, 0
        return step.observation, self.first_row + ids


def play_games(
    config: EnvironmentConfig,
    policy: Policy,
    games: int,
    seed: int,
    *,
    epsilon: float = 0.0,
    agent_steps: int = 0,
    group_size: int = 1,
    ahead: int = 1,
    stop: Callable[[], bool] = lambda: False,
    starts: Starts | None = None,
) -> Generator[None, None, EvaluationResult]:
    """Play `games` games, one per environment, and return their scores.

    Yields after every step of a group, so that a role can look at its messages. Each environment's first
    game counts and no other, so long games weigh as much as short ones; a group whose games are all over
    is retired.

    Args:
        config: game and protocol; the whole game counts, whatever life_loss_terminal says.
        policy: see Policy; called with the live rows of all groups together.
        games: at least 1.
        seed: of the environments, and of random actions.
        epsilon: probability of a random action.
        agent_steps: all environments play one game after the other until they have made so many steps together, and
            each game counts that is over by then (those under way, where none is); 0: one game each.
        group_size: environments stepped together. Groups of one waste no step on games that are over and
            yield at least every 0.1 s while they start (an Atari environment takes that long to make).
        ahead: groups that step at the same time; each native group has one emulator thread.
        stop: asked before every step of all games; True ends them, and what they scored until then counts.
        starts: games of Atari begin with these.

    Raises:
        UsageError: no games, a policy whose logits are not finite, or no game with a finite score.
    """
    if games < 1:
        raise UsageError(f"evaluation of {games} games; at least 1 is needed")
    groups: list[_Group] = []
    kind = _Relay if agent_steps else _Group
    seeds = environment_seeds(seed, -(-games // group_size))
    # A game that draws pictures takes a process and 0.5 GB.
    at_once = games if config.football_view == "map" else DRAWN_GROUPS * group_size
    for start in range(0, games, at_once):
        wave: list[_Group] = []
        try:
            for first in range(start, min(start + at_once, games), group_size):
                size = min(group_size, games - first)
                wave.append(kind(make_environment(config, size, training=False, starts=starts), first))
                yield
            yield from _reset(wave, seeds[len(groups) :])
            groups += wave
            if start == 0:
                rows, repeats = games * wave[0].env.players, wave[0].env.stamp["repeat_fire_after"]
                act = actions_for(wave[0].env.action_space, policy, rows, repeats, epsilon, seed)
            yield from _play(wave, act, ahead, lambda: stop() or _used_up(wave, agent_steps))
        finally:
            for group in wave:
                group.env.close()
        if stop() or agent_steps:
            break
    return _result(groups, {"epsilon": epsilon, "seed": seed})


def _reset(groups: list[_Group], seeds: np.ndarray) -> Generator[None, None, None]:
    for group, group_seed in zip(groups, seeds):
        group.env.reset(int(group_seed))
        yield


def _used_up(groups: list[_Group], agent_steps: int) -> bool:
    return agent_steps > 0 and sum(group.total for group in groups if isinstance(group, _Relay)) >= agent_steps


def evaluate(config: EnvironmentConfig, policy: Policy, games: int, seed: int, **options: Any) -> EvaluationResult:
    """play_games to its end, with its options."""
    player = play_games(config, policy, games, seed, **options)
    while True:
        try:
            next(player)
        except StopIteration as end:
            return end.value


def _play(
    groups: list[_Group], act: Callable[[np.ndarray, np.ndarray], np.ndarray], ahead: int, stop: Callable[[], bool]
) -> Generator[None, None, None]:
    live, actions = groups, None
    while live and not stop():
        received = []
        for start in range(0, len(live), ahead):
            window = live[start : start + ahead]
            for i, group in enumerate(window):
                if actions is not None:
                    group.send(actions[start + i])
            for group in window:
                received.append(group.recv())
                yield
        kept = [(group, rows) for group, rows in zip(live, received) if len(rows[1])]
        live = [group for group, _ in kept]
        if live:
            sizes = [len(rows) for _, (_, rows) in kept]
            observations = np.concatenate([observations for _, (observations, _) in kept])
            chosen = act(observations, np.concatenate([rows for _, (_, rows) in kept]))
            actions = np.split(chosen, np.cumsum(sizes)[:-1])


def _result(groups: list[_Group], stamp: dict) -> EvaluationResult:
    stamp = {**groups[0].env.stamp, **stamp}
    over = [game for group in groups if isinstance(group, _Relay) for game in group.over]
    if over:
        scores, steps, cut = (np.array(column) for column in zip(*over, strict=True))
        return _summary(scores, steps, stamp, int(cut.sum()))
    players = groups[0].env.players  # of one game, whose rows tell the same
    scores = np.concatenate([group.scores[::players] for group in groups])
    steps = np.concatenate([group.steps[::players] for group in groups])
    timed_out = int(sum(group.playing[::players].sum() for group in groups))
    unfinished = timed_out + int(sum(group.cut[::players].sum() for group in groups))
    return _summary(scores, steps, stamp, unfinished, timed_out)


def _summary(
    scores: np.ndarray, steps: np.ndarray, stamp: dict, unfinished: int, timed_out: int = 0
) -> EvaluationResult:
    finite = np.isfinite(scores)
    if not finite.any():
        raise UsageError(f"none of {len(scores)} games has a finite score, the first {scores[0]}: mend the environment")
    kept = scores[finite]
    return EvaluationResult(
        float(kept.mean()),
        float(kept.max()),
        tuple(kept.tolist()),
        tuple(steps[finite].tolist()),
        stamp | {"games": len(scores)},
        unfinished,
        timed_out,
        len(scores) - len(kept),
    )
