"""Settings that fit their game: a network where none was named, and a word on rewards that are clipped."""

from __future__ import annotations

import contextlib
import os
import sys

import numpy as np
import pytest

from ddrl import plugins, trial
from ddrl.errors import UsageError
from ddrl.options import train_options
from ddrl.options.game_settings import check_game, tried_game
from ddrl.options.wanted import checked, ready
from ddrl.studies.point_checks import check_environments
from ddrl.types import Discrete, Machine
from tests.options.begins import BITS, BOX, DISCRETE, STEP

pytestmark = pytest.mark.slow  # Gymnasium is imported
MACHINE = Machine(2, 16 * 10**9)
DOORS = "tests.envs.doors:ddrl-test/"


def parse(line: str) -> train_options.TrainArguments:
    return train_options.parse(line.split(), MACHINE)


@pytest.mark.parametrize("line", ["ppo", "ba3c", "dqn", "impala --preset laptop", "apex-dqn"])
def test_a_game_without_images_gets_a_network_for_vectors(line):
    found = parse(f"{line} --game CartPole-v1")
    assert found.config.network.network == "mlp"
    assert len(found.notes) == 1 and found.notes[0].startswith("CartPole-v1 has no images, which --network ")
    assert parse(f"{line} --game ddrl/Catch-v0").config.network.network == "mlp", "its images are too small"


@pytest.mark.parametrize("algorithm", ["dqn", "categorical-dqn", "rainbow"])
def test_a_preset_for_games_without_images_is_named_and_has_a_network_for_them(algorithm):
    (note,) = parse(f"{algorithm} --preset laptop --game CartPole-v1").notes
    assert note.endswith("using --network mlp; or try --preset classic-control")
    assert parse(f"{algorithm} --preset classic-control").notes == ()
    (note,) = parse("apex-dqn --game CartPole-v1").notes
    assert note.endswith("using --network mlp"), "there is none"


def test_a_network_that_was_named_stays(tmp_path):
    file = tmp_path / "settings.yaml"
    file.write_text("game: CartPole-v1\nnetwork: nature\n")
    for line in ("ppo --game CartPole-v1 --network nature", f"ppo --config {file}"):
        found = parse(line)
        assert (found.config.network.network, found.notes) == ("nature", ())
    named = train_options.settings_of("ppo", None, MACHINE, game="CartPole-v1", network="a3c")
    assert named.config.network.network == "a3c"
    assert train_options.settings_of("ppo", None, MACHINE, game="CartPole-v1").config.network.network == "mlp"


@pytest.mark.parametrize("line", ["ppo", "ppo --game nothing-of-the-kind", "ppo --preset smoke --game CartPole-v1"])
def test_what_fits_or_is_refused_later_stays(line):
    assert parse(line).notes == ()


@pytest.mark.parametrize(
    "line, remedy",
    [
        ("ppo", "--reward-clip 0, or --preset mujoco"),
        ("impala", "--reward-clip 0"),
        ("ppo --reward-clip 0", ""),
        ("ppo --preset mujoco", ""),
        ("sac", ""),
    ],
)
def test_clipped_rewards_of_continuous_control_are_told(line, remedy):
    told: list[str] = []
    ready(parse(f"{line} --game Pendulum-v1 --no-video"), MACHINE, tell=told.append)
    said = [text for text in told if text.startswith("warning: rewards of Pendulum-v1 are clipped to [-1, 1]")]
    assert [text.rpartition("; give ")[2] for text in said] == ([remedy] if remedy else [])


@pytest.mark.parametrize(
    "observation, actions, info, message",
    [
        ([0, 0], DISCRETE, {"action_mask": [1, 1]}, "begins at step 0 of an episode gave an action_mask of length 2"),
        ([0, 0], DISCRETE, {"action_mask": [0, 0, 0]}, "begins at step 0 of an episode allows no action"),
        ([0], DISCRETE, {}, r"begins gave an observation of shape \(1,\), and its observation space has \(2,\)"),
        ([0], BOX, {}, r"begins gave an observation of shape \(1,\), and its observation space has \(2,\)"),
        (["a", "b"], BOX, {}, "begins gave an observation beyond its space"),
        ([np.nan, 0], BOX, {}, "begins begins with nan in its observation: have its reset give finite numbers"),
        ([0, 0], BOX, {"lives": "3"}, r'begins gave info\["lives"\] = \'3\': give a finite number, or leave it out'),
    ],
)
def test_a_game_that_does_not_begin_as_its_spaces_say_is_refused_before_the_run(
    begins, observation, actions, info, message
):
    begins(np.array(observation), actions, **info)
    with pytest.raises(UsageError, match=f"^{message}"):
        check_game(parse("ppo --preset smoke --game begins").config, MACHINE)


