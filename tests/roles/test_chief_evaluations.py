"""The chief and its evaluator: the last evaluation, targets, and games without an end."""

from __future__ import annotations

import json

import pytest

from ddrl import checkpoint as checkpoints
from ddrl.exchange.messages import Flag
from ddrl.exchange.transport import Blob, PeerLost
from ddrl.job.role import Topic
from ddrl.reporting.metrics import read_metrics
from ddrl.reporting.rank_metrics import RankMetrics
from ddrl.roles import evaluator_client
from ddrl.roles.chief import Phase
from ddrl.rundir import STOP


def test_max_updates_ends_with_checkpoint_and_evaluation(play):
    job = play(run={"max_updates": 2})
    assert job.have() == Flag.NONE
    assert job.have() == Flag.STOP | Flag.CHECKPOINT | Flag.PUBLISH
    assert job.have() is None, "a step was closed after the last"
    job.everything()
    assert job.files() == ["update-000000002.npz"] and not job.chief.finished
    job.result(2, mean=3.0)
    job.chief.advance()
    assert job.ended() == {
        "status": "finished",
        "message": "the budget of 2 updates is used up",
        "update": 2,
        "agent_steps": 0,
        "wall_seconds": 7.0,
    }


@pytest.mark.parametrize("updates", ["synchronous", "asynchronous"])
def test_a_run_that_has_its_updates_makes_no_more_when_it_is_resumed(play, updates):
    job = play(version=2, resumed=True, run={"max_updates": 2}, exchange={"updates": updates})
    job.chief.advance()
    assert job.commit() == Flag.STOP | Flag.PUBLISH | Flag.COMMAND and job.chief.coordinator.version == 2
    assert updates == "asynchronous" or job.have() is None, "no step was closed"
    assert job.files() == [], "its checkpoint is there already"
    job.result(2, mean=3.0)
    job.chief.advance()
    result = job.ended()
    assert (result["status"], result["update"]) == ("finished", 2)


def test_an_evaluator_that_fails_in_the_last_evaluation_fails_the_run_at_once(play):
    job = play(run={"max_updates": 1}, evaluation={"evaluation_minutes": 0.0})
    job.have()
    job.everything()
    assert not job.chief.finished
    job.chief.handle(Blob(4, Topic.FAILED, json.dumps({"text": "Traceback", "line": "ValueError: no good"}).encode()))
    job.chief.advance()
    result = job.ended()
    assert result["status"] == "failed" and "ValueError: no good" in result["message"]


def test_an_evaluation_that_does_not_end_does_not_hold_the_end_up_for_ever(play):
    job = play(run={"max_updates": 1})
    job.have()
    job.everything()
    job.now += 3600.0
    job.chief.advance()
    assert job.ended()["status"] == "finished"


def test_ctrl_c_ends_the_final_evaluation_and_keeps_what_was_played(play):
    job = play(run={"max_updates": 1, "video": False}, evaluation={"final_evaluation_minutes": 2.0})
    job.have()
    request = job.request
    assert request["final"] and request["limit_seconds"] == 120.0
    job.everything()
    report = RankMetrics("evaluator", 0)
    report.gauge("evaluation_games_over", 30)
    job.now += 30.0
    job.chief.handle(Blob(4, Topic.REPORT, json.dumps(report.report()).encode()))
    job.chief._write_line(job.now)
    line = read_metrics(job.run_dir)[-1]
    assert (line["phase"], line["evaluation_games_over"], line["seconds_left"]) == ("evaluating", 30, 20.0 + 5.0)
    (job.run_dir / STOP).touch()
    for _ in range(3):
        job.now += 0.5
        job.chief.advance()
    (ending,) = job.sent.take(Topic.EVALUATE)
    assert json.loads(ending.data) == {"end": True} and not job.chief.finished
    played = {"mean": 3.0, "maximum": 9.0, "games": 31, "of_games": 50, "unfinished": 0, "timed_out": 19}
    content = request | played | {"seconds": 31.0, "stamp": {}}
    job.chief.handle(Blob(4, Topic.RESULT, json.dumps(content).encode()))
    job.chief.advance()
    assert job.ended()["status"] == "finished"
    (record,) = [record for record in read_metrics(job.run_dir) if record["kind"] == "evaluation"]
    assert record["final"] and (record["games"], record["of_games"], record["timed_out"]) == (31, 50, 19)
    assert [event["phase"] for event in job.events("phase")] == ["training", "evaluating"]
    assert "50 games, 120 s at most" in job.events("phase")[1]["text"]


