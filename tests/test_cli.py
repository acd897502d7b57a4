"""The command line: help at once, flat flags, presets, one line and status 2 for bad input."""

from __future__ import annotations

import dataclasses
import os
import re
import signal
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from cluster.job import Job
from ddrl import algorithms, cli, rundir
from ddrl.algorithms import ba3c
from ddrl.algorithms.ba3c import BA3CConfig
from ddrl.checkpoint import checkpoint_path
from ddrl.config import ExchangeConfig, RunConfig, TrainConfig
from ddrl.errors import UsageError
from ddrl.exchange.learning_rates import anneal
from ddrl.launch.job import check_world
from ddrl.options import train_options
from ddrl.options.wanted import Wanted, ready
from ddrl.placement.resources import check_machine
from ddrl.reporting.machine import source_mark
from ddrl.types import Machine

MACHINE = Machine(2, 16 * 10**9)
HEAVY = ("tensorflow", "mpi4py", "ale_py", "gymnasium", "matplotlib", "cv2")


def ddrl(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ddrl.cli", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=os.environ | variables,
    )


def parse(line: str) -> train_options.TrainArguments:
    return train_options.parse(line.split(), MACHINE)


@pytest.mark.parametrize(
    "arguments", [["--help"], ["--version"], ["train", "--help"], ["evaluate", "--help"], ["play", "--help"]]
)
def test_help_imports_nothing_heavy(arguments):
    program = (
        "import sys\nfrom ddrl import cli\n"
        f"try:\n    status = cli.main({arguments!r})\nexcept SystemExit as end:\n    status = end.code\n"
        f"heavy = [name for name in {HEAVY!r} if name in sys.modules]\n"
        "sys.exit(f'imported {heavy}' if heavy else status)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_the_version_has_a_mark_of_the_source(capsys):
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"ddrl {version('ddrl')}, source {source_mark()}\n"


def help_text(*arguments: str) -> str:
    """The whole help of `ddrl train` without line ends."""
    return " ".join(ddrl("train", *arguments, "--help-all", COLUMNS="90").stdout.split())


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", list(algorithms.names()))
def test_help_explains_every_option_of_an_algorithm(algorithm):
    text = help_text(algorithm)
    config = parse(algorithm).config
    for group in dataclasses.fields(config):
        for field in dataclasses.fields(getattr(config, group.name)):
            option = {"plugins": "plugin"}.get(field.name, field.name)
            assert re.search(rf"--(\[no-\])?{option.replace('_', '-')}\b", text)
    others = {"--importance-clip", "--gae-lambda", "--clip-range", "--rho-clip"}
    own = {"--" + field.name.replace("_", "-") for field in dataclasses.fields(config.algorithm)}
    assert not any(option + " " in text for option in others - own)


def test_help_says_units_and_defaults():
    text = help_text()
    assert "--minutes X Training time of this run, in minutes of wall time (0: no such budget)." in text
    assert "--[no-]evaluator" in text and "--deterministic Promise" in text


def test_help_shows_the_presets_defaults():
    assert "what papers call backup workers. [60; default, laptop 0]" in help_text("--preset", "ba3c-paper")
    assert "what papers call backup workers. [0; ba3c-paper 60]" in help_text()


def test_flags_are_flat():
    config = parse(
        "ba3c --game pong --workers 4 --parameter-servers=2 --batch-size 16 --adam-epsilon 1e-4 --no-video "
        "--minutes 2 --target-score 18 --chief dedicated"
    ).config
    assert config.environment.game == "pong"
    assert config.exchange == ExchangeConfig(workers=4, parameter_servers=2, chief="dedicated")
    assert (config.optimizer.batch_size, config.optimizer.adam_epsilon) == (16, 1e-4)
    assert (config.run.video, config.run.minutes, config.evaluation.target_score) == (False, 2.0, 18.0)


def test_a_preset_is_the_default_and_flags_win():
    config = parse("ba3c --preset ba3c-paper --game pong --quorum 50").config
    assert config.exchange.quorum == 50
    assert config.optimizer.adam_epsilon == ba3c.ADAM_EPSILON["pong"]
    assert config.evaluation.target_score == ba3c.TARGET_SCORES["pong"]
    assert parse("ba3c --preset smoke").config.environment.game == "ddrl/Catch-v0"
    assert parse("ba3c --preset smoke --game CartPole-v1").config.environment.game == "CartPole-v1"
    assert parse("").config == TrainConfig(algorithm=BA3CConfig())


@pytest.mark.parametrize("line", ["--init-from ppo", "ba3c --init-from ppo", "--init-from ppo ba3c"])
def test_a_run_that_is_called_like_an_algorithm_names_none(line):
    arguments = parse(line)
    assert (arguments.algorithm, arguments.config.title, arguments.config.run.init_from) == ("ba3c", "ba3c", "ppo")


def test_the_examples_of_help_begin_on_a_laptop():
    examples = [line.strip() for line in cli.EXAMPLES.strip().splitlines()]
    assert all(line.split()[0] == "ddrl" and line.split()[1] in cli.COMMANDS for line in examples)
    training = [line.removeprefix("ddrl train ") for line in examples if line.startswith("ddrl train ")]
    assert training
    for line in training:
        wanted = ready(parse(line), MACHINE)
        check_machine(wanted.config, MACHINE)


@pytest.mark.parametrize("line", ["train ppo", "plan", "bench train"])
def test_help_before_a_command_is_its_own(line, capsys):
    for words in (["help", *line.split()], [*line.split(), "--help"]):
        with pytest.raises(SystemExit):
            cli.main(words)
    one, other = capsys.readouterr().out.split("usage: ")[1:]
    assert one == other and one.startswith(f"ddrl {line}")


def test_resume_starts_from_the_runs_settings(tmp_path):
    saved = TrainConfig(
        algorithm=BA3CConfig(), run=RunConfig(run_dir="elsewhere", minutes=7.0), exchange=ExchangeConfig(workers=3)
    )
    path, _ = rundir.create_run_dir(saved_in(saved, tmp_path / "run"))
    arguments = parse(f"--resume {path} --minutes 1 --parameter-servers 2")
    assert arguments.resume == str(path)
    assert arguments.config.run == RunConfig(run_dir=str(path), minutes=1.0)
    assert arguments.config.exchange == ExchangeConfig(workers=3, parameter_servers=2)


def saved_in(config: TrainConfig, path) -> TrainConfig:
    return TrainConfig(
        algorithm=BA3CConfig(), run=RunConfig(run_dir=str(path), minutes=config.run.minutes), exchange=config.exchange
    )


@pytest.mark.parametrize(
    "more, message",
    [
        ("--game pong", "--game pong: the run to resume has breakout"),
        ("--network a3c", "--network a3c: the run to resume has nature"),
        ("--run-dir other", "--run-dir other: a resumed run stays in"),
        ("--preset smoke", "--preset with --resume"),
        ("--init-from other", "--init-from other: a resumed run goes on with its own parameters; leave it out"),
    ],
)
def test_what_a_resumed_run_cannot_change(tmp_path, more, message):
    path, _ = rundir.create_run_dir(saved_in(TrainConfig(algorithm=BA3CConfig()), tmp_path / "run"))
    with pytest.raises(UsageError, match=message):
        parse(f"--resume {path} {more}")


@pytest.mark.parametrize(
    "arguments, message",
    [
        ("color", "color: no such command"),
        ("train ba3c --quorum 9", "--quorum 9: no step could ever close"),
        ("train ba3c --learning-rate nan", "--learning-rate nan"),
        ("train ba3c --adam-epsilon=-1", "--adam-epsilon -1.0"),
        ("train --resume /nowhere", "/nowhere does not exist, so it is not a run"),
        ("train --preset other", "--preset other: there is none"),
        ("train --game", "--game: it needs a value"),
        ("evaluate /nowhere", "/nowhere does not exist, so it is not a run"),
        ("play /nowhere", "/nowhere does not exist, so it is not a run"),
        ("bench", "bench: say what to measure"),
        ("bench color", "bench color: no such benchmark"),
    ],
)
def test_bad_input_is_one_line_and_status_2(arguments, message):
    done = ddrl(*arguments.split())
    assert done.returncode == 2
    assert done.stderr.startswith(f"ddrl: {message}"), done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


@pytest.mark.parametrize(
    "words, refusal, told",
    [
        ("train ppo --plugin a.py b.py", "b.py belongs to no option", "--plugin a.py --plugin b.py"),
        ("train --plugin=a.py b.py", "b.py: there is no such algorithm", "--plugin a.py --plugin b.py"),
        ("train --plugin a --plugin b c --seed 1", "c: there is no such algorithm", "--plugin b --plugin c"),
        ("train --seed 1 --plugin a b", "b: must be one of ba3c, ", "--plugin a --plugin b"),
        ("evaluate --plugin a b", "b does not exist, so it is not a run", "--plugin a --plugin b"),
        ("compare --plugin a b b", "b is named twice", ""),
        ("train ppo --plugin a --game", "--game: it needs a value", ""),
        ("train ppo --plugin a --seed 1 b", "b belongs to no option", ""),
    ],
)
def test_a_refused_word_behind_a_plugin_may_be_another_one(tmp_path, monkeypatch, words, refusal, told):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("ddrl.plugin_modules.load_named", lambda *named, **more: [])
    with pytest.raises(UsageError) as refused:
        cli.dispatch(words.split())
    said, _, how = str(refused.value).partition("; if it is a plugin, too, give --plugin once for each: ")
    assert said.startswith(refusal) and how == told, refused.value


@pytest.mark.parametrize("arguments", ["train ba3c --color red", "train sarsa", "train ba3c --workers many"])
def test_what_cannot_be_parsed_is_short_and_status_2(arguments):
    done = ddrl(*arguments.split())
    assert done.returncode == 2
    assert done.stdout == ""
    assert 0 < done.stderr.count("\n") < 25
    assert "Traceback" not in done.stderr


def test_an_existing_run_directory_is_left_alone(tmp_path):
    (tmp_path / "thing").touch()
    done = ddrl("train", "ba3c", "--game", "CartPole-v1", "--network", "mlp", "--run-dir", str(tmp_path))
    assert done.returncode == 2
    assert done.stderr.startswith(f"ddrl: run directory {tmp_path} holds other files")
    assert [file.name for file in tmp_path.iterdir()] == ["thing"]


def test_an_unknown_game_is_refused_before_anything_is_made(tmp_path):
    done = ddrl("train", "ba3c", "--game", "brakeout", "--run-dir", str(tmp_path / "run"))
    assert done.returncode == 2
    assert "brakeout" in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "run").exists()


