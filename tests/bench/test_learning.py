from __future__ import annotations

import importlib.util
import json
import sys

import pytest

from ddrl import cli
from ddrl.bench import learning
from tests.bench.fake_peer import peer_python

FAKE_PEER = """
options = dict(zip(sys.argv[4::2], sys.argv[5::2]))
seed = int(options["--seed"])
print("RESULT", json.dumps({"reached": None if seed == 3 else 1000 * seed, "version": "7", "options": options}))
"""


def record(agent_steps, episodes, mean):
    return {"agent_steps": agent_steps, "episodes": episodes, "online_score_mean": mean}


@pytest.fixture
def ours(monkeypatch):
    """Stands in for our runs, which reach the score after 500 agent steps; keeps the settings that were asked for."""
    asked = []

    def train_records(config, **run):
        asked.append((config, run))
        return [record(400, 99, 500.0), record(500, 100, 470.0), record(600, 110, 480.0)]

    monkeypatch.setattr(learning, "train_records", train_records)
    return asked


def bench(*options: str) -> int:
    return cli.main(["bench", "learning", *options])


def test_seeds_of_both_in_turns_with_equal_settings(ours, tmp_path, capsys):
    python = peer_python(tmp_path, FAKE_PEER)
    settings = ["--repeats", "3", "--epochs", "7", "--agent-steps", "9000"]
    assert bench("--peer-python", python, *settings, "--json", "-") == 0
    result = json.loads(capsys.readouterr().out)
    assert result["ours"] == [500, 500, 500] and result["peer"] == [1000, 2000, None]
    assert (result["ours_median"], result["peer_median"], result["ratio"]) == (500, 2000, 0.25)
    assert result["epochs"] == 7 and result["about_peer"]["version"] == "7"
    config, run = ours[1]
    assert (config.algorithm.epochs, config.run.seed, run["agent_steps"]) == (7, 2, 9000)
    assert (config.optimizer.learning_rate_schedule, config.algorithm.clip_range_schedule) == ("constant", "constant")
    assert (config.network.network, config.exchange.workers, config.evaluation.evaluator) == ("mlp", 1, False)


def test_a_mean_of_fewer_episodes_reaches_nothing():
    assert learning.first_reached([record(1, 99, 500.0), record(2, 100, 449.0), record(3, 101, 450.0)], 450.0) == 3
    assert learning.first_reached([record(1, 99, 500.0)], 450.0) is None
    assert learning.first_reached([{"agent_steps": 1}], 450.0) is None


def test_a_seed_that_does_not_reach_it_counts_as_the_budget():
    found = learning.compare([None, 10, 20], [30, None, None], 100)
    assert (found["ours_median"], found["peer_median"], found["ratio"]) == (20, 100, 0.2)
    assert learning.compare([1], [], 100)["peer"] is None


def test_there_is_no_ratio_where_neither_reached_the_score():
    """Both medians are the budget then, and 1 would say that both need as much."""
    found = learning.compare([None, 10, None], [None, None, 30], 100)
    assert (found["ours_median"], found["peer_median"], found["ratio"]) == (100, 100, None)


def test_our_own_short_run_is_counted(capsys, monkeypatch):
    """A real run of CartPole: a score that cannot be had is never reached, one that is certain is."""
    train, records = learning.train_records, []
    monkeypatch.setattr(
        learning, "train_records", lambda *given, **run: records or records.extend(train(*given, **run)) or records
    )
    short = ["--agent-steps", "3000", "--repeats", "1", "--simulators", "4", "--unroll-length", "16"]
    short += ["--batch-size", "32", "--epochs", "1", "--learning-rate", "1e-9"]  # it stays as bad as it begins
    assert bench(*short, "--target-score", "5", "--json", "-") == 0
    reached = json.loads(capsys.readouterr().out)["ours"][0]
    assert reached is not None and 1000 < reached < 3400  # 100 games of about 20 steps
    assert bench(*short, "--target-score", "501", "--json", "-") == 0
    assert json.loads(capsys.readouterr().out)["ours"] == [None]


@pytest.mark.skipif(importlib.util.find_spec("stable_baselines3") is not None, reason="it would really run")
def test_the_real_program_without_its_library_is_one_line(ours, capsys):
    assert bench("--peer-python", sys.executable) == 2
    errors = capsys.readouterr().err
    assert len(errors.splitlines()) == 1 and "No module named" in errors and "pip install" in errors
    assert ours == []  # did not run for nothing


@pytest.mark.parametrize(
    "options, said",
    [
        ("--repeats 0", "--repeats 0: must be a finite number of at least 1"),
        ("--learning-rate 0", "--learning-rate 0"),
        ("--target-score nan", "--target-score nan: must be a finite number"),
        ("--batch-size 300", "300"),
        ("--peer-python /no/python", "--peer-python /no/python: there is no executable file"),
    ],
)
def test_bad_input_is_one_line(options, said, capsys):
    assert bench(*options.split(), "--json", "-") == 2
    errors = capsys.readouterr().err.splitlines()
    assert said in errors[-1] and len(errors) <= 2  # the other says how to get the peer