def test_an_evaluator_that_does_not_answer_a_ctrl_c_is_not_waited_for(play):
    job = play(run={"max_updates": 1})
    job.have()
    job.everything()
    (job.run_dir / STOP).touch()
    for seconds in (1.0, evaluator_client.ENDED_RESULT_SECONDS - 0.5):
        job.now += seconds
        job.chief.advance()
        assert not job.chief.finished
    job.now += 1.0
    job.chief.advance()
    assert job.ended()["status"] == "finished" and len(job.events("evaluation_failed")) == 1


def test_without_a_final_evaluation_the_run_ends_with_its_checkpoint(play):
    job = play(run={"max_updates": 11}, evaluation={"final_evaluation_minutes": 0.0})
    for _ in range(11):
        job.have()
    assert job.request["version"] == 10, "the one during training is not waited for, either"
    job.everything()
    job.chief.advance()
    assert job.ended()["status"] == "finished" and job.files() == ["update-000000011.npz"]


def test_an_evaluation_in_which_no_game_was_over_has_no_number(play):
    job = play()
    for _ in range(10):
        job.have()
    content = job.request | {"games": 0, "of_games": 50, "timed_out": 4, "stuck": 2, "seconds": 6.0, "stamp": {}}
    job.chief.handle(Blob(4, Topic.RESULT, json.dumps(content).encode()))
    assert [record["kind"] for record in read_metrics(job.run_dir)].count("evaluation") == 0
    (event,) = job.events("evaluation_unfinished")
    assert event["text"].startswith("no game was over within 6 s (4 unfinished, 2 of them stuck without a reward)")


def test_an_evaluation_that_failed_is_told_and_training_goes_on(play):
    """As where no game has a finite score."""
    job = play()
    for _ in range(10):
        job.have()
    content = job.request | {"failed": "no game has a finite score", "seconds": 6.0}
    job.chief.handle(Blob(4, Topic.RESULT, json.dumps(content).encode()))
    (event,) = job.events("evaluation_failed")
    assert (event["text"], event["update"]) == ("no game has a finite score", 10)
    assert [record["kind"] for record in read_metrics(job.run_dir)].count("evaluation") == 0
    assert job.have() == Flag.NONE and job.chief.phase is Phase.RUNNING


def test_who_ends_an_evaluation_without_a_game_is_not_told_to_give_it_time(play):
    job = play(run={"max_updates": 1}, evaluation={"final_evaluation_minutes": 2.0})
    job.have()
    content = job.request | {"games": 0, "of_games": 50, "timed_out": 20, "seconds": 6.0, "stamp": {}}
    job.everything()
    job.ask_to_stop()
    job.chief.handle(Blob(4, Topic.RESULT, json.dumps(content).encode()))
    job.chief.advance()
    assert job.ended()["status"] == "finished"
    assert job.events("evaluation_unfinished")[0]["text"] == "no game was over within 6 s (20 unfinished)"


def test_whole_games_are_waited_for_as_long_as_the_evaluator_speaks(play):
    job = play(run={"max_updates": 1, "stall_seconds": 300.0}, evaluation={"evaluation_minutes": 0.0})
    job.have()
    job.everything()
    report = json.dumps(RankMetrics("evaluator", 0).report()).encode()
    for _ in range(20):
        job.now += 290.0
        job.chief.handle(Blob(4, Topic.REPORT, report))
        job.chief.advance()
        assert not job.chief.finished
    job.now += 301.0
    job.chief.advance()
    assert job.ended()["status"] == "finished" and len(job.events("evaluation_failed")) == 1


