"""The other examples, as their first lines say how to run them."""

from __future__ import annotations

import csv
import runpy
import sys

import numpy as np
import pytest

import ddrl
from tests.documents import pages
from tests.examples.conftest import EXAMPLES
from tests.examples.runs import train

pytestmark = pytest.mark.timeout(240)


def test_random_legal_actions_fetch_some_parcels_and_illegal_ones_are_refused(example):
    game = example("courier").Courier(render_mode="rgb_array")
    random, rewards = np.random.default_rng(0), []
    for seed in range(30):
        _, info = game.reset(seed=seed)
        assert game.render().shape == (80, 80, 3)
        over, total = False, 0.0
        while not over:
            action = random.choice(np.flatnonzero(info["action_mask"]))
            observation, reward, terminated, truncated, info = game.step(action)
            assert game.observation_space.contains(observation)
            over, total = terminated or truncated, total + reward
        rewards.append(total)
    assert max(rewards) > 0.5 > min(rewards)
    game.reset(seed=1)
    with pytest.raises(ValueError, match="there is a wall"):
        for _ in range(4):
            game.step(0)


def test_a_simple_rule_keeps_the_room_warm_and_the_page_shows_the_whole_file(example):
    game = example("thermostat").Thermostat(render_mode="rgb_array")
    scores = []
    for seed in range(20):
        observation, _ = game.reset(seed=seed)
        score, truncated = 0.0, False
        while not truncated:
            assert game.observation_space.contains(observation)
            observation, reward, terminated, truncated, _ = game.step(int(observation[0] < 1.0))
            assert not terminated
            score += reward
        assert game.render().shape == (80, 80, 3)
        scores.append(score)
    assert 80 < np.mean(scores) < 110, "there is something left to learn"
    shown = pages.blocks(pages.ROOT / "docs/get-started/environment.md", "python")[0]
    assert shown == (EXAMPLES / "thermostat.py").read_text()


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_ppo_learns_to_heat_before_it_is_cold(tmp_path, forked_ranks):
    run = train("ppo", "thermostat", tmp_path, preset="smoke", game="thermostat", minutes=4, target_score=100.0)
    assert run.result["status"] == "target"


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_ppo_learns_the_environment_and_the_callback_writes_a_table(tmp_path, forked_ranks):
    run = ddrl.train(
        "ppo",
        preset="smoke",
        plugin=[EXAMPLES / "courier.py", EXAMPLES / "evaluation_table.py"],
        callbacks=["evaluation-table"],
        game="courier",
        run_dir=tmp_path / "run",
        minutes=4,
        target_score=0.5,
        progress=False,
    )
    assert run.result["status"] == "target", "no simulator met an illegal action, and the policy fetches parcels"
    evaluations = run.metrics("evaluation")
    with (run.path / "evaluations.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    np.testing.assert_array_equal([float(row["version"]) for row in rows], evaluations["version"])
    means = [float(row["mean"]) for row in rows]
    np.testing.assert_allclose(means, evaluations["mean"])
    assert [int(row["best"]) for row in rows] == [
        int(mean > max([-np.inf, *means[:i]])) for i, mean in enumerate(means)
    ]


@pytest.mark.slow
def test_the_keras_network_trains(tmp_path, forked_ranks):
    settings = {"minutes": 0, "max_updates": 20, "eval_every_updates": 10, "eval_games": 2, "hidden_layers": (32,)}
    network = {"network": "normalized-convolutions", **settings}
    run = train("ppo", "normalized_convolutions", tmp_path, preset="smoke", **network)
    agent = run.agent()
    assert dict(agent.network.parameter_shapes)["dense/kernel"] == (10 * 5 * 32, 32)
    observation, _ = run.environment().reset(seed=1)
    assert agent.probabilities(observation).sum() == pytest.approx(1.0, abs=1e-5)


@pytest.mark.slow
def test_the_worst_of_a_population_goes_on_from_the_best(tmp_path, forked_ranks, monkeypatch, capsys):
    sizes = ("--members", "2", "--generations", "2", "--updates", "20")
    monkeypatch.setattr(sys, "argv", ["population.py", "--dir", str(tmp_path), *sizes])
    runpy.run_path(str(EXAMPLES / "population.py"), run_name="__main__")
    assert capsys.readouterr().out.splitlines()[-1].startswith(f"best: {tmp_path}")
    names = sorted(path.name for path in tmp_path.iterdir())
    copied = next(name for name in names if name.endswith(".2"))
    worst = copied.removesuffix(".2")
    (best,) = {"member-0", "member-1"} - {worst}
    assert names == sorted(["member-0", "member-1", copied])
    runs = {name: ddrl.load(tmp_path / name) for name in names}
    updates = {name: run.result["update"] for name, run in runs.items()}
    assert updates == {worst: 20, best: 40, copied: 40}
    epsilons = {name: run.config.optimizer.adam_epsilon for name, run in runs.items()}
    assert epsilons[copied] / epsilons[best] == pytest.approx(0.2) or epsilons[copied] / epsilons[
        best
    ] == pytest.approx(5)
    np.testing.assert_array_equal(
        runs[copied].metrics("evaluation")["mean"][0], runs[best].metrics("evaluation")["mean"][0]
    )
