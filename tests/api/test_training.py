"""ddrl.train, ddrl.load and runs from Python: the command line's settings and refusals, a real run, a stop."""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import gymnasium
import numpy as np
import pytest

import ddrl
from ddrl import plugins, rundir
from ddrl.api.training import _ended, _refuse_own
from ddrl.launch import local
from ddrl.options import train_options
from ddrl.types import Machine

pytestmark = pytest.mark.timeout(300)  # whole runs, two in a test
MACHINE = Machine(2, 16 * 10**9)
OF_NUMBERS = ("optimizer", "learning-rate schedule")  # kinds of parts that are functions of three numbers or more


class Seen(ddrl.Callback):
    def __init__(self):
        self.calls, self.threads = [], set()

    def _see(self, *call):
        self.calls.append(call)
        self.threads.add(threading.current_thread())

    def on_start(self):
        self._see("start")

    def on_metrics(self, record):
        self._see("metrics", record["update"])

    def on_evaluation(self, record):
        self._see("evaluation", record["mean"])

    def on_checkpoint(self, record):
        self._see("checkpoint", record["update"])

    def on_event(self, record):
        self._see("event", record["name"])

    def on_end(self, result):
        self._see("end", result["status"])


class Raising(ddrl.Callback):
    def on_metrics(self, record):
        raise ValueError("a mistake of the user's")


class Stopping(ddrl.Callback):
    def on_event(self, record):
        if record["name"] == "started":
            os.kill(os.getpid(), signal.SIGINT)


class Ending(ddrl.Callback):
    def on_event(self, record):
        return record["name"] != "started"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    seen = Seen()
    run = ddrl.train(
        "ppo",
        preset="smoke",
        minutes=0,
        max_updates=30,
        eval_games=2,
        eval_every_updates=10,
        log_every_seconds=0.2,
        run_dir=tmp_path_factory.mktemp("runs") / "run",
        progress=False,
        callbacks=[Raising(), seen],
    )
    return run, seen


