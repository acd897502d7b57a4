"""Evaluation games with frozen parameters."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from typing import Any, NamedTuple

import numpy as np

from ddrl.config import EnvironmentConfig
from ddrl.envs import VectorEnvironment, environment_seeds, is_light, make_environment
from ddrl.envs.spaces import no_actions
from ddrl.envs.starts import Starts
from ddrl.errors import UsageError
from ddrl.evaluation.actions import Act, Policy, actions_for
from ddrl.evaluation.turns import Turns
from ddrl.structured import legal_actions
from ddrl.types import Continuous

UNLIMITED_GAME_STEPS = 108_000
"""Agent steps after which a game without a limit of its own is cut off."""
GROUP_SIZE = 8
"""Games stepped together where a step takes less time than what is done for each group; others have groups of their
own, so that the caller need not wait long for its turn."""
DRAWN_GROUPS = 4
"""Groups at once whose games draw pictures."""
STUCK_STEPS = 1_000
"""A game that a limit ends is stuck where it earned nothing in so many agent steps before."""


class EvaluationResult(NamedTuple):
    """Raw scores of whole games.

    Attributes:
        mean, maximum: over `scores`; NaN where there are none.
        scores: raw score per game, in order of the environments, without those that are not finite.
        agent_steps: length per game, in the same order.
        stamp: protocol, every setting, backend, versions, seed and number of games; JSON-able.
        unfinished: games among them that a limit of steps ended; their score until then counts.
        timed_out: further games, which were under way when `stop` or the time ended the evaluation; they have no score.
        not_finite: further games, whose score is NaN or infinite.
        stuck: games that a limit of steps or time ended after STUCK_STEPS agent steps without a reward.
        forced_actions: actions that the rule of `GreedyActions` sent in place of the policy's.
    """

    mean: float
    maximum: float
    scores: tuple[float, ...]
    agent_steps: tuple[int, ...]
    stamp: dict
    unfinished: int
    timed_out: int = 0
    not_finite: int = 0
    stuck: int = 0
    forced_actions: int = 0


class _Game(NamedTuple):
    """A game: its first row among those of all groups, whether a limit ended it, and steps since its last reward."""

    row: int
    score: float
    agent_steps: int
    cut: bool
    unrewarded_steps: int

    @property
    def stuck(self) -> bool:
        return self.cut and self.unrewarded_steps >= STUCK_STEPS


class _Group:
    """Environments stepped together; each plays one game after the other as long as it is told to.

    Attributes:
        over: the games that are over, in the order of their ends.
        agent_steps: of all environments.
        begun: numbers of the rows last received that show the beginning of a game.

    Args:
        first_game: number of the first environment's among those of all groups.
        again: is told of each game that is over, and whether another one begins in its environment by itself; says
            whether the environment plays that one.
    """

    def __init__(self, env: VectorEnvironment, first_game: int, again: Callable[[_Game, bool], bool]) -> None:
        self.env, self._first_row, self._again = env, first_game * env.players, again
        self.over: list[_Game] = []
        self.agent_steps = 0
        self.begun = np.zeros(0, np.int64)
        self._scores = np.zeros(env.num_envs)
        self._steps = np.zeros(env.num_envs, np.int64)
        self._rewarded = np.zeros(env.num_envs, np.int64)  # step of the last reward
        self._playing = np.ones(env.num_envs, bool)
        self._ids = np.arange(env.num_envs)  # of the rows that were received last
        self._live = np.ones(env.num_envs, bool)  # whether these play
        self._mask: np.ndarray | None = None  # legal actions of these, where masks tell

    def recv(self) -> tuple[np.ndarray, np.ndarray]:
        """Observations and numbers of the rows that still play."""
        step = self.env.recv()
        ids = step.env_id
        counted = step.valid & self._playing[ids]
        self._scores[ids] += step.reward  # 0 in the row of a reset; scores of games that are over are read no more
        self._steps[ids] += counted
        self._rewarded[ids] = np.where(counted & (step.reward != 0.0), self._steps[ids], self._rewarded[ids])
        self.agent_steps += int(counted.sum()) // self.env.players
        cut = counted & ~step.terminated & (step.truncated | (self._steps[ids] >= UNLIMITED_GAME_STEPS))
        begins = step.terminated | step.truncated  # a game without a limit that is cut off here goes on
        for i in np.flatnonzero(counted & (step.terminated | cut)):
            self._end(int(ids[i]), bool(cut[i]), bool(begins[i]))
        self._ids, self._live, self._mask = ids, self._playing[ids], legal_actions(step.observation)
        self.begun = self._first_row + ids[self._live & ~step.valid]
        return step.observation[self._live], self._first_row + ids[self._live]

    def send(self, live_actions: np.ndarray) -> None:
        """Rows whose game is over get the first legal action, and rest if they can; what they play is not counted."""
        actions = no_actions(self.env.action_space, len(self._live), self._mask)
        actions[self._live] = live_actions
        self.env.send(actions)
        if not self._live.all():
            self.env.rest(self._ids[~self._live])

    def under_way(self) -> list[_Game]:
        """The games that are not over."""
        rows = range(0, self.env.num_envs, self.env.players)
        return [self._game(row, cut=True) for row in rows if self._playing[row]]

    def _end(self, row: int, cut: bool, begins: bool) -> None:
        """Of one row; those of a game tell the same, and come in their order. `begins`: then another game does."""
        first = row - row % self.env.players
        if row == first:
            self.over.append(self._game(row, cut))
            self._playing[row] = self._again(self.over[-1], begins)
        self._playing[row] = self._playing[first]
        self._scores[row], self._steps[row], self._rewarded[row] = 0.0, 0, 0

    def _game(self, row: int, cut: bool) -> _Game:
        steps = int(self._steps[row])
        return _Game(self._first_row + row, float(self._scores[row]), steps, cut, steps - int(self._rewarded[row]))


def play_games(
    config: EnvironmentConfig,
    policy: Policy,
    games: int,
    seed: int,
    *,
    epsilon: float = 0.0,
    drawn: bool = False,
    agent_steps: int = 0,
    group_size: int = 0,
    ahead: int = 1,
    stop: Callable[[], bool] = lambda: False,
    starts: Starts | None = None,
    turns: Turns | None = None,
) -> Generator[None, None, EvaluationResult]:
    """Play `games` games, one per environment, and return their scores.

    Yields after every step of a group, so that a role can look at its messages. Each environment's first
    game counts and no other, so long games weigh as much as short ones; a game that is over steps no more
    where it can rest, and a group whose games are all over is retired. Games that `stop` or the time of
    `turns` ends have no score.

    Args:
        config: game and protocol; the whole game counts, whatever life_loss_terminal says.
        policy: see Policy; called with the live rows of all groups together.
        games: at least 1.
        seed: of the environments, and of random actions.
        epsilon: probability of a random action.
        drawn: actions are drawn from the policy, not the greedy ones.
        agent_steps: all environments play one game after the other until they have made so many steps together, and
            each game counts that is over by then; 0: one game each.
        group_size: environments stepped together; 0: GROUP_SIZE, or 1 of Atari (which takes 0.1 s to make), of football
            and in EnvPool.
        ahead: groups that step at the same time; each native group has one emulator thread.
        stop: asked before every step of all games; True ends them.
        starts: games of Atari begin with these.
        turns: a few environments play all games, one after the other, as long as there is time for them; not together
            with `agent_steps`.

    Raises:
        UsageError: no games, a policy whose logits are not finite, or no game with a finite score.
    """
    if games < 1:
        raise UsageError(f"evaluation of {games} games; at least 1 is needed")
    environments, group_size, at_once = _division(config, games, group_size, turns)
    numbers = range(0, environments, group_size)  # of each group's first game
    seeds = environment_seeds(seed, len(numbers))
    groups: list[_Group] = []
    forced = 0

    def make(first_game: int) -> _Group:
        size = min(group_size, environments - first_game)
        env = make_environment(config, size, training=False, starts=starts)
        return _Group(env, first_game, again)

    def again(game: _Game, begins: bool) -> bool:
        return (begins and agent_steps > 0) or (turns is not None and turns.end(game.row, game.cut, begins))

    def ended() -> bool:
        return stop() or (turns is not None and turns.time_is_up())

    for start in range(0, len(numbers), at_once):
        wave: list[_Group] = []
        try:
            yield from _begin(wave, make, numbers[start : start + at_once], seeds[start:])
            groups += wave
            env = wave[0].env
            rows, repeats = games * env.players, env.stamp["repeat_fire_after"]
            act = actions_for(env.action_space, policy, rows, repeats, epsilon, seed, drawn)
            if turns:
                for row in range(0, environments * env.players, env.players):
                    turns.begin(row)
            yield from _play(wave, act, ahead, lambda: ended() or _used_up(wave, agent_steps))
        finally:
            for group in wave:
                group.env.close()
        forced += getattr(act, "forced", 0)
        if ended() or agent_steps:
            break
    noise = 0.0 if isinstance(groups[0].env.action_space, Continuous) else epsilon  # those are never random
    stamp = {"actions": "drawn", "seed": seed} if drawn else {"epsilon": noise, "seed": seed}
    return _result(groups, stamp, forced, relay=_used_up(groups, agent_steps))


def _division(config: EnvironmentConfig, games: int, group_size: int, turns: Turns | None) -> tuple[int, int, int]:
    """The number of environments, the number that is stepped together, and the number of groups at once."""
    group_size = group_size or (GROUP_SIZE if is_light(config) else 1)
    # A game that draws pictures takes a process and 0.5 GB.
    at_once = -(-games // group_size) if config.football_view == "map" else DRAWN_GROUPS
    return min(turns.at_once, at_once * group_size) if turns else games, group_size, at_once


def _begin(
    wave: list[_Group], make: Callable[[int], _Group], numbers: range, seeds: np.ndarray
) -> Generator[None, None, None]:
    """Adds a group for each number to `wave`, then resets them; yields after each step."""
    for first_game in numbers:
        wave.append(make(first_game))
        yield
    for group, group_seed in zip(wave, seeds):
        group.env.reset(int(group_seed))
        yield


def _used_up(groups: list[_Group], agent_steps: int) -> bool:
    return agent_steps > 0 and sum(group.agent_steps for group in groups) >= agent_steps


def evaluate(config: EnvironmentConfig, policy: Policy, games: int, seed: int, **options: Any) -> EvaluationResult:
    """`play_games` of the same arguments, to its end."""
    player = play_games(config, policy, games, seed, **options)
    while True:
        try:
            next(player)
        except StopIteration as end:
            return end.value


def _play(groups: list[_Group], act: Act, ahead: int, stop: Callable[[], bool]) -> Generator[None, None, None]:
    live, actions = groups, None
    begin = getattr(act, "begin", lambda rows: None)  # of actions that depend on those before them
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
        for group in live:
            begin(group.begun)
        if live:
            sizes = [len(rows) for _, (_, rows) in kept]
            observations = np.concatenate([observations for _, (observations, _) in kept])
            chosen = act(observations, np.concatenate([rows for _, (_, rows) in kept]))
            actions = np.split(chosen, np.cumsum(sizes)[:-1])


def _result(groups: list[_Group], stamp: dict, forced: int, relay: bool) -> EvaluationResult:
    games = sorted((game for group in groups for game in group.over), key=lambda game: game.row)
    # At the end of a budget of steps the next games are under way always, and say nothing where some are over.
    under_way = [] if relay and games else [game for group in groups for game in group.under_way()]
    finite = [game for game in games if math.isfinite(game.score)]
    if games and not finite:
        first = games[0].score
        raise UsageError(f"no game has a finite score ({len(games)} played, the first: {first}); fix the environment")
    scores = tuple(game.score for game in finite)
    return EvaluationResult(
        mean=float(np.mean(scores)) if scores else math.nan,
        maximum=max(scores, default=math.nan),
        scores=scores,
        agent_steps=tuple(game.agent_steps for game in finite),
        stamp={**groups[0].env.stamp, **stamp, "games": len(games)},
        unfinished=sum(game.cut for game in finite),
        timed_out=len(under_way),
        not_finite=len(games) - len(finite),
        stuck=sum(game.stuck for game in [*games, *under_way]),
        forced_actions=forced,
    )
