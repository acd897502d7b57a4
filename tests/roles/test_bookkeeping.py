"""Budgets, evaluations and names: what the chief keeps count of."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from cluster.roles import Sizes, assign_roles, place
from cluster.topology import Seat
from ddrl.checkpoint import Checkpoint
from ddrl.config import EvaluationConfig, RunConfig
from ddrl.exchange.messages import Header, Kind
from ddrl.exchange.transport import PeerLost
from ddrl.job.layout import JobLayout
from ddrl.job.role import RoleLost, essential_lost
from ddrl.npz import encode_arrays
from ddrl.reporting.rank_metrics import RankMetrics
from ddrl.roles import budget as budget_module
from ddrl.roles import evaluations as evaluations_module
from ddrl.roles.budget import Budget
from ddrl.roles.checkpoint_assembly import CheckpointAssembly, Gathering, states_of
from ddrl.roles.evaluations import Evaluations
from ddrl.roles.hashes import ParameterHashes, parameter_hash
from ddrl.roles.norms import NormMeter
from ddrl.rundir import HASHES


def budget(version=0, **options):
    parameters = np.zeros(1, np.float32)
    start = Checkpoint(version, version, 0, 0.0, parameters, {}, version, (("x", (1,)),))
    return Budget(RunConfig(**options), start)


def test_budgets_of_minutes_and_agent_steps():
    counted = budget(minutes=2.0, agent_steps=1000)
    assert counted.used_up(999, 119.9) is None
    assert "2 minutes" in counted.used_up(999, 120.0)
    assert "1,000 agent steps" in counted.used_up(1000, 0.0)
    assert budget(minutes=0.0).used_up(10**9, 10**9) is None
    assert budget(minutes=1.0).used_up(0, 60.0) == "the budget of 1 minute is used up"
    assert budget(minutes=0.5).used_up(0, 60.0) == "the budget of 0.5 minutes is used up"


def test_the_last_update():
    assert not budget(max_updates=0).last_update(10**9)
    assert [budget(max_updates=5).last_update(version) for version in (4, 5, 6)] == [False, True, True]


def test_checkpoints_by_updates_are_due_at_multiples():
    counted = budget(checkpoint_every_updates=10, checkpoint_every_minutes=1e8)
    assert not counted.checkpoint_due(9, 0.0) and counted.checkpoint_due(10, 0.0)
    counted.checkpointed(13, 0.0)  # the boundary was missed
    assert not counted.checkpoint_due(19, 0.0) and counted.checkpoint_due(20, 0.0)
    assert not budget(20, checkpoint_every_updates=10, checkpoint_every_minutes=1e8).checkpoint_due(20, 0.0)


def test_checkpoints_by_time(monkeypatch):
    monkeypatch.setattr(budget_module.time, "monotonic", lambda: 1000.0)
    counted = budget(checkpoint_every_minutes=1.0)
    assert not counted.checkpoint_due(1, 1059.0) and counted.checkpoint_due(1, 1060.0)
    counted.checkpointed(1, 1060.0)
    assert not counted.checkpoint_due(2, 1119.0) and counted.checkpoint_due(2, 1120.0)


def test_checkpoints_that_reset_games_come_with_the_same_updates_in_every_run():
    counted = budget(reset_at_checkpoint=True, checkpoint_every_updates=10, checkpoint_every_minutes=1.0)
    assert not counted.checkpoint_due(3, 1e9) and counted.checkpoint_due(10, 0.0)


def evaluations(share=1.0, version=0, state=None):
    return Evaluations(EvaluationConfig(eval_every_updates=100, eval_time_share=share), version, state)


def test_a_target_that_was_reached_is_no_reason_to_play_all_games_again():
    counted = Evaluations(EvaluationConfig(target_score=5.0), 0, None)
    assert counted.during_training(100.0, 0.0)["target"] == 5.0
    counted.reach(90.0)
    assert "target" not in counted.during_training(100.0, 0.0)


@pytest.mark.parametrize("goes_on, target, checks_again, known", [
    (True, 5.0, False, 90.0), (False, 5.0, True, 90.0), (True, 6.0, True, None), (True, None, True, None),
])  # fmt: skip
def test_a_resumed_run_knows_when_it_reached_its_target(goes_on, target, checks_again, known):
    before = Evaluations(EvaluationConfig(target_score=5.0, stop_at_target=not goes_on), 0)
    assert before.to_score == {} and set(before.state()) == {"seconds", "last_seconds"}
    before.reach(90.0)
    settings = EvaluationConfig(target_score=target, stop_at_target=not goes_on or target is None)
    after = Evaluations(settings, 0, json.loads(json.dumps(before.state())))
    assert after.reached is not checks_again and after.to_score.get("time_to_score_seconds") == known
    after.reach(200.0)  # the first time counts
    assert after.to_score == {"time_to_score_seconds": known or 200.0}


def reached_at(update, seconds, target=5.0):
    return {"kind": "event", "name": "target_reached", "update": update, "seconds": seconds, "target": target}


def resumed_from(update):
    return {"kind": "event", "name": "resumed", "update": update}


@pytest.mark.parametrize("records, known", [
    ([reached_at(10, 90.0), reached_at(15, 95.0)], 90.0),
    ([reached_at(10, 90.0), resumed_from(12)], 90.0),
    ([reached_at(10, 90.0), resumed_from(8), reached_at(18, 99.0)], 99.0),  # the first parameters were undone
    ([reached_at(10, 90.0), resumed_from(0)], None),
    ([reached_at(30, 90.0)], None),  # after the checkpoint from which the run goes on
    ([reached_at(10, 90.0, target=4.0)], None),
])  # fmt: skip
def test_the_metrics_tell_of_a_target_that_the_checkpoint_does_not_know_of(records, known):
    counted = Evaluations(EvaluationConfig(target_score=5.0, stop_at_target=False), 20)
    counted.remember(records, 20)
    assert counted.to_score.get("time_to_score_seconds") == known and counted.reached is (known is not None)


def skipped(metrics):
    return metrics.report()["counters"].get("evaluations_skipped", 0)


def test_evaluations_are_due_every_so_many_updates():
    metrics, counted = RankMetrics("chief", 0), evaluations()
    assert [version for version in range(1, 401) if counted.due(version, 1e9, metrics)] == [100, 200, 300, 400]
    resumed = evaluations(version=250)
    assert [version for version in range(251, 401) if resumed.due(version, 1e9, metrics)] == [300, 400]
    assert skipped(metrics) == 0


def test_one_that_falls_due_while_the_last_plays_is_skipped_and_counted():
    metrics, counted = RankMetrics("chief", 0), evaluations()
    assert counted.due(100, 1e9, metrics)
    counted.start(100)
    assert not any(counted.due(version, 1e9, metrics) for version in range(101, 351))
    assert skipped(metrics) == 2
    assert not counted.finish({"version": 99, "seconds": 5.0}) and not counted.idle
    assert counted.finish({"version": 100, "seconds": 5.0}) and counted.idle
    assert counted.due(400, 1e9, metrics)


def test_evaluations_keep_to_their_share_of_the_time():
    metrics, counted = RankMetrics("chief", 0), evaluations(share=0.1)
    assert counted.due(100, 1.0, metrics)  # how long one takes is not known yet
    counted.start(100)
    counted.finish({"version": 100, "seconds": 10.0})
    # Another one of 10 s makes 20 s, which are a tenth of 200 s: 190 s and 10 s of its own.
    assert not counted.due(200, 189.0, metrics) and counted.due(201, 191.0, metrics)
    assert skipped(metrics) == 0
    again = evaluations(share=0.1, version=201, state=counted.state())
    assert not again.due(300, 189.0, metrics) and again.due(300, 191.0, metrics)


def test_time_counts_in_seconds_of_the_whole_machine():
    """An evaluator that gets a quarter of one of two cores takes an eighth of the time of the machine."""
    metrics, counted = RankMetrics("chief", 0), evaluations(share=0.1)
    assert counted.due(100, 600.0, metrics)
    assert counted.during_training(600.0, 600.0)["limit_seconds"] == 20.0
    counted.start(100)
    counted.finish({"version": 100, "seconds": 80.0, "machine_seconds": 10.0, "games": 50})  # it played all games
    assert counted.seconds == 10.0
    # The next one is to take its 20 s, 2.5 of the machine: 12.5 s are a tenth of 122.5 s and these 2.5.
    assert not counted.due(200, 122.0, metrics) and counted.due(201, 123.0, metrics)


def test_one_for_a_target_may_take_longer():
    settings = EvaluationConfig(target_score=3.0, evaluation_minutes=2.0)
    how = Evaluations(settings, 0).during_training(60.0, 600.0)
    assert (how["target"], how["target_seconds"], how["limit_seconds"]) == (3.0, 480.0, 10.0)


def test_whole_games_have_no_limit_of_time():
    """--evaluation-minutes 0: neither the share of the time nor the end of the run cuts a game off."""
    settings = EvaluationConfig(eval_every_updates=100, eval_time_share=1.0, evaluation_minutes=0.0)
    metrics, whole = RankMetrics("chief", 0), Evaluations(settings, 0)
    for how in (whole.during_training(60.0, 600.0), whole.at_the_end(60.0)):
        assert how["limit_seconds"] == settings.longest_seconds > 3600.0 and not how["at_once"]
    for version in (100, 200, 300):  # each takes longer than the updates between two, and is due at once all the same
        assert whole.due(version, 10.0 * version, metrics)
        whole.start(version)
        assert whole.finish({"version": version, "seconds": 999.0, "games": 50})


def test_an_evaluation_has_a_part_of_the_share_of_the_time():
    counted = evaluations(share=0.1)
    limits = [counted.during_training(elapsed, planned)["limit_seconds"] for elapsed, planned in
              ((60.0, 0.0), (60.0, 600.0), (1200.0, 600.0), (60.0, 3600.0), (60.0, 36_000.0))]  # fmt: skip
    assert limits == [evaluations_module.SHORTEST_SECONDS, 10.0, 40.0, 60.0, 180.0]
    assert counted.during_training(60.0, 600.0)["at_once"] == 4
    assert [counted.during_training(elapsed, 600.0)["limit_seconds"] for elapsed in (150.0, 400.0)] == [15.0, 20.0]
    studied = evaluations(share=1.0)  # every evaluation is to play all its games
    assert studied.during_training(60.0, 0.0) == {"at_once": 0, "limit_seconds": 180.0}


def test_where_no_game_was_over_the_next_evaluation_has_twice_the_time():
    metrics, counted = RankMetrics("chief", 0), evaluations(share=0.1)
    for version, seconds in ((100, 10.0), (200, 20.0), (300, 40.0)):
        assert counted.due(version, 1e9, metrics)
        assert counted.during_training(60.0, 600.0)["limit_seconds"] == seconds
        counted.start(version)
        counted.finish({"version": version, "seconds": seconds, "games": 0, "timed_out": 4})
    # 70 s were played, and 80 s are to come: a tenth of 1,420 s and these 80 s.
    assert not counted.due(400, 1410.0, metrics) and counted.due(400, 1430.0, metrics)
    counted.start(400)
    counted.finish({"version": 400, "seconds": 60.0, "games": 3, "timed_out": 0})
    assert counted.during_training(60.0, 600.0)["limit_seconds"] == 10.0


def test_the_final_evaluation_has_a_share_of_the_time_of_training_or_what_was_asked_for():
    by_default, without = EvaluationConfig(), EvaluationConfig(evaluator=False)
    assert [by_default.longest_final_seconds(t) for t in (6.0, 600.0, 36_000.0, math.inf)] == [
        15.0,
        48.0,
        2880.0,
        10800,
    ]
    assert without.longest_final_seconds(600.0) == 0.0
    for minutes, seconds in ((0.0, 0.0), (2.0, 120.0)):
        assert EvaluationConfig(final_evaluation_minutes=minutes).longest_final_seconds(600.0) == seconds
    assert EvaluationConfig(eval_time_share=1.0, evaluation_minutes=60.0).longest_final_seconds(6.0) == 3600.0
    counted = evaluations(share=0.1)
    assert counted.final_seconds(600.0) == 48.0
    counted.start(100)
    counted.finish({"version": 100, "seconds": 6.0, "games": 12, "timed_out": 0})
    assert counted.final_seconds(600.0) == 25.0 and counted.at_the_end(600.0)["limit_seconds"] == 48.0


def test_a_budget_of_agent_steps_takes_as_long_however_many_games_are_over_in_it():
    settings = EvaluationConfig(eval_games=30, eval_agent_steps=125_000, final_evaluation_minutes=10.0)
    counted = Evaluations(settings, 0)
    counted.start(100)
    counted.finish({"version": 100, "seconds": 60.0, "games": 240, "timed_out": 0})
    assert counted.final_seconds(600.0) == 60.0


def test_a_lost_evaluator_plays_no_more():
    counted = evaluations()
    counted.start(100)
    counted.lost()
    assert counted.idle and not counted.finish({"version": 100, "seconds": 1.0})


def layout(**options):
    return JobLayout.from_assignments(assign_roles(Sizes(2, 2, **options)))


def test_names():
    plain, dedicated = layout(evaluator=True), layout(dedicated_chief=True, evaluator=True)
    assert [plain.name(rank) for rank in range(5)] == [
        "worker 0, the chief (rank 0)",
        "worker 1 (rank 1)",
        "parameter server 0 (rank 2)",
        "parameter server 1 (rank 3)",
        "the evaluator (rank 4)",
    ]
    assert dedicated.name(0) == "the chief (rank 0)" and dedicated.name(1) == "worker 0 (rank 1)"


def test_names_in_a_job_of_several_nodes_say_where():
    one, two = ([Seat(host=host) for host in hosts] for hosts in (["n1"] * 4, ["n1", "n1", "n2", "n2"]))
    names = [JobLayout.from_assignments(place(seats, Sizes(2, 2))).name(3) for seats in (one, two)]
    assert names == ["parameter server 1 (rank 3)", "parameter server 1 (rank 3 on n2)"]


@pytest.mark.parametrize("peer, lost", [(0, True), (1, False), (2, True), (3, True), (4, False)])
def test_who_is_essential(peer, lost):
    if not lost:
        essential_lost(PeerLost(peer), layout(evaluator=True))
        return
    with pytest.raises(RoleLost, match=rf"\(rank {peer}\) died"):
        essential_lost(PeerLost(peer), layout(evaluator=True))


def test_norms_per_layer_of_parameters_gradient_and_step():
    metrics = RankMetrics("worker", 0)
    meter = NormMeter([("conv0/kernel", (2,)), ("conv0/bias", (1,)), ("value/bias", (1,))], 2, metrics)
    meter.parameters(0, np.array([3, 0, 4, 12], np.float32))
    meter.gradient(0, np.array([0, 1, 0, 0], np.float32))
    meter.parameters(1, np.array([3, 0, 4, 10], np.float32))
    meter.gradient(1, np.full(4, 9, np.float32))  # not an update that is measured
    gauges = metrics.report()["gauges"]
    assert gauges == {
        "parameter_norm/conv0": 5.0,
        "parameter_norm/value": 12.0,
        "parameter_norm/all": 13.0,
        "gradient_norm/conv0": 1.0,
        "gradient_norm/value": 0.0,
        "gradient_norm/all": 1.0,
        "step_norm/conv0": 0.0,
        "step_norm/value": 2.0,
        "step_norm/all": 2.0,
    }


def state(of):
    return encode_arrays({"draws": np.full(2, of), "of": np.int64(of)})


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_state_that_came_before_its_update_was_known_is_in_the_checkpoint(asynchronous):
    """All-reduce: a worker may complete the step before the chief's own replica."""
    gathering = Gathering()
    gathering.add_state(0, state(4))
    gathering.add_state(1, state(5))
    assert gathering.take(1, {0, 1}, 0.0) == (None, False)
    gathering.begin(CheckpointAssembly(5, 5, 5, 1.0, 30.0, any_step=asynchronous))
    assert {worker: arrays["draws"][0] for worker, arrays in gathering.assembly.states.items()} == {1: 5}
    gathering.add_slice(Header(Kind.SNAPSHOT, step=5, version=5), np.zeros(3, np.float32))
    assert gathering.take(1, {0, 1}, 29.0) == (None, False)
    assembly, incomplete = gathering.take(1, {0, 1}, 30.0)
    assert assembly.version == 5 and not incomplete and gathering.assembly is None
    assert assembly.unsaved == {0: "its state did not come in time"}


