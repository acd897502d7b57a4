"""A lost life in a rollout: the end of the returns where that is asked for, a step like any other where it is not."""

from __future__ import annotations

import numpy as np
import pytest

from ddrl.apex.segment_maker import OutputActor
from ddrl.sampling.minibatches import transitions_of
from ddrl.sampling.rollouts import RolloutActor, UnrollActor, UnrollBatcher
from tests.sampling.counting import Counting
from tests.sampling.test_rollouts import DISCOUNT, SIZE, STEPS, make_actor, rollout, snapshot

FIELDS = ("observation", "action", "reward", "valid", "value", "behaviour_log_prob", "behaviour_version")


class Mortal(Counting):
    """Loses a life in every second step, unless the game terminates there.

    Attributes:
        lost: <bool>[size] of each row received.
    """

    def reset(self, seed):
        super().reset(seed)
        self.lost = []

    def recv(self):
        step = super().recv()
        self.lost.append(step.valid & ~step.terminated & (self.place % 2 == 0))
        return step._replace(life_lost=self.lost[-1])


def acted(kind, life_loss_terminal):
    """What an actor fills, and where lives were lost in it: both [T, B]."""
    out, more = rollout(), {}
    if kind is UnrollActor:
        more = {"batcher": UnrollBatcher(SIZE), "make_unroll": rollout}
    actor = make_actor(SIZE, life_loss_terminal=life_loss_terminal, kind=kind, **more)
    actor.environment = Mortal(SIZE)
    actor.reset(1)
    if kind is UnrollActor:
        (out,) = actor.advance(lambda: snapshot(3))
    else:
        actor.fill(out, lambda: snapshot(3))
    lost = np.array(actor.environment.lost[1:])  # the first row is that of the reset
    assert lost.shape == (STEPS, SIZE) and lost.any(axis=0).all()
    assert (out.valid[1:][lost[:-1]] == 1).any(), "no game went on after a lost life"
    return out, lost


KINDS = pytest.mark.parametrize("kind", [RolloutActor, UnrollActor, OutputActor])


@KINDS
def test_a_lost_life_ends_the_returns_where_asked_for(kind):
    out, lost = acted(kind, True)
    assert (out.discount[lost] == 0).all() and (out.continues[lost] == 0).all()
    assert (out.discount[~lost] == np.float32(DISCOUNT)).any()


@KINDS
def test_without_being_asked_for_it_is_a_step_like_any_other(kind):
    out, lost = acted(kind, False)
    assert (out.discount[lost] == np.float32(DISCOUNT)).all()
    goes_on = lost[:-1] & (out.valid[1:] == 1)
    assert (out.continues[:-1][goes_on] == 1).all()


@KINDS
def test_it_changes_nothing_else_and_the_game_goes_on(kind):
    (ended, lost), (plain, same) = acted(kind, True), acted(kind, False)
    np.testing.assert_array_equal(lost, same)
    for name in FIELDS:
        np.testing.assert_array_equal(getattr(ended, name), getattr(plain, name), name)
    for name in ("discount", "continues"):
        np.testing.assert_array_equal(getattr(ended, name)[~lost], getattr(plain, name)[~lost], name)


@pytest.mark.parametrize("life_loss_terminal", [False, True])
def test_the_return_of_its_step_is_the_reward_alone_where_asked_for(life_loss_terminal):
    out, lost = acted(RolloutActor, life_loss_terminal)
    returns = transitions_of(out, STEPS, 0.95).return_.reshape(STEPS, SIZE)
    alone = np.isclose(returns[lost], out.reward[lost], atol=1e-6)
    assert alone.all() if life_loss_terminal else not alone.any()