STEPS = {
    "four values": (STEP[:4], r"gave 4 values from its step: have it return \(observation, reward, terminated, trunc"),
    "nothing": (None, r"gave a NoneType from its step: have it return \(observation, reward, terminated, truncated"),
    "no reward": ((STEP[0], None, *STEP[2:]), "gave the reward None from its step: have it return a number"),
    "a reward as text": ((STEP[0], "1", *STEP[2:]), "gave the reward '1' from its step: have it return a number"),
    "two ends": ((*STEP[:2], np.zeros(2, bool), False, {}), r"gave terminated = array\(.* from its step: have it"),
    "no info": ((*STEP[:4], None), "gave info of NoneType from its step: have it return a dict"),
    "no lives": ((*STEP[:4], {"lives": None}), r'gave info\["lives"\] = None: give a finite number, or leave it out'),
    "another shape": ((np.zeros(3), *STEP[1:]), r"gave an observation of shape \(3,\), and its observation space has"),
    "text": ((np.array(["a", "b"]), *STEP[1:]), "gave an observation beyond its space"),
    "a NaN": ((np.array([0, np.nan]), *STEP[1:]), "gave nan in its observation from its first step: have it give fini"),
    "no number": ((STEP[0], np.nan, *STEP[2:]), "gave the reward nan from its first step: have it give finite numbers"),
    "an exception": (KeyError("level"), r"fails at its first step: KeyError: 'level' \(begins.py, line \d"),
    "an exit": (SystemExit("gone"), r"fails at its first step: SystemExit: gone \(begins.py, line \d+\)"),
}  # fmt: skip


def refused(message):
    """Expects that the game is refused with one line."""
    with pytest.raises(UsageError, match=f"^begins {message}") as error:
        check_game(parse("ppo --preset smoke --game begins").config, MACHINE)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("actions", [DISCRETE, BOX, BITS], ids=str)
@pytest.mark.parametrize("name", STEPS)
def test_a_game_whose_first_step_would_end_a_run_is_refused_before_it(begins, name, actions):
    step, message = STEPS[name]
    begins(np.zeros(2), actions, step=step)
    refused(message)


@pytest.mark.parametrize(
    "actions, first, then, message",
    [
        (DISCRETE, [0, 1, 1], None, "gave no action_mask, but its first reset gave one"),
        (DISCRETE, [0, 1, 1], [1, 1], "gave an action_mask of length 2; give it length 3"),
        (DISCRETE, [0, 1, 1], [0, 0, 0], "allows no action"),
    ],
)
def test_a_wrong_mask_of_a_first_step_is_refused_before_the_run(begins, actions, first, then, message):
    begins(np.zeros(2), actions, step=(*STEP[:4], {"action_mask": then}), action_mask=first)
    refused(f"at step 1 of an episode {message}")


@pytest.mark.parametrize("actions", [DISCRETE, BITS], ids=str)
def test_a_mask_that_only_a_first_step_gives_is_refused_before_the_run(begins, actions):
    begins(np.zeros(2), actions, step=(*STEP[:4], {"action_mask": [1, 1, 1, 1]}))
    refused("gave an action_mask, but its first reset gave none; give one with each reset, too$")


@pytest.mark.parametrize("options", ["", "--reset swap", "--random-start-steps 50", "--step-time-mean-ms 9e9"])
@pytest.mark.parametrize("actions", [DISCRETE, BOX], ids=str)
@pytest.mark.parametrize("ends", [False, True])
def test_a_trial_is_one_reset_and_one_step_whatever_is_trained_with(begins, options, actions, ends):
    calls: list[str] = []
    begins(np.zeros(2), actions, step=(*STEP[:2], ends, *STEP[3:]), called=calls.append)
    check_game(parse(f"ppo --preset smoke --game begins {options}").config, MACHINE)
    assert calls == ["make", "reset", "step"]


@pytest.mark.parametrize("actions", [DISCRETE, BOX], ids=str)
@pytest.mark.parametrize(
    "arguments",
    [lambda: parse("ppo --game begins"), lambda: train_options.settings_of("ppo", None, MACHINE, game="begins")],
    ids=["command line", "Python"],
)
def test_the_trial_of_a_game_also_shows_which_network_fits(begins, actions, arguments):
    calls: list[str] = []
    begins(np.zeros(2), actions, called=calls.append)
    assert ready(arguments(), MACHINE, tell=lambda text: None).config.network.network == "mlp"
    assert calls == ["make", "reset", "step"]


