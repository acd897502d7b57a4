"""Ends of a run that wait for an update."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_REPLICA = "tests/exchange/allreduce/test_replica.py"
_COORDINATOR = "tests/exchange/parameter_server/test_coordinator.py"

MUTANTS = (
    Mutant(
        "start-in-a-pause-is-not-looked-at",
        "ddrl/envs/gymnasium_environment.py",
        "self._told(info, 0.0)",
        "pass",
        ("tests/envs/test_resets.py::test_a_wrong_start_in_a_pause_is_refused_in_one_line_before_it_is_saved",),
        "Lives that are no number get into a checkpoint, and the thread that writes it fails.",
    ),
    Mutant(
        "gradient-whose-norm-overflows-is-taken-for-finite",
        "ddrl/roles/trainer.py",
        'finite = seen_finite and math.isfinite(values["gradient_norm"])',
        "finite = seen_finite and bool(np.isfinite(vector).all())",
        ("tests/roles/test_trainer.py::test_a_gradient_whose_norm_overflows_is_not_finite",),
        "Finite gradients whose sum is infinite end the run.",
    ),
    Mutant(
        "one-process-blames-a-server",
        "ddrl/roles/chief.py",
        "layout.hosts_servers or layout.actors or layout.size == 1:",
        "layout.hosts_servers or layout.actors:",
        ("tests/parallel/test_stalls.py::test_a_simulator_that_hangs_in_one_process_is_not_taken_for_a_server",),
        "A run of one process names a rank that does not exist.",
    ),
    Mutant(
        "long-rollouts-are-taken-for-stalls",
        "ddrl/roles/worker.py",
        "return Wait(what, (), self._patience(step), progress=self.metrics.counted)",
        "return Wait(what, (), self._patience(step))",
        ("tests/parallel/test_stalls.py::test_rollouts_of_one_process_may_take_longer_than_any_wait",),
        "Slow simulators end a run that goes on.",
    ),
    Mutant(
        "environment-saves-what-is-no-state",
        "ddrl/envs/gymnasium_environment.py",
        "self._untried, self.can_save_state = False, gives_state(",
        "self._untried, self.can_save_state = False, True or gives_state(",
        ("tests/envs/test_saved_state.py::test_a_get_state_that_was_made_for_something_else_is_left_alone",),
        "The first checkpoint ends the run.",
    ),
    Mutant(
        "gradient-of-unrolls-counts-their-steps-alone",
        "ddrl/roles/trainer.py",
        'metrics.count("datapoints", lag.size)',
        'metrics.count("datapoints", len(lag))',
        ("tests/roles/test_trainer.py::test_every_data_point_of_a_gradient_counts",),
        "IMPALA reports a small part of its data-points.",
    ),
    Mutant(
        "last-update-may-be-refused-by-servers",
        "ddrl/exchange/parameter_server/coordinator.py",
        "waits = skip and self._flags & Flag.WITH_UPDATE",
        "waits = False",
        (f"{_COORDINATOR}::test_what_waits_for_an_update_does_not_go_with_a_step_that_is_refused",),
        "A run with a budget of updates makes one less where its last one is refused.",
    ),
    Mutant(
        "last-update-may-be-refused-by-replicas",
        "ddrl/exchange/allreduce/outcome.py",
        "Flag.SKIP | (Flag.NONE if flags & Flag.WITH_UPDATE else flags)",
        "Flag.SKIP | flags",
        (f"{_REPLICA}::test_an_end_that_waits_for_an_update_does_not_come_with_a_step_that_is_refused",),
        "A run with a budget of updates makes one less where its last one is refused.",
    ),
    Mutant(
        "last-update-that-replicas-refuse-is-followed-by-others",
        "ddrl/exchange/allreduce/coordinator.py",
        "if refused and sent & Flag.WITH_UPDATE:",
        "if False:",
        (f"{_REPLICA}::test_an_end_that_waits_for_an_update_does_not_come_with_a_step_that_is_refused",),
        "A run whose last update is refused is asked to end no more.",
    ),
    Mutant(
        "last-update-that-is-refused-holds-up-a-stop",
        "ddrl/roles/chief.py",
        "self.coordinator.request(Flag.STOP)  # with the step under way, even if that is refused",
        "pass  # with the step under way, even if that is refused",
        ("tests/roles/test_chief.py::test_a_request_to_stop_does_not_wait_for_a_last_update_that_is_refused",),
        "A run whose last update is refused again and again ends ten seconds late.",
    ),
    Mutant(
        "last-update-that-is-missing-counts",
        "ddrl/roles/chief.py",
        "self.result |= self._without_last",
        "pass",
        ("tests/roles/test_chief.py::test_a_request_to_stop_does_not_wait_for_a_last_update_that_is_refused",),
        "A run that was stopped before its last update is called finished.",
    ),
)
