"""The evaluator where the target may have been reached: all games are played anew, and only they count."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest

from ddrl import algorithms
from ddrl.evaluation.turns import Turns
from ddrl.job.role import Topic
from ddrl.roles import evaluator
from ddrl.types import Machine
from tests.evaluation.test_games import catcher

GAMES = 12


class FewTurns(Turns):
    """Lets three games begin, or all where all begin at once."""

    def end(self, row, cut):
        return super().end(row, cut) and self.begun <= 3


@pytest.fixture
def played(monkeypatch):
    """A request -> what is reported, the games that were played in turn, and the seeds."""
    monkeypatch.setattr(evaluator, "Turns", FewTurns)
    config = algorithms.preset("smoke", None, Machine(2, 1 << 34)).changed(evaluation={"eval_games": GAMES})
    calls = []
    real = evaluator.play_games

    def recorded(*arguments, **more):
        calls.append((more["turns"].at_once, more["seed"]))
        return real(*arguments, **more)

    monkeypatch.setattr(evaluator, "play_games", recorded)

    def play(policy=catcher, **request):
        sent = []
        layout = SimpleNamespace(servers=[0], chief=0)
        transport = SimpleNamespace(open=lambda channels: None, send=sent.extend)
        context = SimpleNamespace(config=config, layout=layout)
        role = evaluator.EvaluatorRole(
            context, transport, SimpleNamespace(size=3), lambda: lambda vector, seen: (policy(seen),)
        )
        role._request = {"version": 5, "at_once": 2, "limit_seconds": 1e9, **request}
        role._begin(np.zeros(3, np.float32))
        while not sent:
            role._play()
        (message,) = sent
        assert message.topic == Topic.RESULT
        return json.loads(message.data), calls

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
