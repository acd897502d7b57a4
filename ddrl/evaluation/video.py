"""Videos of greedy games, made without a display."""

from __future__ import annotations

import itertools
import math
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ddrl.config import EnvironmentConfig
from ddrl.envs import find_protocol, make_in_thread, plain_game
from ddrl.envs.game_names import atari_rom
from ddrl.errors import UsageError
from ddrl.evaluation.actions import Policy, actions_for
from ddrl.files import new_file
from ddrl.unfinished import check_place, unfinished

if TYPE_CHECKING:
    from ddrl.envs.gymnasium_environment import GymnasiumEnvironment

ATARI_FPS = 30
BEST_SECONDS = 60.0
"""Length of the best game's video, at most."""
BEST_GAMES = 4
PATIENCE_SECONDS = 12.0  # after which no further game is recorded, and the one under way ends and is not kept
GIF_FPS_LIMIT = 15
LEAST_WIDTH = 320


def record_best_game(
    config: EnvironmentConfig, policy: Policy, path: str | Path, *, seed: int, epsilon: float = 0.0, drawn: bool = False
) -> tuple[float, int]:
    """Record some games for up to a minute of play each, and keep the video of the best.

    Args:
        config, policy, path: see `record_game`.
        seed: of the first game; the others have the numbers after it.
        epsilon: probability of a random action, as in evaluations.
        drawn: actions are drawn from the policy, as in evaluations.

    Returns:
        What the best game scored in its video, and the number of games that it is the best of.

    Raises:
        UsageError: as `record_game`.
    """
    path, best, games = Path(path), -math.inf, 0
    end = time.monotonic() + PATIENCE_SECONDS
    with unfinished(path) as candidate:
        while games < BEST_GAMES and (not games or time.monotonic() < end):
            until = end if games else math.inf
            score = record_game(
                config,
                policy,
                candidate,
                seed=seed + games,
                epsilon=epsilon,
                drawn=drawn,
                max_seconds=BEST_SECONDS,
                until=until,
            )
            if games and time.monotonic() >= end:
                break  # cut short, it may lack the points that whole games lose
            games += 1
            if score > best or games == 1:
                candidate.replace(path)
                best = score
    return best, games


def record_game(
    config: EnvironmentConfig,
    policy: Policy,
    path: str | Path,
    *,
    seed: int,
    max_agent_steps: int = 3000,
    max_seconds: float = math.inf,
    epsilon: float = 0.0,
    drawn: bool = False,
    until: float = math.inf,
    tell: Callable[[bool], object] = lambda over: None,
) -> float:
    """Play one game, write it as .mp4 (H.264) or .gif, and return its raw score.

    Atari: in real time, 30 pictures a second, each the pixelwise maximum of two emulator frames, so
    that sprites drawn in every second frame are seen; pixels twice as wide as high, as on a television.
    Other environments: one picture per agent step, at the environment's own rate.

    Args:
        config: game and protocol; the observations are those of the protocol.
        policy: see `ddrl.evaluation.actions.Policy`.
        path: overwritten only when the video is complete.
        seed: of the environment.
        max_agent_steps: the video and the score end here when the game has not.
        max_seconds: the same, in seconds of the video.
        epsilon: probability of a random action.
        drawn: actions are drawn from the policy, not the greedy ones.
        until: they end at this time.monotonic(), too, but not before the first agent step.
        tell: is told whether the game was over when the video ended.

    Raises:
        UsageError: another suffix, a folder that does not exist, or an environment that draws no pictures.
        OSError: it cannot be written there.
    """
    path = Path(path)
    check_output(path)
    if max_agent_steps < 1:
        raise UsageError(f"a video of {max_agent_steps} agent steps; at least 1 is needed")
    game = _Game(config, policy, seed, epsilon, drawn)
    try:
        with unfinished(path) as partial:
            most = max(1, int(max_seconds * game.fps)) if math.isfinite(max_seconds) else None
            pictures = itertools.islice(game.pictures(max_agent_steps, until), most)
            os.close(new_file(partial, 0o664))  # some writers would let everybody write where the umask does
            (_write_mp4 if path.suffix == ".mp4" else _write_gif)(partial, pictures, game.fps)
            partial.replace(path)
    finally:
        game.close()
    tell(game.over)
    return game.score


def check_output(path: Path) -> None:
    """Checks, without TensorFlow, that a video can be written as `path`.

    Raises:
        UsageError: it has another suffix, or is in a directory that does not exist.
        OSError: the user may not write there.
    """
    if path.suffix not in (".mp4", ".gif"):
        raise UsageError(f"video {path}: the name must end in .mp4 or .gif")
    if not path.parent.is_dir():
        raise UsageError(f"video {path}: there is no directory {str(path.parent)!r}; make it, or name another")
    check_place(path)


