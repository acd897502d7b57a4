"""A new run begins with the parameters of an earlier one: which those are, what is refused, and what is not taken."""

from __future__ import annotations

import contextlib
import re
import shutil
import types
from pathlib import Path

import numpy as np
import pytest

from ddrl import algorithms, cli, rundir
from ddrl import checkpoint as checkpoints
from ddrl.checkpoint import Checkpoint, best_path, checkpoint_path
from ddrl.commands import study, tune
from ddrl.config import TrainConfig
from ddrl.envs import make_environment
from ddrl.errors import UsageError
from ddrl.exchange.optimizers import make_optimizer
from ddrl.init_from import source_of
from ddrl.networks.network import Network
from ddrl.options.train_options import parse, settings_of
from ddrl.options.wanted import ready
from ddrl.roles import compute
from ddrl.tuning import plan as tuning
from ddrl.types import Machine

MACHINE = Machine(2, 16 * 10**9)
SMOKE = ("ba3c", "--preset", "smoke")


def network_of(config: TrainConfig) -> Network:
    with contextlib.closing(make_environment(config.environment, num_envs=1)) as environment:
        shape, dtype, space = environment.observation_shape, environment.observation_dtype, environment.action_space
    return algorithms.network_for(config, shape, dtype, space)


def checkpoint_of(config: TrainConfig, version: int) -> Checkpoint:
    """Parameters and slots that no run begins with."""
    network = network_of(config)
    parameters = np.random.default_rng(version).standard_normal(network.size).astype(np.float32)
    slots = dict.fromkeys(make_optimizer(config.optimizer, network.size).slots, parameters)
    return Checkpoint(
        version, version, 100 * version, 1.0, parameters, slots, version, network.parameter_shapes,
        worker_states={0: {"draws": np.arange(3)}}, config=rundir.config_to_dict(config),
    )  # fmt: skip


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A run with checkpoints of updates 3 and 7, and with that of update 5 as its best, in the current directory."""
    monkeypatch.chdir(tmp_path)
    path, config = rundir.create_run_dir(parse([*SMOKE, "--run-dir", "run"], MACHINE).config)
    for version in (3, 7):
        checkpoints.save(path, checkpoint_of(config, version))
    checkpoints.save_best(path, checkpoint_of(config, 5))
    return path


def roles(config: TrainConfig, run_dir: Path) -> compute.ComputeRoles:
    """Of a rank, as far as they make what a run begins with."""
    made = compute.ComputeRoles.__new__(compute.ComputeRoles)
    made.context = types.SimpleNamespace(config=config, run_dir=run_dir)
    made.network = network_of(config)
    return made


@pytest.mark.parametrize(
    "named, version",
    [
        ("run", 7),
        ("run/checkpoints", 7),
        ("run:3", 3),
        ("run:best", 5),
        ("run/checkpoints/update-3.npz", 3),
        ("run/checkpoints/best.npz", 5),
        ("run:copy.npz", 3),
        ("copy.npz", 3),
    ],
)
def test_the_checkpoint_that_is_named_is_taken(run, named, version):
    shutil.copy(checkpoint_path(run, 3), "copy.npz")
    source = source_of(named)
    assert source.checkpoint.version == version
    assert source.path.is_absolute() and source_of(str(source.path)).checkpoint.version == version
    assert source.record == {"file": str(source.path), "update": version, "agent_steps": 100 * version}


def test_a_damaged_newest_checkpoint_is_left_out_and_named(run, capsys):
    newest = checkpoint_path(run, 7)
    newest.write_bytes(newest.read_bytes()[:-1])
    assert source_of("run").checkpoint.version == 3
    assert f"warning: checkpoint {newest} is damaged" in capsys.readouterr().err
    with pytest.raises(UsageError, match="^--init-from run:7: checkpoint .* is damaged"):
        source_of("run:7")


@pytest.mark.parametrize("named", ["a\0b", "a\0b:3", "run:a\0b.npz"])
def test_a_name_that_no_file_can_have_is_refused_in_one_line(run, named):
    with pytest.raises(UsageError, match=r"^--init-from '.*\\x00b.*': .*null") as refusal:
        ready(settings_of("ba3c", "smoke", MACHINE, init_from=named), MACHINE)
    assert "\n" not in str(refusal.value) and "\0" not in str(refusal.value)


OTHER_SHAPE = (
    r"--init-from \S+: the checkpoint's network differs at tensor 0: the checkpoint has '(\S+)' \[50, 64\], this run "
    r"has '\1' \[50, 8\]; use a network, algorithm, and game with the same tensors, or leave --init-from out"
)


@pytest.mark.parametrize(
    "words, message",
    [
        ((*SMOKE, "--init-from", "gone"), "--init-from gone: gone is no directory; name a run that has a checkpoint"),
        ((*SMOKE, "--init-from", "empty"), "--init-from empty: empty has no checkpoint; name a run that has a check"),
        ((*SMOKE, "--init-from", "run:4"), "--init-from run:4: run has no checkpoint of update 4, only of update"),
        ((*SMOKE, "--init-from", "gone:best"), "--init-from gone:best: cannot read checkpoint gone/checkpoints/best"),
        ((*SMOKE, "--init-from", "run", "--hidden-layers", "8"), OTHER_SHAPE),
        (
            ("dqn", "--preset", "smoke", "--init-from", "run"),
            r"--init-from \S+: .* the checkpoint has 'policy\S+' \[.*\], this run has 'q\S+' \[.*\]; use a network",
        ),
        (("--resume", "run", "--init-from", "run:3"), "--init-from run:3: a resumed run goes on with its own paramet"),
    ],
)
def test_what_cannot_be_begun_with_is_refused_in_one_line_before_anything_is_made(run, words, message, capsys):
    Path("empty").mkdir()
    before = sorted(Path().rglob("*"))
    assert cli.main(["train", *words]) == 2
    said = capsys.readouterr()
    assert re.match(f"ddrl: {message}", said.err) and said.err.count("\n") == 1, said.err
    assert said.out == "" and sorted(Path().rglob("*")) == before


def test_the_settings_name_the_file_from_the_command_line_and_from_python(run):
    newest = str(checkpoint_path(run, 7).absolute())
    words = ready(parse(["a2c", "--preset", "smoke", "--init-from", "run", "--seed", "2"], MACHINE), MACHINE)
    names = ready(settings_of("a2c", "smoke", MACHINE, init_from=Path("run"), seed=2), MACHINE)
    assert words == names and words.config.run.init_from == newest, "another algorithm with the same tensors"
    assert ready(parse(list(SMOKE), MACHINE), MACHINE).config.run.init_from == ""


def test_a_new_run_takes_the_parameters_and_nothing_else(run):
    config = ready(parse([*SMOKE, "--init-from", "run:3"], MACHINE), MACHINE).config
    source = checkpoints.load(checkpoint_path(run, 3))
    start = roles(config, Path("new"))._start(resume=False).checkpoint
    drawn = roles(config.changed(run={"init_from": ""}), Path("new"))._start(resume=False).checkpoint
    assert start.parameters.tobytes() == source.parameters.tobytes() != drawn.parameters.tobytes()
    for name in ("version", "step", "agent_steps", "wall_seconds", "optimizer_count", "layout", "worker_states"):
        assert getattr(start, name) == getattr(drawn, name), name
    assert start.slots.keys() == drawn.slots.keys() == source.slots.keys()
    assert not any(slot.any() for slot in start.slots.values())
    assert drawn.counters == {}
    assert start.counters == {
        "init_from": {"file": str(checkpoint_path(run, 3).absolute()), "update": 3, "agent_steps": 300}
    }


def test_a_rank_refuses_other_tensors_too(run):
    config = parse([*SMOKE, "--init-from", "run", "--hidden-layers", "8"], MACHINE).config
    with pytest.raises(UsageError, match=OTHER_SHAPE):
        roles(config, Path("new"))._start(resume=False)


def test_a_run_with_a_checkpoint_goes_on_without_its_source(run):
    words = [*SMOKE, "--run-dir", "new", "--resume-or-start", "--init-from"]
    first = ready(parse([*words, "run:3"], MACHINE), MACHINE)
    assert first.resume is None
    new, config = rundir.create_run_dir(first.config)
    again = ready(parse([*words, "run:best"], MACHINE), MACHINE)
    assert again.resume == new and again.config.run.init_from == str(best_path(run).absolute()), "from its beginning"
    own = checkpoint_of(config, 1)
    checkpoints.save(new, own)
    shutil.rmtree(run)
    for line in ([*words, "run:best"], ["--resume", "new"], ["--resume", "new", "--init-from", config.run.init_from]):
        resumed = ready(parse(line, MACHINE), MACHINE)
        assert resumed.resume == new and resumed.config.run.init_from == config.run.init_from
    by_name = ready(settings_of(None, None, MACHINE, resume=new), MACHINE)
    assert by_name.config.run.init_from == config.run.init_from
    started = roles(resumed.config, new)._start(resume=True).checkpoint
    assert started.parameters.tobytes() == own.parameters.tobytes() and started.version == 1
    shutil.rmtree(new / "checkpoints")
    with pytest.raises(UsageError, match=f"^--init-from {config.run.init_from}: cannot read checkpoint"):
        ready(parse(["--run-dir", "new", "--resume-or-start"], MACHINE), MACHINE)


def test_the_trials_of_a_search_begin_with_the_file_that_was_the_newest_at_its_start(run, monkeypatch):
    pytest.importorskip("optuna")
    monkeypatch.setattr(tune, "act", lambda *_: 0)
    words = (*SMOKE, "--agent-steps", "1e4", "--space", "batch-size=choice(32,128)", "--dir", "search")
    assert cli.main(["tune", *words, "--init-from", "run"]) == 0
    checkpoints.save(run, checkpoint_of(parse(list(SMOKE), MACHINE).config, 9))
    plan = tuning.load(Path("search"))
    assert plan is not None and plan.of_trials.run.init_from == str(checkpoint_path(run, 7).absolute())


def test_the_points_of_a_study_begin_with_the_file_that_is_the_newest_at_its_start(run):
    variants = study.study_of("variants")
    actions, settings, _ = study.parse(variants, ["--quick", "--list", "--train-options=--init-from run"])
    points = study.planned(variants, actions, settings, "").points
    assert {point.config.run.init_from for point in points} == {str(checkpoint_path(run, 7).absolute())}
    actions, settings, _ = study.parse(variants, ["--quick", "--list", "--train-options=--init-from gone"])
    with pytest.raises(UsageError, match="^--init-from gone: gone is no directory"):
        study.planned(variants, actions, settings, "")
