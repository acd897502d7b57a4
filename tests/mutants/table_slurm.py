"""Jobs of Slurm."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "empty-settings-of-a-site-reach-sbatch",
        "ddrl/slurm/site.py",
        "for name, value in found.items() if value}",
        "for name, value in found.items()}",
        ("tests/submit/test_site_files.py::test_a_site_file_is_read_by_bash_and_what_is_empty_is_unset",),
        "Slurm takes an empty partition for a name, and refuses every job.",
    ),
    Mutant(
        "the-memory-of-a-job-is-not-seen-from-its-steps",
        "cluster/control_groups.py",
        "return [root / inside, *(root / group for group in inside.parents)]",
        "return [root / inside]",
        ("tests/placement/test_resources.py::test_the_limit_of_each_control_group_around_that_of_this_process_counts",),
        "A run that does not fit its job is begun, and the kernel kills it when its replay is full.",
    ),
    Mutant(
        "a-percent-sign-in-a-directory-is-a-mark",
        "ddrl/slurm/script.py",
        "{str(directory).replace('%', '%%')}",
        "{directory}",
        ("tests/submit/test_script.py::test_words_of_users_stay_words",),
        "The output of a job goes to a directory that there is not, and the job fails without a word.",
    ),
    Mutant(
        "the-report-comes-before-the-runs",
        "ddrl/studies/slurm.py",
        "asked, [*words, *dependency])",
        "asked, words)",
        ("tests/studies/test_slurm.py::test_a_job_after_the_array_reports",),
        "A study is reported before any of its points has finished.",
    ),
    Mutant(
        "a-signal-to-all-processes-ends-the-simulators",
        "ddrl/envs/simulator_process.py",
        "signal.signal(number, lambda *_: None)",
        "signal.getsignal(number)",
        ("tests/envs/test_process_environment.py::test_a_signal_that_asks_a_job_to_stop_does_not_end_a_process",),
        "A run whose job Slurm preempts or cancels fails, where it should stop.",
    ),
)