def test_a_run_that_goes_on_notes_when_its_target_was_reached(play):
    job = play(evaluation={"target_score": 5.0, "stop_at_target": False})
    for version in (10, 20):
        for _ in range(9):
            job.have()
        job.now += 300.0
        assert job.have() == Flag.PUBLISH
        job.result(version, mean=5.5)
        assert job.chief.phase is Phase.RUNNING
    (event,) = job.events("target_reached")
    job.ask_to_stop()
    job.have()
    job.everything()
    job.chief.advance()
    result = job.ended()
    assert result["status"] == "stopped" and result["time_to_score_seconds"] == event["seconds"]


@pytest.mark.parametrize("last", [1.0, 6.0])
def test_the_target_score_ends_the_run_with_the_time_of_its_snapshot(play, last):
    job = play(evaluation={"target_score": 5.0})
    for _ in range(9):
        job.have()
    job.now += 30.0
    assert job.have() == Flag.PUBLISH
    job.now += 50.0  # the games take their time
    job.result(10, mean=5.5)
    assert job.have() & Flag.STOP
    job.everything()
    job.result(11, mean=last)
    job.chief.advance()
    result = job.ended()
    assert result["status"] == "target" and result["time_to_score_seconds"] == pytest.approx(37.0)
    assert [r["mean"] for r in read_metrics(job.run_dir) if r["kind"] == "evaluation"] == [5.5, last]
    assert len(job.events("target_reached")) == 1


@pytest.mark.parametrize("mean, unfinished, of_games", [(4.9, 0, 1), (5.5, 1, 1), (5.5, 0, 2)])
def test_scores_that_do_not_reach_the_target(play, mean, unfinished, of_games):
    job = play(evaluation={"target_score": 5.0})
    for _ in range(10):
        job.have()
    job.result(10, mean=mean, unfinished=unfinished, of_games=of_games)
    assert job.have() == Flag.NONE and job.chief.phase is Phase.RUNNING


def test_a_lost_evaluator_leaves_training_going(play):
    job = play(run={"max_updates": 20})
    for _ in range(10):
        job.have()
    job.chief.handle(PeerLost(4))
    assert len(job.events("evaluator_lost")) == 1
    job.sent.take(Topic.EVALUATE)
    for _ in range(9):
        assert job.have() == Flag.NONE
    assert job.have() & Flag.STOP
    job.everything()
    job.chief.advance()
    assert job.ended()["status"] == "finished" and job.sent.take(Topic.EVALUATE) == []


@pytest.mark.parametrize("games, missing", [(50, False), (31, True)])
def test_a_final_evaluation_that_was_asked_to_end_is_still_to_be_made(play, games, missing):
    """But for one whose games were all over by then."""
    job = play(run={"max_updates": 1})
    job.now += 50.0
    job.have()
    request = job.request
    job.everything()
    assert checkpoints.load_latest(job.run_dir).counters["trained_seconds"] == 50.0
    job.ask_to_stop()
    played = {"mean": 3.0, "maximum": 9.0, "games": games, "of_games": 50, "unfinished": 0, "timed_out": 50 - games}
    content = request | played | {"seconds": 31.0, "stamp": {}}
    job.chief.handle(Blob(4, Topic.RESULT, json.dumps(content).encode()))
    job.chief.advance()
    result = job.ended()
    assert (result["status"], result.get("unevaluated", False)) == ("finished", missing)


def test_a_stop_while_the_last_update_is_awaited_leaves_the_final_evaluation_to_be_made(play):
    job = play(run={"max_updates": 2})
    job.have()
    job.chief.advance()
    job.ask_to_stop()
    assert job.have() & Flag.STOP
    job.everything()
    job.chief.advance()
    result = job.ended()
    assert (result["status"], result["unevaluated"]) == ("finished", True) and job.sent.take(Topic.EVALUATE) == []


def test_nothing_is_still_to_be_made_where_there_is_no_final_evaluation(play):
    job = play(run={"max_updates": 1}, evaluation={"final_evaluation_minutes": 0.0})
    job.have()
    (job.run_dir / STOP).touch()
    job.now += 1.0
    job.everything()
    job.chief.advance()
    assert "unevaluated" not in job.ended()


ACTED = {"metrics": {"totals": {"agent_steps": 640}}, "trained_seconds": 5000.0}