def test_import_takes_nothing_along():
    code = "import ddrl, sys; print(sorted(set(sys.modules) & set(sys.argv[1].split())))"
    heavy = "numpy tensorflow mpi4py gymnasium ale_py matplotlib rich tyro numba"
    done = subprocess.run([sys.executable, "-c", code, heavy], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_all_names_are_there():
    assert all(getattr(ddrl, name) is not None for name in ddrl.__all__)
    assert set(ddrl.__all__) <= set(dir(ddrl))
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        ddrl.trian  # noqa: B018


@pytest.mark.parametrize(
    "words, names",
    [
        (["ppo"], {}),
        (["sac", "--game", "Pendulum-v1"], {"game": "Pendulum-v1"}),
        (["a2c", "--preset", "stooke", "--game", "pong"], {"preset": "stooke", "game": "pong"}),
        (
            ["ppo", "--preset", "smoke", "--learning-rate", "1e-3", "--agent-steps", "1000000", "--no-evaluator"],
            {"preset": "smoke", "learning_rate": 1e-3, "agent_steps": 1e6, "evaluator": False},
        ),
        (
            ["dpg", "--policy-layers", "8", "9", "--minutes", "2", "--target-score", "None"],
            {"policy_layers": [8, 9], "minutes": np.int64(2), "target_score": None},
        ),
        (["ba3c", "--loggers"], {"loggers": ()}),
        (["dpg", "--policy-layers", "8", "9"], {"policy_layers": [np.int64(8), 9.0]}),
        (["dpg", "--policy-layers", "8", "9"], {"policy_layers": np.array([8, 9]), "plugin": None}),
    ],
)
def test_settings_are_those_of_the_command_line(words, names):
    names = dict(names)
    by_names = train_options.settings_of(words[0], names.pop("preset", None), MACHINE, **names)
    assert by_names.config == train_options.parse(words, MACHINE).config
    assert by_names == train_options.parse(words, MACHINE)


@pytest.mark.parametrize(
    "words, names",
    [
        (["ppo", "--simulators", "0"], {"simulators": 0}),
        (["ppo", "--preset", "none"], {"preset": "none"}),
        (["ppo", "--game", ""], {"game": ""}),
        (["ppo", "--loggers", "nobody"], {"loggers": ["nobody"]}),
        (["ppo", "--callbacks", "nobody"], {"callbacks": ["nobody"]}),
        (["ppo", "--game", "CartPole-v9"], {"game": "CartPole-v9"}),
        (["sac", "--game", "CartPole-v1"], {"game": "CartPole-v1"}),
        (["ppo", "--run-dir", "~/x"], {"run_dir": "~/x"}),
        (["--resume", "nowhere"], {"resume": "nowhere"}),
        (["ppo", "--preset", "smoke", "--init-from", "nowhere"], {"preset": "smoke", "init_from": "nowhere"}),
    ],
)
def test_a_refusal_is_the_line_of_the_command(words, names, capsys, tmp_path, monkeypatch):
    from ddrl import cli

    monkeypatch.chdir(tmp_path)
    assert cli.main(["train", *words]) == 2
    line = capsys.readouterr().err.splitlines()[-1].removeprefix("ddrl: ")
    with pytest.raises(ddrl.UsageError) as refused:
        ddrl.train(None if words[0].startswith("--") else words[0], progress=False, **names)
    assert " ".join(str(refused.value).split()) == line
    assert list(tmp_path.iterdir()) == [], "nothing was begun"


@pytest.mark.parametrize(
    "names, line",
    [
        ({"learning_rat": 1.0}, "learning_rat: ppo has no such setting; did you mean learning_rate?"),
        ({"env": "CartPole-v1"}, "env: ppo has no such setting; did you mean game?"),
        ({"total_timesteps": 10**6}, "total_timesteps: ppo has no such setting; did you mean agent_steps?"),
        ({"tau": 0.5}, "tau: ppo has no such setting: `ddrl train --help` lists all"),
        ({"atoms": 51}, "atoms: ppo has no such setting; dqn, categorical-dqn, rainbow, apex-dqn have it"),
        ({"minutes": "2"}, "--minutes is '2', which is not of type float"),
        ({"agent_steps": 1.5}, "--agent-steps is 1.5, which is not of type int"),
        ({"evaluator": 1}, "--evaluator is 1, which is not of type bool"),
        ({"game": 5}, "--game is 5, which is not a str"),
        ({"callbacks": "table"}, "callbacks is 'table', which is not a list"),
        ({"callbacks": ddrl.Callback}, "callbacks is <class 'ddrl.reporting.callbacks.Callback'>, which is not a list"),
        ({"callbacks": [Seen]}, "callbacks has the class Seen: give an object of it, Seen(...)"),
        ({"callbacks": [3]}, "callbacks: int has no method on_start: derive its class from ddrl.Callback"),
        ({"callbacks": None, "minutes": "2"}, "--minutes is '2', which is not of type float"),
        ({"hidden_layers": [64, "64"]}, "--hidden-layers is '64', which is not of type int"),
        ({"game_options": {"size": 6}}, "--game-options is {'size': 6}, which is not a list"),
        ({"game_options": ["size=6", "size=7"]}, "--game-options size=7: size is there twice; give it once"),
        (
            {"game_options": ["mode=1"]},
            "--game-options mode=1: the rules of Atari games are those of --protocol; leave it out",
        ),
        ({"config": {"minutes": 2}}, "--config is {'minutes': 2}, which is not a str"),
        ({"plugins": ["mine.py"]}, "plugins: there is no such setting; did you mean plugin?"),
    ],
)
def test_a_mistake_of_python_is_one_line(names, line):
    with pytest.raises(ddrl.UsageError) as refused:
        ddrl.train("ppo", **names)
    assert str(refused.value) == line


@pytest.mark.parametrize(
    "kind, names",
    [
        ("network", {"network": "mine"}),
        ("environment", {"game": "mine"}),
        ("wrapper", {"wrappers": ["mine:factor=2"]}),
        ("logger", {"loggers": ["mine"]}),
        ("callback", {"callbacks": ["mine"]}),
        ("optimizer", {"optimizer": "mine"}),
        ("learning-rate schedule", {"learning_rate_schedule": "mine"}),
    ],
)
def test_what_a_notebook_registers_by_itself_is_refused_until_a_plugin_has_it(kind, names, tmp_path, monkeypatch):
    register = f"register_{kind}".replace("-", "_").replace(" ", "_")
    function = "lambda first, second, third: first" if kind in OF_NUMBERS else "print"
    with monkeypatch.context() as notebook:
        notebook.setattr(plugins, "_caller", lambda: plugins.Origin(plugins.MAIN, ""))
        getattr(plugins, register)("mine", eval(function))
    with pytest.raises(ddrl.UsageError, match=rf"^{kind} mine: this program or notebook has .* plugin=\"FILE.py\""):
        ddrl.train("ppo", preset="smoke", progress=False, run_dir=tmp_path / "run", **names)
    (tmp_path / "mine.py").write_text(f"import ddrl\nddrl.{register}('mine', {function})\n")
    config = train_options.settings_of("ppo", "smoke", MACHINE, plugin=tmp_path / "mine.py", **names).config
    _refuse_own(config)
    assert not (tmp_path / "run").exists()


STEPLESS = """
import gymnasium, numpy, ddrl

class Stepless(gymnasium.Env):
    observation_space, action_space = gymnasium.spaces.Box(0, 1, (2,)), gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return numpy.zeros(2), {}

    def step(self, action):
        "It forgets to return anything."

ddrl.register_environment("stepless", Stepless)
"""


def test_a_game_whose_first_step_fails_leaves_no_directory(tmp_path):
    (plugin := tmp_path / "stepless.py").write_text(STEPLESS)
    options = {"preset": "smoke", "progress": False, "plugin": plugin, "game": "stepless"}
    with pytest.raises(ddrl.UsageError, match="^stepless gave a NoneType from its step: have it return .observation"):
        ddrl.train("ppo", run_dir=tmp_path / "run", **options)
    assert not (tmp_path / "run").exists()


def test_a_class_of_a_notebook_that_gymnasium_knows_is_refused_too(tmp_path):
    gymnasium.register("test/OfNotebook-v0", type("OfNotebook", (gymnasium.Env,), {"__module__": "__main__"}))
    try:
        with pytest.raises(ddrl.UsageError, match="^environment test/OfNotebook-v0: this program or notebook has"):
            ddrl.train("ppo", preset="smoke", progress=False, run_dir=tmp_path / "run", game="test/OfNotebook-v0")
    finally:
        gymnasium.registry.pop("test/OfNotebook-v0")


def test_runs_without_a_directory_that_begin_in_the_same_second_are_each_returned(tmp_path, monkeypatch):
    def train(config, path, machine, console, *, begun, **options):
        begun(rundir.create_run_dir(config)[0])
        return 0

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("ddrl.launch.local.train", train)
    monkeypatch.setattr(rundir, "default_run_dir", lambda config: "runs/one")
    runs = [ddrl.train("ppo", preset="smoke", progress=False) for _ in range(2)]
    assert [run.path for run in runs] == [tmp_path / "runs" / "one", tmp_path / "runs" / "one-2"]


def test_a_run_is_returned(trained):
    run, _ = trained
    assert run.result["status"] == "finished" and run.result["update"] == 30
    assert "ppo on ddrl/Catch-v0, finished" in repr(run)
    assert run.config.run.max_updates == 30
    assert [path.name for path in run.checkpoints] == ["update-000000030.npz"]
    assert ddrl.load(run.path).config == ddrl.load(run.path, plugin=None).config == run.config
    with pytest.raises(ddrl.UsageError, match="is not a run"):
        ddrl.load(run.path / "checkpoints")


def test_metrics_are_columns(trained):
    run, _ = trained
    columns = run.metrics()
    assert columns["update"].dtype == np.float64 and columns["update"][-1] == 30
    assert len({len(column) for column in columns.values()}) == 1
    assert any(name.startswith("time_split/worker/") for name in columns)
    assert "loss" in columns and np.isnan(columns["loss"]).any(), "the first line has none yet"
    assert run.metrics("evaluation")["games"].tolist()[-1] == 2
    assert "started" in run.metrics("event")["name"].tolist()
    with pytest.raises(ddrl.UsageError, match="metrics of kind 'loss'"):
        run.metrics("loss")


def test_metrics_as_a_table(trained):
    run, _ = trained
    try:
        import pandas
    except ImportError:
        with pytest.raises(ddrl.UsageError, match="pip install pandas"):
            run.metrics(pandas=True)
        return
    assert isinstance(run.metrics(pandas=True), pandas.DataFrame)
    assert run.metrics(pandas=True)["update"].iloc[-1] == 30


def test_a_run_is_evaluated_plotted_and_played(trained, tmp_path):
    run, _ = trained
    record = run.evaluate(games=3, seed=2)
    assert record["games"] == len(record["scores"]) == 3
    for names, line in (
        ({"games": 0}, "--games 0: must be between 1 and"),
        ({"games": "3"}, "games is '3', which is not of type int"),
        ({"actions": "sampled"}, "--actions sampled: must be one of greedy, drawn"),
    ):
        with pytest.raises(ddrl.UsageError, match=line):
            run.evaluate(**names)
    again = run.evaluate(games=np.int64(2), seed=np.int64(2), epsilon=np.float32(0.5), checkpoint=None)
    last = json.loads((run.path / "evaluations.jsonl").read_text().splitlines()[-1])
    assert (last["games"], last["seed"], last["scores"]) == (2, 2, again["scores"]), "numbers of NumPy, too"
    run.plot(tmp_path / "curve.png")
    assert (tmp_path / "curve.png").stat().st_size > 10_000
    agent, environment = run.agent(), run.environment()
    observation, _ = environment.reset(seed=1)
    assert environment.observation_space.contains(observation)
    over = False
    while not over:
        observation, _, terminated, truncated, _ = environment.step(agent.act(observation))
        over = terminated or truncated


def test_the_best_evaluation_of_a_run_plays(trained):
    run, _ = trained
    evaluations = run.metrics("evaluation")
    best = run.agent("best").checkpoint
    told = best.counters["evaluation"]
    # An evaluation whose result comes when the next one is waited for is in no metrics, but is kept.
    assert told["mean"] >= evaluations["mean"][evaluations["timed_out"] == 0].max()
    assert (told["version"], told["games"], best.slots) == (best.version, 2, {})
    assert run.evaluate(games=1, checkpoint="best")["version"] == best.version
    assert run.agent(30).checkpoint.version == run.agent(run.checkpoints[-1]).checkpoint.version == 30
    assert run.agent().checkpoint.version == 30 and len(run.checkpoints) == 1, "it is none of the run's versions"


def test_callbacks_hear_of_all_in_one_thread_beside_a_failing_one(trained):
    run, seen = trained
    kinds = [call[0] for call in seen.calls]
    assert kinds[0] == "start" and seen.calls[-1] == ("end", "finished")
    assert ("event", "started") in seen.calls and ("checkpoint", 30) in seen.calls
    assert kinds.count("metrics") == len(run.metrics()["update"])
    assert kinds.count("evaluation") == len(run.metrics("evaluation")["mean"]) > 0
    assert len(seen.threads) == 1 and threading.main_thread() not in seen.threads
    events = run.metrics("event")
    failed = [text for name, text in zip(events["name"], events["text"]) if name == "callback_failed"]
    assert failed[0] == "Raising (1).on_metrics: ValueError: a mistake of the user's", "also where nothing is printed"


def test_an_interrupt_stops_the_run_and_returns_it(tmp_path, forked_ranks, capfd):
    before = signal.getsignal(signal.SIGINT)
    settings = {"preset": "smoke", "minutes": 5, "evaluator": False, "run_dir": tmp_path / "run"}
    run = ddrl.train("ba3c", progress=False, callbacks=[Stopping()], **settings)
    assert run.result["status"] == "stopped"
    assert len(run.checkpoints) == 1 and run.metrics()["update"][-1] > 0
    assert signal.getsignal(signal.SIGINT) is before
    assert capfd.readouterr() == ("", ""), "progress=False: nothing is printed"


@pytest.mark.slow
def test_a_callback_that_returns_false_stops_the_run_and_its_next_part(tmp_path, forked_ranks):
    settings = {"preset": "smoke", "minutes": 5, "evaluator": False, "run_dir": tmp_path / "run"}
    first = ddrl.train("ppo", progress=False, callbacks=[Ending()], **settings).result
    run = ddrl.train(resume=tmp_path / "run", progress=False, callbacks=[Ending()])
    for result in (first, run.result):
        assert result["status"] == "stopped"
        assert result["message"] == "stopped: callback Ending (1).on_event returned False"
    assert run.result["update"] > first["update"] > 0 and len(run.checkpoints) == 2


def test_a_run_that_fails_says_why(tmp_path, forked_ranks):
    settings = {"preset": "smoke", "minutes": 0, "learning_rate": 1e30, "max_refused_steps": 1}
    with pytest.raises(ddrl.RunFailed, match="not finite") as failed:
        ddrl.train("ba3c", progress=False, run_dir=tmp_path / "run", evaluator=False, **settings)
    assert failed.value.path == tmp_path / "run"


def test_a_process_that_ends_without_a_word_to_the_chief_is_quoted(tmp_path, monkeypatch):
    program = [sys.executable, "-c", "raise ValueError('no such\\nthing')"]
    monkeypatch.setattr(local, "train", functools.partial(local.train, rank_program=program))
    settings = {"preset": "smoke", "workers": 1, "parameter_servers": 0, "run_dir": tmp_path / "run"}
    with pytest.raises(ddrl.RunFailed) as failed:
        ddrl.train("ppo", progress=False, **settings)
    run = tmp_path / "run"
    assert str(failed.value) == f"the run in {run} failed: ValueError: no such; see {run}/log.txt"


def test_the_directory_of_a_run_that_failed_is_found_from_elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ddrl.RunFailed, match="the run in run failed: no result") as failed:
        _ended(1, Path("run"), "no result")
    assert failed.value.path == tmp_path / "run"
