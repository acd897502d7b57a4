"""What `ddrl submit` does beside sbatch: it writes the script, names the run, and hands on the environment."""

from __future__ import annotations

import pytest

from ddrl import rundir
from ddrl.commands import submit
from ddrl.errors import UsageError
from ddrl.slurm.records import JobRecord, note
from tests.submit.support import SMOKE

NOTES = """\
#!/bin/sh
env >"$HOME/environment"
echo 12
"""


def with_sbatch(here, monkeypatch) -> None:
    """A sbatch that notes its environment."""
    program = here / "bin" / "sbatch"
    program.parent.mkdir()
    program.write_text(NOTES)
    program.chmod(0o755)
    monkeypatch.setattr("ddrl.slurm.submission.shutil.which", lambda name: str(program))
    for name, value in {"HOME": str(here), "PATH": f"{program.parent}:/usr/bin:/bin"}.items():
        monkeypatch.setenv(name, value)


def test_a_script_and_a_note_are_not_written_through_links(here, ddrl, monkeypatch):
    """In a directory of several users, somebody may have put there a link to any file of this user."""
    with_sbatch(here, monkeypatch)
    own, run = here / "own", here / "run"
    own.write_text("kept")
    run.mkdir()
    (run / "job.sbatch").symlink_to(own)
    assert ddrl(*SMOKE, "--run-dir", "run")[0] == 0
    assert (run / "job.sbatch").read_text().startswith("#!") and not (run / "job.sbatch").is_symlink()
    (run / "slurm-jobs.tsv").unlink()
    (run / "slurm-jobs.tsv").symlink_to(own)
    with pytest.raises(UsageError, match="job 13 was submitted, but cannot be recorded in .*: it is a link"):
        note(run, JobRecord("13", run / "slurm-13.out"))
    assert own.read_text() == "kept"


@pytest.mark.parametrize("inside", [True, False])
def test_a_job_that_is_submitted_inside_another_does_not_take_its_size(here, ddrl, monkeypatch, inside):
    with_sbatch(here, monkeypatch)
    own = {"SLURM_CONF": "/there", "SBATCH_ACCOUNT": "mine", "OMPI_MCA_btl": "tcp"}
    of_job = {"SLURM_MEM_PER_NODE": "8192", "SLURM_CPU_BIND": "cores", "PMIX_SYSTEM_TMPDIR": "x", "SRUN_DEBUG": "3"}
    of_job |= {"SLURM_JOB_ID": "7"} if inside else {}
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)  # of an allocation in which the tests run
    for name, value in {**own, **of_job, "SBATCH_QOS": ""}.items():
        monkeypatch.setenv(name, value)
    assert ddrl(*SMOKE, "--run-dir", "run")[0] == 0
    told = (here / "environment").read_text().splitlines()
    assert {f"{name}={value}" for name, value in own.items()} <= set(told)
    assert len({f"{name}={value}" for name, value in of_job.items()} & set(told)) == (0 if inside else len(of_job))
    assert not any(line.startswith("SBATCH_QOS") for line in told)


def test_two_runs_that_are_submitted_in_the_same_second_have_directories_of_their_own(here, ddrl, monkeypatch):
    """The second job would otherwise go on with the run of the first."""
    with_sbatch(here, monkeypatch)
    monkeypatch.setattr(rundir, "default_run_dir", lambda config: "runs/ba3c-catch")

    def meanwhile(directory):
        monkeypatch.setattr(submit, "refuse_while_queued", lambda directory: None)
        assert ddrl(*SMOKE, "--seed", "1")[0] == 0

    monkeypatch.setattr(submit, "refuse_while_queued", meanwhile)
    assert ddrl(*SMOKE, "--seed", "2")[0] == 0
    scripts = {path.parent.name: path.read_text() for path in (here / "runs").glob("*/job.sbatch")}
    assert {name: "--seed 1" in text for name, text in scripts.items()} == {"ba3c-catch": True, "ba3c-catch-2": False}
    assert all(f"/runs/{name} " in text for name, text in scripts.items())


def test_a_new_run_is_not_named_like_a_link_to_nowhere(here, ddrl, monkeypatch):
    with_sbatch(here, monkeypatch)
    monkeypatch.setattr(rundir, "default_run_dir", lambda config: "runs/ba3c-catch")
    (here / "runs").mkdir()
    (here / "runs" / "ba3c-catch").symlink_to("nowhere")
    assert ddrl(*SMOKE)[0] == 0
    assert [path.parent.name for path in (here / "runs").glob("*/job.sbatch")] == ["ba3c-catch-2"]