@pytest.mark.parametrize("budget", [{"max_updates": 2}, {"agent_steps": 640}])
def test_a_run_whose_budget_is_used_up_only_evaluates_when_it_is_resumed(play, budget):
    """In the time that it had after the training, and dated by its parameters, or a further resume takes it back."""
    job = play(version=2, resumed=True, run=budget, agent_steps=640, counters=ACTED)
    job.now += 5.0
    job.chief.advance()
    assert job.commit() == Flag.STOP | Flag.PUBLISH | Flag.COMMAND and job.have() is None
    assert job.files() == [] and job.chief._totals.trained_seconds == 5000.0
    job.result(2, mean=3.0)
    job.chief.advance()
    result = job.ended()
    assert (result["status"], result["update"], result["agent_steps"]) == ("finished", 2, 640)
    assert "unevaluated" not in result
    (played,) = [record for record in read_metrics(job.run_dir) if record["kind"] == "evaluation"]
    assert played["wall_seconds"] == job.chief.start.wall_seconds == 7.0


def test_a_budget_that_was_used_up_by_steps_ahead_of_the_last_checkpoint_is_used_up(play):
    """A resume would act 64 of the 640 again, and make updates that the whole run had not."""
    counters = {"metrics": {"totals": {"agent_steps": 576}}, "acted_agent_steps": 640}
    job = play(version=2, resumed=True, run={"agent_steps": 640}, agent_steps=576, counters=counters)
    job.chief.advance()
    assert job.commit() == Flag.STOP | Flag.PUBLISH | Flag.COMMAND
    job.result(2, mean=3.0)
    job.chief.advance()
    result = job.ended()
    assert (result["update"], result["agent_steps"]) == (2, 640) and job.files() == []


@pytest.mark.parametrize("updates", ["synchronous", "asynchronous"])
def test_a_run_whose_minutes_are_used_up_only_evaluates_where_that_is_all_that_it_lacks(play, updates):
    options = {"run": {"minutes": 10.0}, "exchange": {"updates": updates}, "evaluates_only": True}
    job = play(version=2, resumed=True, agent_steps=640, counters=ACTED, **options)
    job.chief.advance()
    assert job.commit() == Flag.STOP | Flag.PUBLISH | Flag.COMMAND
    assert job.files() == [] and job.chief._totals.trained_seconds == 600.0
    job.result(2, mean=3.0)
    job.chief.advance()
    result = job.ended()
    assert (result["status"], result["update"], result["agent_steps"]) == ("finished", 2, 640)
    assert result["message"] == "the budget of 10 minutes is used up" and "unevaluated" not in result


def test_a_run_whose_minutes_were_used_up_before_only_evaluates(play):
    """As by a job that was requeued after a death in the final evaluation."""
    job = play(version=2, resumed=True, run={"minutes": 10.0}, agent_steps=640, counters=ACTED, spent_seconds=600.5)
    (resumed,) = job.events("resumed")
    assert resumed["spent_seconds"] == 600.5
    job.chief.advance()
    assert job.commit() == Flag.STOP | Flag.PUBLISH | Flag.COMMAND
    assert job.files() == [] and job.chief._totals.trained_seconds == 600.0
    job.result(2, mean=3.0)
    job.chief.advance()
    result = job.ended()
    assert (result["status"], result["message"]) == ("finished", "the budget of 10 minutes is used up")


def test_a_budget_that_has_become_smaller_leaves_the_final_evaluation_the_time_of_the_training(play):
    """The checkpoint is not the last one of a part, so it does not say how long that trained."""
    counters = ACTED | {"trained_seconds": 0.0}
    job = play(version=2, resumed=True, run={"minutes": 10.0}, counters=counters, spent_seconds=600.5)
    job.chief.advance()
    assert job.commit() == Flag.STOP | Flag.PUBLISH | Flag.COMMAND
    assert job.chief._totals.trained_seconds == job.chief.start.wall_seconds == 7.0