RANK_1 = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "3"}


def test_ranks_that_mpi_does_not_know_are_refused_by_rank_0_alone(tmp_path):
    line = ["train", "ba3c", "--workers", "4", "--run-dir", str(tmp_path / "run")]
    first = ddrl(*line, OMPI_COMM_WORLD_RANK="0", OMPI_COMM_WORLD_SIZE="3")
    assert first.returncode == 2
    assert first.stderr.startswith("ddrl: the launcher started 3 ranks, but MPI sees 1, ")
    second = ddrl(*line, **RANK_1)
    assert (second.returncode, second.stderr) == (2, "")
    assert not (tmp_path / "run").exists()


def test_worlds():
    check_world(TrainConfig(algorithm=BA3CConfig()), 4)
    with pytest.raises(UsageError, match="has 5 ranks and the settings need 4"):
        check_world(TrainConfig(algorithm=BA3CConfig()), 5)


def test_in_a_job_nothing_is_launched(monkeypatch, tmp_path):
    seen = []
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "4")
    monkeypatch.setattr("ddrl.launch.job.train_in_job", lambda parse, job: seen.append((parse(), job)) or 0)
    monkeypatch.setattr("ddrl.commands.train.this_machine", lambda: MACHINE)
    before = signal.getsignal(signal.SIGTERM)
    try:
        assert cli.main(["train", "ba3c", "--minutes", "3"]) == 0
    finally:
        signal.signal(signal.SIGTERM, before)
    assert seen == [
        (Wanted(TrainConfig(algorithm=BA3CConfig(), run=RunConfig(minutes=3.0)), None), Job(0, 4, "openmpi"))
    ]