@pytest.mark.parametrize("with_game", [False, True])
def test_only_the_rank_that_checks_a_game_tries_it(begins, with_game):
    calls: list[str] = []
    begins(np.zeros(2), DISCRETE, called=calls.append)
    found = checked(["ppo", "--game", "begins", "--no-video"], MACHINE, with_game)
    arguments = train_options.settings_of("ppo", None, MACHINE, with_game, game="begins", video=False)
    assert ready(arguments, MACHINE, with_game, tell=lambda text: None).config == found.config
    assert calls == 2 * with_game * ["make", "reset", "step"]  # `settings_of` forgets trials
    with pytest.raises(UsageError, match="fit: ppo has no such setting"):
        train_options.settings_of("ppo", None, MACHINE, game="begins", fit=False)


def test_the_action_of_a_trial_is_legal(begins):
    taken: list[int] = []

    def step(action):
        taken.append(int(action))
        return *STEP[:4], {"action_mask": [1, 0, 0]}

    begins(np.zeros(2), DISCRETE, step=step, action_mask=[0, 0, 1])
    check_game(parse("ppo --preset smoke --game begins").config, MACHINE)
    assert taken == [2]


def test_a_trial_leaves_the_cores_of_the_program_as_they_are(begins):
    cores = os.sched_getaffinity(0)
    begins(np.zeros(2), DISCRETE)
    check_game(parse("ppo --preset smoke --game begins --pin-simulators").config, MACHINE)
    assert os.sched_getaffinity(0) == cores


APART = """
import os
import gymnasium, numpy, ddrl

class Apart(gymnasium.Env):
    observation_space, action_space = gymnasium.spaces.Box(0, 1, (2,)), gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return numpy.zeros(2), {}

    def step(self, action):
        raise KeyError(os.getppid())

ddrl.register_environment("apart", Apart)
"""


def test_a_game_that_is_stepped_in_processes_is_tried_in_one(tmp_path, capfd):
    (tmp_path / "apart.py").write_text(APART)
    options = f"--plugin {tmp_path / 'apart.py'} --game apart --simulator-processes 1"
    message = rf"^apart fails at its first step: KeyError: {os.getpid()} \(apart.py, line 12\); fix the environment$"
    with pytest.raises(UsageError, match=message):
        check_game(parse(f"ppo --preset smoke {options}").config, MACHINE)
    assert "Traceback" not in capfd.readouterr().err


FLATTENED = """
import ddrl, keras

def flattened(spaces, settings):
    inputs = spaces.inputs()
    return keras.Model(inputs, spaces.heads(inputs["observation"] if isinstance(inputs, dict) else inputs))

ddrl.register_network("flat", flattened)
"""


@pytest.mark.parametrize("mask", [None, [1, 0, 1]], ids=["without a mask", "with a mask"])
def test_a_network_of_a_user_is_tried_without_making_the_game_again(begins, mask, tmp_path):
    """It is tried in another process, which does not know the game."""
    (tmp_path / "flat.py").write_text(FLATTENED)
    calls: list[str] = []
    begins(np.zeros(2), DISCRETE, step=(*STEP[:4], {"action_mask": mask}), called=calls.append, action_mask=mask)
    options = f"--plugin {tmp_path / 'flat.py'} --network flat"
    config = parse(f"ppo --preset smoke --game begins {options}").config
    assert check_game(config, MACHINE) == Discrete(3)
    assert calls == ["make", "reset", "step"]


def test_what_a_replay_leaves_out_may_be_in_a_first_observation(begins):
    begins(np.array([np.nan, 0]), DISCRETE)
    assert check_game(parse("dqn --preset smoke --game begins").config, MACHINE) == Discrete(3)


@pytest.mark.parametrize("reward, options", [(np.nan, "--reward-clip 1"), (np.inf, "--reward-clip 0")])
def test_a_reward_that_a_run_could_not_learn_from_is_refused_before_it(begins, reward, options):
    begins(np.zeros(2), DISCRETE, step=(STEP[0], reward, *STEP[2:]))
    with pytest.raises(UsageError, match=f"^begins gave the reward {reward} from its first step: have it give finite"):
        check_game(parse(f"ppo --preset smoke --game begins {options}").config, MACHINE)


@pytest.mark.parametrize(
    "step, line",
    [
        ((np.array([np.nan, 0]), np.nan, *STEP[2:]), "dqn --preset smoke"),
        ((STEP[0], np.inf, *STEP[2:]), "ppo --preset smoke --reward-clip 1"),
    ],
)
def test_what_a_replay_leaves_out_or_a_clip_makes_finite_may_be_in_a_first_step(begins, step, line):
    begins(np.zeros(2), DISCRETE, step=step)
    assert check_game(parse(f"{line} --game begins").config, MACHINE) == Discrete(3)


def test_another_point_of_a_study_may_need_what_a_replay_leaves_out(begins):
    calls: list[str] = []
    begins(np.array([np.nan, 0]), DISCRETE, called=calls.append)
    dqn, ppo = (parse(f"{name} --preset smoke --game begins").config for name in ("dqn", "ppo"))
    assert dqn.environment == ppo.environment
    with pytest.raises(UsageError, match="^begins begins with nan in its observation"):
        check_environments([dqn, ppo])
    assert calls == ["make", "reset", "step"], "once for all points"


