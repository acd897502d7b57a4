"""A game is tried once in each command, whatever comes of it."""

from __future__ import annotations

import contextlib
import gc
import io
import weakref
from pathlib import Path

import numpy as np
import pytest
import yaml

from cluster.topology import Seat
from ddrl import plugins
from ddrl.commands import doctor, plan, submit, train, tune
from ddrl.errors import UsageError
from ddrl.options import train_options
from ddrl.options.wanted import ready
from ddrl.placement.ranks import place_ranks
from ddrl.slurm import site
from ddrl.studies.point_checks import check_environments
from ddrl.studies.settings import TrainingSettings, base_config
from ddrl.types import Machine
from tests.options.begins import BITS, DISCRETE, Begins

pytestmark = pytest.mark.slow  # Gymnasium is imported
MACHINE = Machine(2, 16 * 10**9)
LINE = ["ppo", "--game", "begins", "--minutes", "1"]


def search():
    pytest.importorskip("optuna")
    arguments = tune.TuneArguments(space=("learning-rate=log(1e-4,1e-2)",), submit=True, dry_run=True)
    return tune.begin(Path("search"), arguments, LINE, "ddrl tune").base.network.network


def job():
    """Without a number of workers, so that the one that fits is looked for."""
    made = submit.read_job([*LINE, "--nodes", "1", "--ranks-per-node", "6", "--parameter-servers", "1"])
    assert made.script()  # which asks for memory
    return made.config.network.network


def examined():
    arguments = doctor.parse(LINE)
    assert doctor.need_of(arguments, alone=True).memory(place_ranks(arguments.train.config, [Seat()]))
    return arguments.train.config.network.network


def study():
    """Of two algorithms, with settings of training that a trial does without."""
    chosen = TrainingSettings(train_options="--random-start-steps 5")
    configs = [base_config(chosen, name, "begins", MACHINE) for name in ("ppo", "impala")]
    check_environments(config.changed(run={"seed": seed}) for config in configs for seed in (1, 2))
    return configs[1].network.network


def printed(command, *words):
    """The network that a command prints: YAML or JSON."""
    with contextlib.redirect_stdout(io.StringIO()) as text:
        assert command([*LINE, *words]) == 0
    return yaml.safe_load(text.getvalue())["network"]


WHOLE = {
    "train": lambda: ready(train_options.parse(LINE, MACHINE), MACHINE, tell=lambda text: None).config.network.network,
    "Python": lambda: (
        ready(train_options.settings_of("ppo", None, MACHINE, game="begins"), MACHINE).config.network.network
    ),
    "train --print-config": lambda: printed(train.main, "--print-config"),
    "plan": lambda: printed(plan.main, "--nodes", "1", "--json", "-"),
    "tune": search,
    "submit": job,
    "doctor": examined,
    "study": study,
}


@pytest.fixture
def in_empty(tmp_path, monkeypatch):
    """An empty directory, without site files."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(site.VARIABLE, "")


@pytest.mark.parametrize("command", WHOLE)
def test_a_command_tries_a_game_once(begins, command, in_empty):
    calls: list[str] = []
    begins(np.zeros(2), DISCRETE, called=calls.append)
    assert WHOLE[command]() == "mlp"
    assert calls == ["make", "reset", "step"]


@pytest.mark.parametrize("command", WHOLE)
def test_a_game_that_fails_is_refused_by_its_first_trial(begins, command, in_empty):
    """And not for its network, which nobody knows."""
    calls: list[str] = []
    begins(np.zeros(2), DISCRETE, step=KeyError("level"), called=calls.append)
    with pytest.raises(UsageError, match="^begins fails at its first step: KeyError: 'level'"):
        WHOLE[command]()
    assert calls == ["make", "reset", "step"]


def test_options_can_be_read_of_a_game_that_fails(begins):
    """By doctor, which examines more than the game, and by a study that has begun, which may be only reported on."""
    begins(np.zeros(2), DISCRETE, step=KeyError("level"))
    assert doctor.parse(LINE).train.config.environment.game == "begins"
    assert base_config(TrainingSettings(preset="default"), "ppo", "begins", MACHINE).environment.game == "begins"


def test_each_call_of_train_in_a_notebook_tries_the_game_anew(begins):
    calls: list[str] = []
    begins(np.zeros(2), DISCRETE, step=KeyError("level"), called=calls.append)
    for _ in range(2):
        with pytest.raises(UsageError, match="^begins fails at its first step"):
            WHOLE["Python"]()
    assert calls == 2 * ["make", "reset", "step"]


def test_a_trial_keeps_no_environment(begins):
    begins(np.zeros(2), DISCRETE)
    made = []
    plugins.environments.remove("begins")
    plugins.register_environment("begins", lambda: made.append(weakref.ref(env := Begins(np.zeros(2), BITS))) or env)
    assert WHOLE["train"]() == "mlp"
    gc.collect()
    assert [each() for each in made] == [None]
