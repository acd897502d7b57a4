"""The evaluator: where the target may have been reached, new games are played, and only they count; what it keeps; an
early end."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest

from ddrl import algorithms
from ddrl.checkpoint import best_path, load
from ddrl.errors import UsageError
from ddrl.evaluation.turns import Turns
from ddrl.job.role import Topic, json_blob
from ddrl.roles import evaluator
from ddrl.types import Machine
from tests.evaluation.test_games import catcher

GAMES = 12
REQUEST = {"version": 5, "agent_steps": 40, "wall_seconds": 2.5, "at_once": 2, "limit_seconds": 1e9}


class FewTurns(Turns):
    """Lets three games begin, or all where all begin at once."""

    def end(self, row, cut, able=True):
        return super().end(row, cut, able) and self.begun <= 3


def role_of(sent, run_dir, policy=catcher):
    """An evaluator whose messages go to `sent`."""
    config = algorithms.preset("smoke", None, Machine(2, 1 << 34)).changed(evaluation={"eval_games": GAMES})
    transport = SimpleNamespace(open=lambda channels: None, send=sent.extend)
    context = SimpleNamespace(config=config, run_dir=run_dir, layout=SimpleNamespace(servers=[0], chief=0))
    network = SimpleNamespace(size=3, parameter_shapes=(("w", (3,)),))
    return evaluator.EvaluatorRole(context, transport, network, lambda: lambda vector, seen: (policy(seen),))


def result_of(role, sent):
    """What is reported of the request, once the parameters are there."""
    sent.clear()
    role._begin(np.zeros(3, np.float32))
    while not sent:
        role._play()
    (message,) = sent
    assert message.topic == Topic.RESULT
    return json.loads(message.data)


@pytest.fixture
def played(monkeypatch, tmp_path):
    """A request -> what is reported, the games that were played in turn, and the seeds."""
    monkeypatch.setattr(evaluator, "Turns", FewTurns)
    calls = []
    real = evaluator.play_games

    def recorded(*arguments, **more):
        calls.append((more["turns"].at_once, more["seed"]))
        return real(*arguments, **more)

    monkeypatch.setattr(evaluator, "play_games", recorded)

    def play(policy=catcher, **request):
        sent = []
        role = role_of(sent, tmp_path, policy)
        role._request = REQUEST | request
        return result_of(role, sent), calls

    return play


def missing(seen):
    return np.tile(np.eye(3)[0], (len(seen), 1))


@pytest.mark.parametrize(
    ("policy", "target", "games", "at_once"),
    [
        (catcher, {"target": 1.0, "target_seconds": 1e9}, GAMES, [2, GAMES]),
        (missing, {"target": 1.0, "target_seconds": 1e9}, 3, [2]),
        (catcher, {}, 3, [2]),
        (catcher, {"target": 1.0, "target_seconds": 1e9, "at_once": GAMES}, GAMES, [GAMES]),
    ],
)
def test_all_games_are_played_where_the_first_have_reached_the_target(played, policy, target, games, at_once):
    content, calls = played(policy, **target)
    assert content["games"] == games and [each[0] for each in calls] == at_once
    assert len({seed for _, seed in calls}) == len(calls), "other games"
    assert 0 < content["machine_seconds"] <= content["seconds"]


def test_the_parameters_that_were_played_with_are_kept_before_the_result_is_sent(tmp_path):
    sent, seen = [], []
    role = role_of(sent, tmp_path)
    role.transport.send = lambda messages: (seen.append(best_path(tmp_path).exists()), sent.extend(messages))
    role._request = REQUEST
    content = result_of(role, sent)
    best = load(best_path(tmp_path))
    assert seen == [True] and best.parameters.tolist() == [0.0, 0.0, 0.0]
    assert (best.version, best.agent_steps, best.counters["evaluation"]["mean"]) == (5, 40, content["mean"])


def test_an_evaluation_that_fails_is_a_result_that_says_why(monkeypatch, tmp_path):
    """As where no game has a finite score."""

    def fail(step):
        raise UsageError("no game has a finite score")

    monkeypatch.setattr(evaluator, "play_games", lambda *arguments, **more: map(fail, [0]))
    sent = []
    role = role_of(sent, tmp_path)
    role._request = REQUEST
    content = result_of(role, sent)
    assert content["failed"] == "no game has a finite score" and content["version"] == 5
    assert not best_path(tmp_path).exists() and not role.due()


def test_an_end_before_the_parameters_are_there_holds_until_the_next_evaluation(tmp_path):
    sent = []
    role = role_of(sent, tmp_path)
    role.handle(json_blob(0, Topic.EVALUATE, REQUEST))
    role.handle(json_blob(0, Topic.EVALUATE, {"end": True}))
    ended = result_of(role, sent)
    assert (ended["games"], ended["timed_out"]) == (0, 2)
    role.handle(json_blob(0, Topic.EVALUATE, REQUEST))
    assert result_of(role, sent)["games"] == GAMES