@pytest.mark.parametrize(("job", "status"), [({}, -signal.SIGTERM), (RANK_1, 1)])
def test_a_rank_that_its_launcher_ends_as_it_starts_hides_no_refusal(job, status):
    program = (
        "import os, signal, sys; from ddrl import cli; "
        "cli.dispatch = lambda line: os.kill(os.getpid(), signal.SIGTERM); sys.exit(cli.main(['train']))"
    )
    assert subprocess.run([sys.executable, "-c", program], env=os.environ | job, timeout=60).returncode == status


@pytest.mark.parametrize("job", [RANK_1 | {"OMPI_COMM_WORLD_RANK": "0"}, RANK_1])
def test_a_rank_that_its_launcher_ends_as_it_ends_itself_keeps_its_status(job):
    program = (
        "import os, signal, sys; from ddrl import cli\n"
        "cli.SECOND_RANK_PATIENCE_SECONDS = 0\n"
        "class Last:\n"
        "    def __del__(self, kill=os.kill, who=os.getpid(), number=signal.SIGTERM): kill(who, number)\n"
        "last = Last(); sys.exit(cli.main(['trian']))"
    )
    assert subprocess.run([sys.executable, "-c", program], env=os.environ | job, timeout=60).returncode == 2


def test_control_c_is_130(monkeypatch, capsys):
    def interrupted(arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "dispatch", interrupted)
    assert cli.main(["train"]) == 130
    assert capsys.readouterr().err == "ddrl: interrupted\n"