def test_a_state_of_an_asynchronous_checkpoint_is_not_taken_for_that_of_the_end():
    """A straggler's, which it had begun to save when the run ended."""
    gathering, late = Gathering(), states_of(True, False, 3, 40)
    gathering.begin(CheckpointAssembly(44, 5, states_of(True, True, 5, 44), 1.0, 30.0, any_step=True))
    gathering.add_state(0, state(late))
    assert gathering.assembly.states == {}
    gathering.add_state(0, state(states_of(True, True, 9, 41)))
    assert set(gathering.assembly.states) == {0}


def test_a_checkpoint_whose_slice_does_not_come_is_given_up():
    gathering = Gathering()
    gathering.begin(CheckpointAssembly(5, 5, 5, 1.0, 30.0, any_step=False))
    assert gathering.take(1, {0}, 29.0) == (None, False)
    assembly, incomplete = gathering.take(1, {0}, 30.0)
    assert incomplete and assembly.version == 5


def test_where_workers_host_servers_each_process_turns_to_its_own_and_others_to_the_chiefs():
    layout = JobLayout.from_assignments(assign_roles(Sizes(3, 0, evaluator=True)))
    assert [layout.with_hosted_servers(process).servers for process in range(4)] == [(0,), (1,), (2,), (0,)]
    here = layout.with_hosted_servers(1)
    assert here.hosts_servers and here.name(1) == "worker 1 (rank 1)" and here.name(0) == "worker 0, the chief (rank 0)"
    assert not JobLayout.from_assignments(assign_roles(Sizes(2, 1))).hosts_servers
    with pytest.raises(RoleLost, match="worker 0, the chief"):
        essential_lost(PeerLost(0), here)
    essential_lost(PeerLost(2), here)


def test_hashes_of_parameters_are_appended_and_not_through_a_link(tmp_path):
    """In a directory of several users, a link may lead to any file of this user."""
    parameters = np.ones(3, np.float32)
    for version in (7, 8):
        hashes = ParameterHashes(tmp_path)
        hashes.add(version, parameters)
        hashes.add(version, parameters)
        hashes._file.close()
    lines = [f"{version} {parameter_hash(parameters)}" for version in (7, 8)]
    assert (tmp_path / HASHES).read_text().splitlines() == lines
    (tmp_path / HASHES).rename(tmp_path / "own")
    (tmp_path / HASHES).symlink_to(tmp_path / "own")
    with pytest.raises(OSError, match="it is a link"):
        ParameterHashes(tmp_path)