def test_an_option_that_does_nothing_is_told_of_before_the_run():
    told: list[str] = []
    ready(parse("ppo --preset smoke --rmsprop-decay 0.5"), MACHINE, tell=told.append)
    only = "only --optimizer rmsprop or rmsprop-centered uses it"
    assert told == [f"warning: --rmsprop-decay 0.5 does nothing in this run: {only}"]


def test_a_step_function_that_fails_is_refused_before_the_run():
    plugins.register_optimizer("broken", lambda gradient, parameter, count: gradient / {}["x"])
    with pytest.raises(UsageError, match="^--optimizer broken: its step function fails: KeyError: 'x'"):
        ready(parse("ppo --preset smoke --optimizer broken"), MACHINE)


def test_actions_that_do_not_fit_are_refused_whatever_the_network():
    with pytest.raises(UsageError, match="dqn takes discrete actions"):
        ready(parse("dqn --game Pendulum-v1"), MACHINE)


@pytest.mark.parametrize("status", [0, 1])
def test_a_library_that_prints_bytes_that_are_no_text_gets_no_network_refused(monkeypatch, status):
    program = f"import os; os.write(1, b'\\xff'); os.write(2, b'\\xff no\\n'); raise SystemExit({status})"
    monkeypatch.setattr(trial, "python_command", lambda module: [sys.executable, "-c", program])
    refused = pytest.raises(UsageError, match="network mlp cannot be tried: . no$")
    arguments = parse("ppo --game CartPole-v1")
    with refused if status else contextlib.nullcontext():
        trial.try_network(arguments.config, tried_game(arguments.config.environment))


@pytest.mark.parametrize(
    "words, message",
    [
        ("--hidden-layers 32", "--hidden-layers 32: observations of .*Doors-v0 have an image among their entries"),
        ("--activation relu", "--activation relu: observations of .*Doors-v0 have an image among their entries"),
        ("--layer-norm", "--layer-norm: observations of .*Doors-v0 have an image among their entries"),
        ("--fc-neurons 64", "--fc-neurons 64: only --network ba3c has this layer; leave it out"),
        ("--initial-log-deviation -1", "--initial-log-deviation -1.0: actions of .*-v0 are not continuous, .* give 0"),
    ],
)
def test_options_that_the_network_does_not_read_are_refused_in_a_new_run(words, message):
    arguments = parse(f"ppo --preset smoke --network mlp --game {DOORS}Doors-v0 {words}")
    with pytest.raises(UsageError, match=message):
        ready(arguments, MACHINE)
    assert check_game(arguments.config, MACHINE, resumes=True) == Discrete(4)


@pytest.mark.parametrize(
    "line",
    [
        "ppo --preset smoke --hidden-layers 32 --activation relu --layer-norm --game CartPole-v1",
        f"sac --preset smoke --activation elu --layer-norm --game {DOORS}BoxDoors-v0",
        f"ppo --preset smoke --network ba3c --fc-neurons 64 --game {DOORS}Doors-v0",
    ],
)
def test_options_that_the_network_reads_are_not_refused(line):
    assert ready(parse(f"{line} --no-video"), MACHINE).resume is None


@pytest.mark.parametrize(
    "line, message",
    [
        (
            "ppo --unroll-length 1e6 --simulators 65536 --batch-size 0",
            "rollouts of 1000000 steps of 65536 simulators need",
        ),
        ("hts-ppo --unroll-length 1e5 --batch-size 0", "GB are free here: lower --unroll-length or --simulators"),
        ("ba3c --batch-size 1e12", "batches of 1000000000000 data-points need .* lower --batch-size"),
        ("ba3c --epochs 2 --pool-batches 1e9", "pools of 1000000000 batches of 32 data-points need .* --pool-batches"),
        ("dqn --batch-size 1e9", "batches of 1000000000 data-points need"),
        ("categorical-dqn --atoms 1e4", "--atoms 10000: the targets of 512 transitions need 204.8 GB .* lower --atoms"),
        ("rainbow --atoms 1e4", "--atoms 10000: the targets of 32 transitions need .* GB .* lower --atoms"),
        (
            "ppo --workers 3 --parameter-servers 1 --unroll-length 30000 --batch-size 0",
            r"need 6.8 GB .* \(20.3 GB with all else of 3 workers\), and 16.0 GB are free here",
        ),
    ],
)
def test_what_does_not_fit_into_memory_is_refused_before_anything_is_allocated(line, message):
    with pytest.raises(UsageError, match=message):
        ready(parse(f"{line} --game breakout"), MACHINE)