def test_a_reader_that_leaves_early_gets_no_traceback():
    command = [sys.executable, "-u", "-m", "ddrl.cli", "plan", "--preset", "smoke", "--nodes", "2"]
    reading, writing = os.pipe()
    os.close(reading)  # before the program starts: later, all that it writes might be in the pipe already
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=60)
    os.close(writing)
    assert done.returncode == 141 and "Traceback" not in done.stderr


def with_checkpoint(run: str) -> None:
    """The run has trained; only the name of its checkpoint counts here."""
    path = checkpoint_path(run, 3)
    path.parent.mkdir()
    path.touch()


def steps_of_schedule(run: str, more: str) -> int:
    """The length of the schedule of the learning rate at a resume."""
    return parse(f"--resume {run} {more}").config.optimizer.learning_rate_agent_steps


def test_a_resume_with_other_workers_does_not_move_a_schedule_over_agent_steps(tmp_path):
    """Half of table 5's schedule is left at the same update, whatever an update stands for from now on."""
    run, half = str(tmp_path / "run"), 58_594
    rundir.create_run_dir(parse(f"ppo --run-dir {run}").config)
    assert steps_of_schedule(run, "--epochs 10") == 10_000_000, "nothing was trained yet"
    with_checkpoint(run)
    before = parse(f"--resume {run}").config
    left = lambda config: anneal(config.optimizer, half, config.agent_steps_per_update)
    assert before.optimizer.learning_rate_agent_steps == 10_000_000 and left(before) == pytest.approx(0.5, abs=1e-4)
    for more in ("--exchange allreduce --workers 4", "--epochs 10", "--simulators 16 --batch-size 512"):
        now = parse(f"--resume {run} {more}").config
        assert now.agent_steps_per_update != before.agent_steps_per_update
        assert left(now) == pytest.approx(0.5, abs=1e-4), more
    chosen = parse(f"--resume {run} --epochs 10 --learning-rate-agent-steps 7").config
    assert chosen.optimizer.learning_rate_agent_steps == 7, "what a user says wins"


def test_options_may_be_spelt_with_underscores_everywhere(tmp_path, capsys):
    """Also those that are read before all others, and those of commands that pass the rest on."""
    assert cli.main(["train", "ppo", "--print_config", "--adam_epsilon=1e-7"]) == 0
    assert "adam-epsilon: 1.0e-07" in capsys.readouterr().out
    assert cli.main(["study", "race", "--from_data", str(tmp_path / "none")]) == 2
    assert f"--from-data {tmp_path / 'none'}" in capsys.readouterr().err
    assert cli.main(["train", "--run_dir", "a_b/c_d", "--resume_or_start", "--preset", "no_such"]) == 2
    assert "no_such" in capsys.readouterr().err, "values stay as they are"


def test_a_job_that_is_requeued_twice_repeats_the_length_of_a_schedule_that_goes_on(tmp_path):
    run, half = str(tmp_path / "run"), 2_000
    command = f"ppo --run-dir {run} --resume-or-start --learning-rate-agent-steps 6e6 --exchange allreduce --workers "
    first = parse(command + "1").config
    rundir.create_run_dir(first)
    with_checkpoint(run)
    for workers in (2, 2, 4):
        config = parse(command + str(workers)).config
        assert config.optimizer.learning_rate_agent_steps == workers * 6_000_000
        assert anneal(config.optimizer, half, config.agent_steps_per_update) == pytest.approx(
            anneal(first.optimizer, half, first.agent_steps_per_update)
        )
        rundir.update_run_dir(Path(run), config)


def test_a_resume_with_another_batch_does_not_move_the_exponent_of_importance(tmp_path):
    run = str(tmp_path / "run")
    rundir.create_run_dir(parse(f"rainbow --run-dir {run}").config)
    with_checkpoint(run)
    before, now = parse(f"--resume {run}").config, parse(f"--resume {run} --batch-size 64 --steps-per-update 8").config
    assert now.agent_steps_per_update != before.agent_steps_per_update
    beta = [config.replay.importance(5_000_000, config.agent_steps_per_update) for config in (before, now)]
    assert beta[0] == pytest.approx(beta[1], abs=1e-4) and 0.45 < beta[0] < 0.95