def test_a_request_to_stop_before_all_else_leaves_the_final_evaluation_alone_to_be_made(play):
    """Where it counted as one in training, the next start would train for all minutes once more."""
    job = play(version=2, resumed=True, run={"minutes": 10.0}, agent_steps=640, counters=ACTED, evaluates_only=True)
    job.ask_to_stop()
    assert job.commit() == Flag.STOP | Flag.PUBLISH | Flag.COMMAND
    request, end = (json.loads(blob.data) for blob in job.sent.take(Topic.EVALUATE))
    assert end == {"end": True}
    played = {"mean": 3.0, "maximum": 9.0, "games": 31, "of_games": 50, "unfinished": 0, "timed_out": 19}
    content = request | played | {"seconds": 31.0, "stamp": {}}
    job.chief.handle(Blob(4, Topic.RESULT, json.dumps(content).encode()))
    job.chief.advance()
    result = job.ended()
    assert (result["status"], result["unevaluated"], result["update"]) == ("finished", True, 2)


@pytest.mark.parametrize("lacks, trained", [(False, 5000.0), (True, 0.0)])
def test_minutes_count_from_now_where_more_is_lacking_than_the_final_evaluation(play, lacks, trained):
    """As after an evaluation, or from an older checkpoint than the last one, which was damaged."""
    counters = ACTED | {"trained_seconds": trained}
    job = play(version=2, resumed=True, run={"minutes": 10.0}, counters=counters, evaluates_only=lacks)
    assert job.have() == Flag.NONE and job.chief.coordinator.version == 3


def test_a_run_with_a_larger_budget_trains_on(play):
    job = play(version=2, resumed=True, run={"agent_steps": 641}, agent_steps=640, counters=ACTED)
    assert job.have() == Flag.NONE and job.chief.coordinator.version == 3


def test_a_new_start_after_a_target_only_evaluates_and_keeps_its_end(play):
    """As after a death in the final evaluation, which may come long before the minutes are used up."""
    target = {"target_score": 5.0}
    job = play(evaluation=target)
    for _ in range(9):
        job.have()
    job.now += 30.0
    job.have()
    job.result(10, mean=5.5)
    job.have()
    job.everything()
    counters = checkpoints.load_latest(job.run_dir).counters
    options = {"run": {"minutes": 10.0}, "evaluation": target, "counters": counters, "evaluates_only": True}
    again = play(version=11, resumed=True, spent_seconds=70.0, **options)
    again.chief.advance()
    assert again.commit() == Flag.STOP | Flag.PUBLISH | Flag.COMMAND
    again.result(11, mean=3.0)
    again.chief.advance()
    result = again.ended()
    assert (result["status"], result["message"]) == ("target", "target score reached: 5.5 >= 5 after 37 s")
    assert result["time_to_score_seconds"] == 37.0


def test_a_new_start_has_the_rest_of_the_minutes_and_names_all_of_them(play):
    job = play(version=2, resumed=True, run={"minutes": 10.0}, spent_seconds=166.0)
    job.have()
    (phase,) = job.events("phase")
    assert phase["text"].startswith("training for the rest of 10 minutes, then ")
    job.now += 433.0
    job.chief.advance()
    assert job.chief.phase is Phase.RUNNING
    job.now += 2.0
    job.chief.advance()
    assert job.chief.result == {"status": "finished", "message": "the budget of 10 minutes is used up"}
    assert job.chief._totals.trained_seconds == 601.0, "the final evaluation has its full time"


def test_a_target_that_only_the_final_evaluation_reached_is_not_forgotten(play):
    """The last checkpoint was written before."""
    target = {"target_score": 5.0, "stop_at_target": False}
    job = play(run={"max_updates": 1}, evaluation=target)
    job.now += 30.0
    job.have()
    job.everything()
    job.result(1, mean=6.0)
    job.chief.advance()
    assert job.ended()["time_to_score_seconds"] == 37.0
    counters = checkpoints.load_latest(job.run_dir).counters
    again = play(version=1, resumed=True, run={"max_updates": 2}, evaluation=target, counters=counters)
    again.now += 300.0
    again.have()
    again.everything()
    again.result(2, mean=6.0)
    again.chief.advance()
    assert again.ended()["time_to_score_seconds"] == 37.0