class _Game:
    """One game as a stream of pictures <uint8>[h, w, 3] at `fps`."""

    def __init__(self, config: EnvironmentConfig, policy: Policy, seed: int, epsilon: float, drawn: bool) -> None:
        from ddrl.envs.gymnasium_path import make_atari

        self.score, self.over = 0.0, False
        self._env: GymnasiumEnvironment
        self._draw: Callable[[], list[np.ndarray]]
        rom = atari_rom(config.game)
        if rom is None:
            self._env, self._draw, self.fps = _other_game(config)
            repeat_fire_after = 0
        else:
            protocol = find_protocol(config.protocol)
            recorder = _AtariRecorder()
            self._env = make_atari(rom, protocol, 1, recorder.on_frame, wrappers=config.wrappers)
            self._draw, self.fps = recorder.take, ATARI_FPS
            repeat_fire_after = protocol.repeat_fire_after
        rows = self._env.num_envs
        self._act = actions_for(self._env.action_space, policy, rows, repeat_fire_after, epsilon, seed, drawn)
        self._env.reset(seed)

    def pictures(self, max_agent_steps: int, until: float) -> Iterator[np.ndarray]:
        """Play; `score` is that of the pictures so far."""
        step = self._env.recv()
        yield from self._draw()
        for _ in range(max_agent_steps):
            self._env.send(self._act(step.observation, step.env_id))
            step = self._env.recv()
            self.score += float(step.reward[0])
            self.over = bool(step.terminated[0] or step.truncated[0])
            yield from self._draw()
            # Not before the first step: games of Atari have no picture until then, and no video is without one.
            if self.over or time.monotonic() > until:
                break

    def close(self) -> None:
        self._env.close()


class _AtariRecorder:
    """Collects pairs of emulator frames into pictures; a television shows 60 frames a second."""

    def __init__(self) -> None:
        self._waiting: np.ndarray | None = None
        self._pictures: list[np.ndarray] = []

    def on_frame(self, ale: Any) -> None:
        screen = ale.getScreenRGB()
        if self._waiting is None:
            self._waiting = screen
        else:
            self._pictures.append(np.maximum(self._waiting, screen).repeat(2, axis=1))
            self._waiting = None

    def take(self) -> list[np.ndarray]:
        pictures, self._pictures = self._pictures, []
        return pictures


def _other_game(config: EnvironmentConfig) -> tuple[GymnasiumEnvironment, Callable[[], list[np.ndarray]], int]:
    game, plain = config.game, make_in_thread(plain_game(config), 1)
    plain.close()
    if "rgb_array" not in plain.render_modes:
        raise UsageError(f"{game} cannot draw pictures (it has no render mode rgb_array), so there is no video")
    env = make_in_thread(plain_game(config), 1, render_mode="rgb_array")

    def draw() -> list[np.ndarray]:
        try:
            picture = env.render()
        except Exception as error:  # whatever the libraries raise that it draws with
            raise UsageError(f"{game} cannot draw pictures here: {' '.join(str(error).split())}") from error
        return [np.asarray(picture, np.uint8)]

    return env, draw, env.fps


def _enlarged(picture: np.ndarray) -> np.ndarray:
    """At least LEAST_WIDTH wide by whole factors, and even in both directions, as H.264 needs."""
    factor = -(-LEAST_WIDTH // picture.shape[1])
    picture = picture.repeat(factor, axis=0).repeat(factor, axis=1)
    return np.pad(picture, ((0, picture.shape[0] % 2), (0, picture.shape[1] % 2), (0, 0)), mode="edge")


def _write_mp4(path: Path, pictures: Iterator[np.ndarray], fps: int) -> None:
    import imageio_ffmpeg

    frames = (np.ascontiguousarray(_enlarged(picture)) for picture in pictures)
    first = next(frames)
    # Two threads and a fast preset: a video is made while others train on the same machine.
    writer = imageio_ffmpeg.write_frames(
        str(path),
        (first.shape[1], first.shape[0]),
        fps=fps,
        codec="libx264",
        macro_block_size=2,
        pix_fmt_out="yuv420p",
        quality=None,
        ffmpeg_log_level="error",
        output_params=["-preset", "veryfast", "-crf", "20", "-threads", "2"],
    )
    try:
        writer.send(None)
        for frame in itertools.chain([first], frames):
            writer.send(frame)
    finally:
        writer.close()


def _write_gif(path: Path, pictures: Iterator[np.ndarray], fps: int) -> None:
    from PIL import Image

    every = max(1, round(fps / GIF_FPS_LIMIT))
    images = (Image.fromarray(_enlarged(p)).quantize(64) for i, p in enumerate(pictures) if i % every == 0)
    # A GIF counts in hundredths of a second.
    milliseconds = round(100 * every / fps) * 10
    next(images).save(path, save_all=True, append_images=images, duration=milliseconds, loop=0)
