"""How `job.sh` has its ranks stop and goes back into the queue when it is warned or preempted."""

from __future__ import annotations

import pytest

from tests.submit.support import FAKES, STOPS, in_job, trained

WARNED = {
    "nothing has begun": ("kill -USR1 $$", 0),
    "nodes are checked": ("timeout() { srun; }; srun() { kill -USR1 $$; echo n1: ddrl 1.0; }; check_nodes", 0),
    "a rank has died": ("nodes_answer() { kill -USR1 $$; }", 1),
    "a node is gone": ("nodes_answer() { kill -USR1 $$; return 1; }", 1),
    "Slurm is waited for": ("nodes_answer() { (command sleep 1; kill -USR1 $$) >/dev/null 2>&1 & return 1; }", 1),
}
"""While job.sh does something else than to wait for ranks -> how it is warned, and how many starts there were."""


@pytest.mark.parametrize("when", WARNED)
def test_a_warning_that_comes_before_or_between_starts_puts_the_job_back(here, when):
    warning, starts = WARNED[when]
    done = trained(here, "echo a rank begins; exit 9", f"REQUEUE=yes RESTARTS=3\n{warning}")
    assert done.returncode == (9 if starts else 1), done.stderr
    lines = done.stdout.splitlines()
    assert (lines.count("a rank begins"), lines.count("scontrol requeue 1")) == (starts, 1)
    assert "starts again" not in done.stdout and done.stderr.count("ddrl: ") == 0


PREEMPTED = """\
scontrol() { [[ $1 != show ]] && echo "scontrol $*" || echo "   PreemptEligibleTime=$SINCE PreemptTime=$SINCE"; }
SLURM_JOB_END_TIME=$(($(date +%s) + 300)) SINCE=2026-11-30T10:02:46
"""
"""A job of five minutes, which Slurm preempts: that reaches the ranks, and not the script."""
PREEMPTS = "ddrl: Slurm preempts the job, whose nodes another one needs"


@pytest.mark.parametrize(
    "ranks, status",
    [(STOPS, 0), (STOPS.replace("stopped", "failed") + "exit 1", 1), ("echo a rank begins; exit 1", 1)],
    ids=["saved", "lost a program that it had started", "had not begun to train"],
)
def test_a_job_that_slurm_preempts_goes_back_however_its_ranks_ended(here, ranks, status):
    done = trained(here, ranks, f"REQUEUE=yes RESTARTS=3\n{PREEMPTED}")
    assert done.stdout.splitlines() == ["a rank begins", PREEMPTS, "scontrol requeue 1"], done.stderr
    assert (done.returncode, done.stderr) == (status, "")


def test_a_job_that_slurm_preempts_while_it_checks_its_nodes_goes_back(here):
    done = trained(here, "echo a rank begins", f"REQUEUE=yes\n{PREEMPTED}timeout() {{ return 143; }}\ncheck_nodes")
    early = "ddrl: the job was warned of its end before the run began"
    assert done.stdout.splitlines() == [PREEMPTS, early, "scontrol requeue 1"], done.stderr


def test_a_job_that_slurm_preempts_after_its_run_has_finished_does_not_go_back(here):
    done = trained(here, STOPS.replace("stopped", "finished"), f"REQUEUE=yes RESTARTS=3\n{PREEMPTED}")
    assert (done.returncode, done.stdout.splitlines()) == (0, ["a rank begins", PREEMPTS]), done.stderr


def test_a_task_that_slurm_preempts_goes_back(here):
    """Its step that listens ends at once here, as if it had heard of it."""
    done = in_job(here, f"{FAKES}{PREEMPTED}task env sleep 20")
    assert done.stdout.splitlines() == [PREEMPTS, "scontrol requeue 1"], done.stderr
    assert (done.returncode, done.stderr) == (143, "")


def test_a_task_whose_step_that_listens_ends_for_another_reason_goes_on(here):
    done = in_job(here, f"{FAKES}task env sleep 0.5\nwait")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


