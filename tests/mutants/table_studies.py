"""Studies: what a verdict is about, and a peer that is treated as its authors would."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "packed-data-write-anywhere",
        "ddrl/studies/data.py",
        "if others := sorted(set(files) - set(FILES) | set(texts) - set(TEXTS)):",
        "if others := sorted(set(files) - set(FILES)):",
        ("tests/studies/test_data.py::test_packed_data_of_somebody_else_become_files_of_runs_alone",),
        "A packed study of somebody else replaces any file of whoever reports it.",
    ),
    Mutant(
        "studies-run-side-by-side-in-one-directory",
        "ddrl/commands/study.py",
        "plans.held(plan.directory) if actions.alone else contextlib.nullcontext()",
        "contextlib.nullcontext()",
        ("tests/studies/test_command.py::test_a_second_study_is_refused_while_one_runs_in_the_directory",),
        "Two studies that are begun at once train the same points, and one replaces the plan of the other.",
    ),
    Mutant(
        "two-that-begin-a-study-replace-each-others-plan",
        "ddrl/commands/study.py",
        "plans.begin(plan)",
        "plans.write(plan)",
        ("tests/studies/test_command.py::test_of_two_that_begin_a_study_at_once_the_second_takes_the_plan",),
        "Of two calls that begin a study at once, the second replaces the plan of the first.",
    ),
    Mutant(
        "straggler-in-every-worker",
        "ddrl/builders/agent.py",
        "if worker == config.exchange.workers - 1:",
        "if worker >= 0:",
        ("tests/envs/test_step_time.py::test_the_last_worker_may_be_a_straggler",),
        "All workers are as slow as the straggler, so a quorum has nothing to gain.",
    ),
    Mutant(
        "straggler-that-does-not-know-its-number",
        "ddrl/roles/compute.py",
        "make_environments(self._worker_config, index)",
        "make_environments(self._worker_config, 0)",
        ("tests/roles/test_compute.py::test_a_worker_has_its_own_environments",),
        "No worker of a real run is the straggler.",
    ),
    Mutant(
        "runs-start-at-the-highest-first-score",
        "ddrl/studies/papers/ba3c/collapse.py",
        "min(of_run[0] for of_run in scores)",
        "max(of_run[0] for of_run in scores)",
        ("tests/studies/test_ba3c_studies.py::test_some_learn_before_their_first_line",),
        "Runs that learned before their first line of metrics raise the level, and a collapse is not seen.",
    ),
    Mutant(
        "best-and-worst-of-many-are-told-apart",
        "ddrl/studies/findings.py",
        "if len(known) == len(groups) == 2",
        "if len(known) >= 2",
        ("tests/studies/test_findings.py::test_the_best_and_the_worst_of_many_are_no_pair",),
        "The best and the worst of many equal groups are called different, which chance alone makes them.",
    ),
    Mutant(
        "groups-are-told-apart-by-their-intervals-alone",
        "ddrl/studies/statistics.py",
        "below = math.hypot(one.mean - low, other_high - other.mean)",
        "below = one.mean - low + other_high - other.mean",
        ("tests/studies/test_statistics.py::test_the_difference_of_two_means_from_their_intervals",),
        "A difference that there is goes unseen, where two intervals overlap.",
    ),
    Mutant(
        "race-won-by-ours-alone",
        "ddrl/studies/race.py",
        "if first.median is None:",
        "if best[0][0].median is None:",
        ("tests/studies/test_race.py::test_the_verdict_compares_the_medians_of_the_fastest",),
        "A race that only the peer's algorithms finish has no verdict.",
    ),
    Mutant(
        "peer-evaluated-with-the-epsilon-of-training",
        "ddrl/bench/peer_learner.py",
        "model.exploration_rate = model.exploration_final_eps",
        "model.exploration_rate = epsilon",
        ("tests/studies/test_peer.py::test_a_peers_dqn_is_evaluated_with_its_last_epsilon",),
        "The peer's DQN plays its evaluation games mostly at random until late in training.",
    ),
    Mutant(
        "unfinished-evaluation-is-the-last-score",
        "ddrl/studies/measures.py",
        "final_metric(complete(evaluations(run)), policies=1)",
        "final_metric(evaluations(run), policies=1)",
        ("tests/studies/test_measures.py::test_the_last_score_is_of_all_games_of_an_evaluation",),
        "One game of an evaluation that time cut off counts as the score of all.",
    ),
)