UNTIL_STOPPED = """\
touch "$HOME/begun"
for ((i = 0; i < 300; i++)); do
  [[ ! -e $HOME/run/stop ]] || { echo '{"status": "stopped"}' >"$HOME/run/result.json"; exit; }
  sleep 0.1
done
exit 9
"""
OF_MPIRUN = """\
LAUNCHER=mpirun REQUEUE=yes
command() { [[ $1 == mpirun ]] || builtin command "$@"; }
mpirun() { shift 2; "$@"; }
srun() { until [[ -e $HOME/begun ]]; do sleep 0.1; done; touch "$HOME/heard"; }
"""
"""Here `srun` starts nothing but the step that listens, which hears of a preemption once a rank has begun."""


def test_ranks_of_mpirun_on_one_node_are_asked_to_stop_as_slurm_begins_to_preempt_their_job(here):
    done = trained(here, UNTIL_STOPPED, f"{OF_MPIRUN}{PREEMPTED}")
    assert done.stdout.splitlines() == [PREEMPTS, "scontrol requeue 1"], done.stderr
    assert (done.returncode, done.stderr) == (0, "")


def test_no_step_is_in_the_way_of_the_daemons_of_mpirun(here):
    done = trained(here, STOPS, f'{OF_MPIRUN}SLURM_JOB_NUM_NODES=2\ntouch "$HOME/begun"')
    assert done.returncode == 0 and not (here / "heard").exists(), done.stderr


def test_a_job_that_slurm_does_not_take_back_says_so(here):
    refused = "scontrol() { echo 'Requested operation is presently disabled' >&2; return 1; }\nkill -USR1 $$"
    done = trained(here, "echo a rank begins", f"REQUEUE=yes\n{refused}")
    assert done.returncode == 2 and "a rank begins" not in done.stdout
    assert done.stderr.splitlines()[-1] == "ddrl: Slurm does not put the job back into the queue: submit it again"


def test_a_run_whose_name_begins_with_a_dash_is_asked_to_save(here):
    """Without its file `stop` it would train on until Slurm kills it, and save nothing."""
    ddrl = here / "bin" / "ddrl"
    ddrl.parent.mkdir()
    asks = 'kill -USR1 "$(cat "$HOME/job")"'
    waits = "for ((i = 0; i < 100; i++)); do [[ ! -e $HOME/-run/stop ]] || exit 7; sleep 0.1; done; exit 8"
    ddrl.write_text(f"#!/bin/bash\n{asks}\n{waits}\n")
    ddrl.chmod(0o755)
    done = in_job(here, f'{FAKES}echo $$ >"$HOME/job"\ntrain named 1 --run-dir=-run')
    assert done.returncode == 7, done.stderr
    assert (here / "-run" / "slurm-jobs.tsv").exists() and "invalid option" not in done.stderr


def test_a_request_to_stop_makes_no_file_where_a_link_leads(here):
    (here / "run").mkdir()
    (here / "run" / "stop").symlink_to(here / "elsewhere")
    done = in_job(here, f"{FAKES}ask_to_stop run\nask_to_stop run\nask_to_stop missing")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert (here / "run" / "stop").read_bytes() == b"" and not (here / "elsewhere").exists()


def test_a_task_that_is_warned_before_it_begins_goes_back(here):
    """Nothing listens for another warning, which would come while Bash waits for the command."""
    done = in_job(here, f"{FAKES}listen() {{ echo listens; }}\nkill -USR1 $$; task env sleep 20")
    assert done.stdout == "scontrol requeue 1\n" and done.returncode == 143, done.stderr


def test_a_task_that_is_warned_again_and_again_has_the_status_of_its_command(here):
    """Each warning ends a wait of Bash."""
    warnings = "{ until [[ -e ready ]]; do sleep 0.1; done; for _ in {1..150}; do kill -USR1 $$; sleep 0.01; done; } &"
    command = "end() { trap '' TERM; sleep 0.3; exit 7; }; trap end TERM; touch ready; while :; do sleep 0.1; done"
    done = in_job(here, f'{FAKES}{warnings}\ntask bash -c "{command}"')
    assert done.stdout == "scontrol requeue 1\n" and done.returncode == 7, done.stderr
