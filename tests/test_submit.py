"""`ddrl submit`, `status` and `logs` without a Slurm: site files, scripts whose words stay words, and refusals."""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
import time
from pathlib import Path

import pytest

from ddrl import checkpoint as checkpoints
from ddrl import cli, run_lock, rundir, sealed
from ddrl.algorithms import preset
from ddrl.algorithms.ba3c import BA3CConfig
from ddrl.commands import logs, submit
from ddrl.commands.slurm_job import JobArguments
from ddrl.commands.submit import HELP
from ddrl.config import TrainConfig
from ddrl.errors import UsageError
from ddrl.options import train_options
from ddrl.placement import start
from ddrl.slurm import queue as queues
from ddrl.slurm import site as sites
from ddrl.slurm.records import JobRecord, note, noted
from ddrl.types import Machine
from tests.launch.support import checkpoint

HOSTILE = "$(touch owned); `touch owned` \"'#%j"
SMOKE = ("submit", "train", "ba3c", "--preset", "smoke")
ESCAPE = "\x1b]0;owned\x07"


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """An empty directory, without site files and without Slurm."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(sites.VARIABLE, "")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "configuration"))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setattr(queues, "has_queue", lambda: False)
    for module in ("ddrl.commands.status", "ddrl.commands.logs"):
        monkeypatch.setattr(f"{module}.has_queue", lambda: False)
    monkeypatch.setattr("ddrl.slurm.submission.shutil.which", lambda name: None)
    return tmp_path


@pytest.fixture
def ddrl(capsys):
    """ddrl(WORD...) -> exit status, standard output, standard error."""

    def call(*words):
        try:
            status = cli.main(list(words))
        except SystemExit as end:
            status = end.code
        said = capsys.readouterr()
        return status, said.out, said.err

    return call


def a_run(path: Path, lines=(), result=None) -> Path:
    config = TrainConfig(algorithm=BA3CConfig()).changed(run={"run_dir": str(path), "max_updates": 200, "minutes": 0.0})
    rundir.create_run_dir(config)
    (path / rundir.METRICS).write_bytes(b"".join(sealed.line_bytes(line) for line in lines))
    os.utime(path / rundir.METRICS, (1, 1))  # long ago, so that nothing takes the run for one that goes on
    if result:
        rundir.write_json(path / rundir.RESULT, result)
    return path


TRAIN = {"kind": "train", "wall_seconds": 9.0, "update": 50, "agent_steps": 800, "online_score_mean": 1.25}
EVALUATION = {"kind": "evaluation", "wall_seconds": 8.0, "version": 40, "mean": 2.0, "maximum": 3.0, "games": 4}


# site files -----------------------------------------------------------------------------------------------------------


def test_a_site_file_is_read_by_bash_and_what_is_empty_is_unset(here):
    path = here / HOSTILE
    path.write_text(
        "export SBATCH_ACCOUNT=\nSBATCH_PARTITION='a b'\nRUNS=$HOME/$((1 + 1))\necho said\n[[ $X ]] && X=1\n"
    )
    site = sites.read(sites.find(str(path)))
    assert site.variables == {"SBATCH_PARTITION": "a b"}
    assert site.runs == Path.home() / "2"
    assert not (here / "owned").exists()


def test_the_example_is_a_site_file_that_asks_for_nothing(here, ddrl):
    status, out, _ = ddrl("submit", "site")
    path = here / "configuration" / "ddrl" / "site.conf"
    assert status == 0 and str(path) in out
    site = sites.read(path)
    assert site.variables == {} and site.runs == Path.home() / "runs" and Path(site.venv, "bin", "ddrl").exists()
    status, _, said = ddrl("submit", "site")
    assert status == 2 and "exists already" in said and said.count("\n") == 1


def test_where_site_files_are_looked_for(here, monkeypatch):
    assert sites.find() is None, "the variable is set, and empty"
    monkeypatch.delenv(sites.VARIABLE)
    users = here / "configuration" / "ddrl" / "site.conf"
    users.parent.mkdir(parents=True)
    users.touch()
    clones = sites.HERE.parents[1] / "slurm" / "site.conf"
    assert sites.find() == (clones if clones.exists() else users)
    (here / "mine").touch()
    monkeypatch.setenv(sites.VARIABLE, "mine")
    assert sites.find() == here / "mine"
    assert sites.find(str(users)) == users


@pytest.mark.parametrize("text", ["if", "exit 3"])
def test_a_site_file_that_bash_cannot_read_is_refused_in_one_line(here, text):
    (here / "site.conf").write_text(text)
    with pytest.raises(UsageError, match="site.conf: bash cannot read it") as refusal:
        sites.read(here / "site.conf")
    assert "\n" not in str(refusal.value)


# scripts --------------------------------------------------------------------------------------------------------------


def script_of(ddrl, *words) -> str:
    status, out, err = ddrl(*SMOKE, *words, "--dry-run")
    assert status == 0, err
    return out


def test_a_dry_run_shows_the_script_and_makes_nothing(here, ddrl):
    text = script_of(ddrl, "--nodes", "2", "--ranks-per-node", "4", "--parameter-servers", "2", "--minutes", "10")
    for option in ("nodes=2", "ntasks=8", "ntasks-per-node=4", "cpus-per-task=1", "time=27", "job-name=ba3c-catch-v0"):
        assert f"#SBATCH --{option}\n" in text
    last = shlex.split(text.splitlines()[-1])
    assert last[0] == "train" and last[2] == "8" and last[1].startswith(f"{here}/runs/ba3c-ddrl-catch-v0-")
    assert last[-2:] == ["--workers", "5"], "the ranks that are left"
    assert list(here.iterdir()) == []


@pytest.mark.parametrize("ranks, workers", [(8, 6), (64, 56), (100, 88)])
def test_workers_are_all_ranks_that_a_server_for_each_eight_of_them_leaves(ddrl, ranks, workers):
    text = script_of(ddrl, "--nodes", "1", "--ranks-per-node", str(ranks))
    assert shlex.split(text.splitlines()[-1])[-2:] == ["--workers", str(workers)]


@pytest.mark.parametrize("ranks, workers", [(3, 1), (4, 2)])
def test_few_ranks_of_many_processors_have_a_number_of_workers_that_fits(ddrl, ranks, workers):
    """For so many processors the preset has 16 workers, and therefore 2 servers."""
    words = ("submit", "train", "ba3c", "--preset", "laptop", "--game", "ddrl/Catch-v0", "--quorum", str(workers))
    job = ("--nodes", "1", "--ranks-per-node", str(ranks), "--cpus-per-rank", "8", "--dry-run")
    status, out, err = ddrl(*words, *job)
    assert status == 0, err
    assert shlex.split(out.splitlines()[-1])[-2:] == ["--workers", str(workers)]


def test_a_job_asks_for_the_memory_of_rollouts(ddrl):
    words = ("--game", "pong", "--unroll-length", "2048", "--batch-size", "0", "--dry-run")
    status, out, err = ddrl("submit", "train", "hts-ppo", *words)
    assert status == 0, err
    assert "#SBATCH --mem-per-cpu=2851M\n" in out, "1 GB, and 2 x 16 x 2,049 observations of 28,224 bytes"


def test_a_run_with_a_replay_is_warned_earlier_and_has_as_much_more_time(ddrl):
    status, out, err = ddrl("submit", "train", "dqn", "--preset", "smoke", "--minutes", "10", "--dry-run")
    assert status == 0, err
    assert "#SBATCH --signal=B:USR1@420\n" in out and "#SBATCH --time=32\n" in out
    assert "#SBATCH --signal=B:USR1@120\n" in script_of(ddrl, "--minutes", "10")


def test_the_runs_that_help_shows_can_be_submitted(ddrl):
    shown = [line.split() for line in f"{HELP}\n{JobArguments.__doc__}".splitlines() if line.startswith("  ")]
    examples = [words for words in shown if words[:3] == ["ddrl", "submit", "train"]]
    assert len(examples) == 2, "one in the command's help, one in that of its options"
    for words in examples:
        status, out, err = ddrl(*words[1:], "--dry-run")
        assert status == 0 and "#SBATCH --nodes=2\n" in out, err


def test_words_of_users_stay_words(here, ddrl, monkeypatch):
    # There is no such wrapper.
    monkeypatch.setattr("ddrl.options.wanted.check_game", lambda config, machine, resumes: None)
    (here / "site.conf").write_text(f"SBATCH_ACCOUNT={shlex.quote(HOSTILE)}\n")
    text = script_of(
        ddrl, "--run-dir", f"runs/{HOSTILE}", "--wrappers", f"x{HOSTILE}\nsecond line", "--site", "site.conf",
        f"--sbatch-options=--mem=1G --comment={shlex.quote(HOSTILE)} -p {shlex.quote(HOSTILE)}",
    )  # fmt: skip
    head, body = text.split("\n\n")
    assert all(line.startswith("#") for line in head.splitlines()), "a line end in a word begins no command"
    quoted = HOSTILE.replace('"', '\\"')
    assert (
        f'#SBATCH --account="{quoted}"\n' in head
        and f'#SBATCH --mem=1G --comment="{quoted}" -p "{quoted}"' in head + "\n"
    )
    assert f'runs/{quoted.replace("%", "%%")}/slurm-%j.out"\n' in head
    stubs = "source() { :; }; check_nodes() { :; }; train() { printf '%s\\0' \"$@\"; }\n"
    done = subprocess.run(["bash", "-c", stubs + body], capture_output=True, text=True, cwd=here, check=True)
    words = done.stdout.split("\0")
    assert words[0] == f"{here}/runs/{HOSTILE}" and f"x{HOSTILE}\nsecond line" in words
    assert not (here / "owned").exists()


def test_a_resumed_run_is_gone_on_with_where_it_is(here, ddrl):
    run = a_run(here / "a run")
    (run / "checkpoints").mkdir()
    status, _, said = ddrl("submit", "train", "--resume", str(run), "--dry-run")
    assert status == 2 and "as there is no checkpoint yet" in said
    text = script_of(ddrl, "--run-dir", "a run", "--resume-or-start", "--workers", "2", "--time", "1-2:30")
    assert shlex.split(text.splitlines()[-1])[1] == str(run) and "--resume" not in text.splitlines()[-1]
    assert "#SBATCH --time=1-2:30\n" in text


def budgeted(path: Path, minutes: float, seconds: float, result=None) -> Path:
    """A run with a budget of so many minutes, whose newest checkpoint comes after so many seconds."""
    config = preset("smoke", None, Machine(4, 1 << 34), "ba3c").changed(run={"run_dir": str(path), "minutes": minutes})
    rundir.create_run_dir(config)
    checkpoints.save(path, checkpoint(config, seconds))
    if result:
        rundir.write_json(path / rundir.RESULT, result)
    return path


MORE = "1.0 minutes, and its --minutes 1 are used up; say with --minutes how many more"


@pytest.mark.parametrize(
    ("minutes", "result", "words", "passed", "limit"),
    [
        (10.0, None, (), "", 23),  # 6 minutes, a fifth of 10, and 15
        (10.0, {"status": "finished"}, ("--minutes=20",), " --minutes 24.0", 40),
        (10.0, {"status": "stopped"}, ("--resume-or-start",), "", 23),
        (1.0, {"status": "finished", "unevaluated": True}, (), "", 15),
        (1.0, {"status": "finished"}, ("--minutes", "0", "--max-updates", "900"), "--minutes 0", None),
    ],
)
def test_the_minutes_of_a_resumed_run(here, ddrl, minutes, result, words, passed, limit):
    """Those that are left, or so many more: the script has those of the whole run, as all of its starts are alike."""
    run = budgeted(here / "run", minutes, 240.0, result)
    words = ("--run-dir", str(run), *words) if "--resume-or-start" in words else ("--resume", str(run), *words)
    status, out, err = ddrl("submit", "train", *words, "--dry-run")
    assert status == 0, err
    last = out.splitlines()[-1]
    assert last.count("--minutes") == bool(passed) and passed in last
    assert [line for line in out.splitlines() if line.startswith("#SBATCH --time")] == (
        [f"#SBATCH --time={limit}"] if limit else []
    )


def test_a_run_that_has_used_up_its_minutes_wants_to_know_how_many_more(here, ddrl):
    """Its job would begin only to end."""
    run = budgeted(here / "run", 1.0, 60.0, {"status": "finished"})
    status, out, err = ddrl("submit", "train", "--resume", str(run), "--dry-run")
    assert (status, out) == (2, "") and f"--resume {run}: it has trained {MORE}" in err and err.count("\n") == 1


def test_a_short_job_may_train_the_last_minutes_of_a_long_run(here, ddrl):
    """It ends before its first checkpoint is due."""
    run = budgeted(here / "run", 60.0, 3600.0, {"status": "finished"})
    words = ("--minutes", "5", "--time", "10", "--checkpoint-every-minutes", "30")
    status, out, err = ddrl("submit", "train", "--resume", str(run), *words, "--dry-run")
    assert status == 0 and "--minutes 65.0" in out, err


def test_the_minutes_of_a_run_may_be_more_than_those_of_a_job(ddrl):
    assert "#SBATCH --time=30\n" in script_of(ddrl, "--minutes", "60", "--time", "30")


CASES = {
    "no such job": (["submit", "trian"], "submit trian: there is no such job; did you mean train?"),
    "no job": (["submit"], "submit: say what to submit"),
    "no Slurm": (SMOKE, "there is no sbatch here"),
    "no Slurm for a study": (["submit", "study", "scaling", "--quick"], "there is no sbatch here"),
    "too few ranks": (
        [*SMOKE, "--nodes", "1", "--ranks-per-node", "3", "--parameter-servers", "4"],
        "--nodes 1 --ranks-per-node 3: 3 ranks, and other roles leave none of them for workers",
    ),
    "other ranks": (
        [*SMOKE, "--nodes", "2", "--ranks-per-node", "3", "--parameter-servers", "1", "--workers", "1"],
        "--nodes 2 --ranks-per-node 3: 6 ranks, and the settings need 3",
    ),
    "memory of one host": (["submit", "train", "a3c", "--preset", "smoke", "--nodes", "2"], "--nodes 2: --exchange"),
    "no time": ([*SMOKE, "--time", "soon"], "--time soon: write it as Slurm does"),
    "no room for the final evaluation": (
        [*SMOKE, "--minutes", "600", "--time", "30"],
        "--time 30: the final evaluation may take 48 min, and jobs are warned 120 s before their end; use a longer",
    ),
    "a warning at once": (
        ["submit", "train", "dqn", "--preset", "smoke", "--minutes", "0", "--max-updates", "9", "--time", "7"],
        "--time 7: jobs are warned 420 s before their end, to save a checkpoint, so this one would not train; use a ",
    ),
    "too little time": ([*SMOKE, "--minutes", "9", "--time", "3"], "the first checkpoint is due after 5"),
    "no nodes": ([*SMOKE, "--nodes", "0"], "--nodes 0: must be between 1 and"),
    "no quote": ([*SMOKE, "--sbatch-options=--comment='x"], "--sbatch-options --comment='x: No closing quotation"),
    "line end": ([*SMOKE, "--sbatch-options=--comment='x\ny'"], "sbatch takes no control characters"),
    "backslash": ([*SMOKE, "--run-dir", "a\\b"], "Slurm cannot write its output there"),
    "no site": ([*SMOKE, "--site", "none"], "--site none: there is no such file; `ddrl submit site none` creates one"),
    "a mistake of train": ([*SMOKE, "--adam-epsilon", "-1"], "--adam-epsilon"),
    "a game that is not": ([*SMOKE, "--game", "brakeout"], "brakeout"),
    "no run": (["status", "nowhere"], "nowhere: there is no such directory"),
    "an empty directory": (["logs", "empty"], "empty: it holds no run, study, or search"),
    "no name": (["logs"], "logs: name the directory of a run, study, or search"),
    "no job of a run": (["logs", "run", "-f"], "run: no Slurm job has worked there"),
    "a job that is gone": (["logs", "gone"], "job 12 of gone has left the queue without any output"),
    "dry run of nothing": (["study", "scaling", "--dry-run"], "--dry-run goes with --submit"),
    "options of no job": (
        ["study", "scaling", "--list", "--sbatch-options=-H"], "--sbatch-options goes with --submit: give both",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_what_cannot_be_is_one_line(here, ddrl, name):
    (here / "empty").mkdir()
    a_run(here / "run")
    note(a_run(here / "gone"), JobRecord("12", here / "gone" / "slurm-12.out"))
    words, message = CASES[name]
    status, out, err = ddrl(*words)
    assert (status, out) == (2, "") and message in err
    assert err.startswith("ddrl: ") and err.count("\n") == 1
    assert not (here / "runs").exists() and not (here / "studies").exists(), "nothing is left"


CONFIG = """\
algorithm: ppo
preset: laptop
game: pong
workers: 2
parameter_servers: 1
video: false
adam_epsilon: 1e-8
run_dir: named
"""


def test_a_job_has_the_settings_of_the_file_as_it_was(here, ddrl):
    (here / "pong.yaml").write_text(CONFIG)
    words = ("submit", "train", "--config", "pong.yaml", "--minutes", "5", "--adam_epsilon=1e-5", "--dry-run")
    status, out, _ = ddrl(*words)
    train = next(line for line in out.splitlines() if line.startswith("train "))
    assert status == 0 and "--config" not in train and train.startswith(f"train {here}/named 4 ")
    again = train_options.parse(shlex.split(train)[3:], Machine(8, 16 * 10**9)).config
    wanted = train_options.parse(
        ["--config", "pong.yaml", "--minutes", "5", "--adam-epsilon=1e-5"], Machine(8, 16 * 10**9)
    )
    assert again == wanted.config.changed(run={"run_dir": ""}) and again.optimizer.adam_epsilon == 1e-5
    status, _, said = ddrl(*words, "--nodes", "1", "--ranks-per-node", "8")
    assert status == 2 and "--nodes 1 --ranks-per-node 8: 8 ranks, and the settings need 4" in said
    named = next(line for line in ddrl(*words, "--run-dir", "dqn")[1].splitlines() if line.startswith("train "))
    assert shlex.split(named)[3] == "ppo" and shlex.split(named)[1] == f"{here}/dqn"


def test_a_file_with_a_preset_is_left_out_of_it_where_a_run_is_resumed(here):
    run = a_run(here / "run")
    (here / "more.yaml").write_text("preset: laptop\nadam_epsilon: 1e-7\n")
    words = ["--config", "more.yaml", "--resume", str(run)]
    found = train_options.without_file(words, train_options.parse(words, Machine(8, 16 * 10**9)))
    assert "--preset" not in found
    assert train_options.parse(found, Machine(8, 16 * 10**9)).config.optimizer.adam_epsilon == 1e-7


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


# job.sh ---------------------------------------------------------------------------------------------------------------


def in_job(here, program: str, *words: str, **more: str) -> subprocess.CompletedProcess:
    """Runs a program of bash in a job; `more` are variables of the job."""
    variables = {
        "SLURM_JOB_ID": "1", "SLURM_NTASKS": "4", "SLURM_JOB_END_TIME": "1", sites.VARIABLE: "", "LAUNCHER": "srun",
        "PATH": os.environ["PATH"], "HOME": str(here),
    }  # fmt: skip
    command = ["bash", "-c", f'source "{sites.HERE}/job.sh"\n{program}', "job", *words]
    return subprocess.run(command, env=variables | more, capture_output=True, text=True, timeout=100, check=False)


@pytest.mark.parametrize(
    "words, shares",
    [
        ("", "ba3c 1 2"),
        ("ppo --parameter-servers 2 --no-evaluator", "ppo 2 2"),
        ("--parameter_servers=1 --no-evaluator --evaluator", "ba3c 1 2"),
        ("--workers 7", "ba3c 1 7"),
        ("--parameter-servers 4", "4 ranks leave none for workers beside 4 parameter servers and 1 evaluator"),
        ("--parameter-servers x", "x parameter servers: give a whole number"),
    ],
)
def test_ranks_are_shared_by_the_options(here, words, shares):
    program = 'SERVERS=1; share_ranks "$@"; echo "${ALGORITHM:-ba3c} $SERVERS $WORKERS"'
    done = in_job(here, program, *words.split())
    if done.returncode == 0:
        assert done.stdout == f"{shares}\n"
    else:
        assert done.returncode == 2 and done.stderr.startswith("ddrl: ") and shares in done.stderr
        assert done.stderr.count("\n") == 1


FAKES = """\
PATH=$HOME/bin:$PATH SLURM_JOB_NUM_NODES=1
scontrol() { echo "scontrol $*"; }
srun() { shift 3; "$@"; }
sleep() { case $1 in 60) ;; 1) command sleep 0.1 ;; *) command sleep "$1" ;; esac >/dev/null 2>&1; }
nodes_answer() { :; }
"""
"""What job.sh needs of Slurm; `srun` starts one process. The script goes on after it was put back into the queue.

What it looks at every second, it looks at ten times a second here.
"""


def trained(here, ranks: str, program: str) -> subprocess.CompletedProcess:
    """A job that trains in the directory `run`, where `ranks` is what ddrl does, and `program` what comes before."""
    ddrl = here / "bin" / "ddrl"
    ddrl.parent.mkdir()
    ddrl.write_text(f"#!/bin/bash\n{ranks}\n")
    ddrl.chmod(0o755)
    return in_job(here, f'{FAKES}{program}\ntrain "$HOME/run" 1')


DIES_ONCE = """\
echo "a rank begins, of a job that ends at ${{SLURM_JOB_END_TIME:-a time that is not told}}"
[[ -e $HOME/died ]] || {{ touch "$HOME/died"; exit {status}; }}
echo '{{"status": "stopped"}}' >"$HOME/run/result.json"
"""


def test_a_start_after_a_death_is_not_asked_for_the_time_of_a_checkpoint(here):
    done = trained(here, DIES_ONCE.format(status=9), "RESTARTS=1")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "a rank begins, of a job that ends at 1",
        "ddrl ended with status 9: it starts again, from the last checkpoint if there is one",
        "a rank begins, of a job that ends at a time that is not told",
    ]


STOPS = """\
echo a rank begins
echo '{"status": "stopped"}' >"$HOME/run/result.json"
"""


@pytest.mark.parametrize("restarts", [0, 3])
@pytest.mark.parametrize("ranks", [STOPS, "echo a rank begins; exit 9"])
def test_a_run_that_ends_as_a_node_is_gone_waits_for_slurm(here, ranks, restarts):
    settings = f"REQUEUE=yes RESTARTS={restarts} NODE_SECONDS=1"
    done = trained(here, ranks, settings + "\nnodes_answer() { return 1; }")
    waits = "a node does not answer: waiting until Slurm puts the job back into the queue, 1 s at most"
    assert done.stdout.splitlines() == ["a rank begins", waits]
    assert done.returncode == 2 and "Slurm did not put the job back into the queue" in done.stderr


NODES = """\
RESTARTS=3 SLURM_JOB_NODELIST='n[1-3]' SLURM_JOB_NODELIST_HET_GROUP_1=n20,n30
nodes_answer() {{ return 1; }}
export SCRIPT=$$
cat >"$HOME/bin/sinfo" <<'END'
#!/bin/bash
[[ ,$4, == *",n[1-3],"* && ,$4, == *,n20,n30,* ]] || exit 1
{sinfo}
END
chmod +x "$HOME/bin/sinfo"
"""
SILENT = r"printf '%s\n' 'n1 alloc' 'n2 alloc*' 'n2 alloc*' 'n3 down' 'n20 idle' 'n30 down*'"
LATER = f'if [[ -e $HOME/asked ]]; then {SILENT}; kill -USR1 "$SCRIPT"; fi; touch "$HOME/asked"'
GONE = "n2 with the evaluator (rank 10), worker 1 (rank 1), worker 10 (rank 2); n30"


def with_notes(here, monkeypatch) -> None:
    """A run directory with notes of ranks; that of rank 5 is from an earlier job, and rank 6 has no role yet."""
    names = {0: "worker 0, the chief", 1: "worker 1", 2: "worker 10", 3: "worker 3", 5: "worker 5"}
    names[10] = "the evaluator"
    hosts = {0: "n1.site", 3: "n20.site"}
    (here / "run").mkdir()
    for rank, name in names.items():
        host = hosts.get(rank, "n2.site")
        monkeypatch.setattr("ddrl.placement.start.socket.gethostname", lambda host=host: host)
        start.leave_note(here / "run", {"PMIX_RANK": str(rank)}, start.IN_JOB, f"{name} (rank {rank} on {host})")
    os.utime(here / "run" / start.RANKS / "5", (1, 1))
    start.leave_note(here / "run", {"PMIX_RANK": "6"}, start.AT_MPI)


def test_the_ranks_of_nodes_that_do_not_answer_are_named(here, monkeypatch):
    with_notes(here, monkeypatch)
    done = trained(here, "exit 9", f"REQUEUE=no\n{NODES.format(sinfo=SILENT)}")
    said = f"ddrl: a node does not answer, {GONE}: submit the job again (REQUEUE=no)"
    assert (done.returncode, done.stdout) == (2, "") and said in done.stderr.splitlines(), done.stderr


@pytest.mark.slow
def test_the_ranks_of_nodes_are_named_as_soon_as_slurm_misses_them(here, monkeypatch):
    with_notes(here, monkeypatch)
    done = trained(here, "exit 9", f"REQUEUE=yes\n{NODES.format(sinfo=LATER)}")
    waits = "a node does not answer: waiting until Slurm puts the job back into the queue, 600 s at most"
    assert done.stdout.splitlines() == [waits, f"Slurm has no answer from {GONE}", "scontrol requeue 1"], done.stderr


def test_nodes_of_all_components_are_asked(here):
    asks = """{ echo "srun $*"; [[ $* != *het-group=1* ]]; }"""
    heterogeneous = "HET_GROUPS=0,1 SLURM_JOB_NUM_NODES_HET_GROUP_0=2 SLURM_JOB_NUM_NODES_HET_GROUP_1=3"
    for settings, sizes, lost in [("SLURM_JOB_NUM_NODES=4", [4], False), (heterogeneous, [2, 3], True)]:
        program = f'{settings}\ntimeout() {{ shift 3; "$@"; }}\nsrun() {asks}\nnodes_answer'
        done = in_job(here, program)
        asked = [line.partition("--nodes=")[2].split()[0] for line in done.stdout.splitlines()]
        assert asked == [str(size) for size in sizes], done.stdout + done.stderr
        assert (done.returncode != 0) == lost


@pytest.mark.parametrize("restarts", ["-1", "three", "1.5"])
def test_a_number_of_new_starts_that_is_none_is_refused(here, restarts):
    done = trained(here, "echo a rank begins", f"RESTARTS={restarts}")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"ddrl: RESTARTS={restarts}: give a whole number\n"


def test_a_job_without_new_starts_ends_with_the_status_of_a_death_while_all_nodes_answer(here):
    done = trained(here, "echo a rank begins; exit 9", "REQUEUE=yes RESTARTS=0")
    assert (done.returncode, done.stdout) == (9, "a rank begins\n"), done.stderr


def test_a_run_that_somebody_else_has_stopped_ends_the_job(here):
    done = trained(here, STOPS, "REQUEUE=yes RESTARTS=3")
    assert (done.returncode, done.stdout) == (0, "a rank begins\n"), done.stderr


@pytest.mark.parametrize("status", [0, 9])
def test_the_result_of_an_earlier_job_is_not_that_of_a_start_that_did_not_begin(here, status):
    result = here / "run" / rundir.RESULT
    result.parent.mkdir()
    result.write_text('{"status": "finished"}')
    os.utime(result, (1, 1))
    done = trained(here, DIES_ONCE.format(status=status), "RESTARTS=1")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("a rank begins") == 2 and "stopped" in result.read_text()


@pytest.mark.parametrize("settings", ["REQUEUE=yes NODE_SECONDS=20", "REQUEUE=no"])
def test_a_slow_answer_of_slurm_is_not_a_node_that_is_gone(here, settings):
    slow = 'nodes_answer() { [[ -e $HOME/asked ]] || { touch "$HOME/asked"; return 1; }; }'
    done = trained(here, DIES_ONCE.format(status=9), f"RESTARTS=1 {settings}\n{slow}")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("a rank begins") == 2 and done.stdout.count("starts again") == 1


def test_a_launcher_that_stays_after_a_failed_run_does_not_keep_the_job(here):
    hangs = """\
exec >/dev/null
echo '{"status": "failed"}' >"$HOME/run/result.json"
while kill -0 $PPID; do sleep 0.1; done
"""
    soon = "sleep() { command sleep 0.1; }"  # else five seconds, and then ten
    done = trained(here, hangs, f"REQUEUE=yes RESTARTS=3 LAUNCHER_SECONDS=0\n{soon}")
    assert done.returncode in (137, 143), done.stderr
    assert done.stdout == "the run has ended, and srun has not in 0 s: it is killed\n"


TOLD = '{ printenv | grep ^SRUN_ || true; }; printf "%s " "${LAUNCH[@]}"'


@pytest.mark.parametrize(
    "settings, told",
    [
        ("LAUNCHER=mpirun MPI='mpirun (Open MPI) 5.0.8'", ["mpirun --with-ft ulfm --bind-to none -n 8 "]),
        ("LAUNCHER=mpirun MPI='mpirun (Open MPI) 10.0.0'", ["mpirun --with-ft ulfm --bind-to none -n 8 "]),
        ("LAUNCHER=mpirun MPI='mpirun (Open MPI) 4.1.6'", ["mpirun --bind-to none -n 8 "]),
        ("LAUNCHER=mpirun MPI='Intel(R) MPI Library for Linux* OS, Version 2021.9'", ["mpirun -n 8 "]),
        (
            "LAUNCHER=srun SLURM_CPUS_PER_TASK=4",
            ["SRUN_CPUS_PER_TASK=4", "srun --mpi=pmix --kill-on-bad-exit=1 --ntasks=8 "],
        ),
        (
            "LAUNCHER=srun HET_GROUPS=0,1 SLURM_CPUS_PER_TASK_HET_GROUP_0=8",
            [
                "SRUN_CPUS_PER_TASK_HET_GROUP_0=8", "SRUN_CPUS_PER_TASK_HET_GROUP_1=1",
                "srun --mpi=pmix --kill-on-bad-exit=1 --het-group=0,1 ",
            ],
        ),
    ],
)  # fmt: skip
def test_what_starts_the_ranks_and_how_many_cores_srun_gives_them(here, settings, told):
    """The srun with which mpirun starts its daemons has to give them all cores of their nodes.

    Only Open MPI 5 can go on without a rank, and other MPIs refuse the options of Open MPI.
    """
    program = here / "bin" / "mpirun"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\n[ "$*" = --version ] && echo "$MPI"\n')
    program.chmod(0o755)
    settings = f"PATH=$HOME/bin:$PATH SLURM_CPUS_PER_TASK=4\nexport SRUN_CPUS_PER_TASK=3 MPI=\n{settings}"
    done = in_job(here, f"{settings}\nlaunch 8\n{TOLD}")
    assert sorted(done.stdout.splitlines()) == told, done.stderr


@pytest.mark.parametrize(
    "asked, kept",
    [("cpu=1", ""), ("cpu:2", ""), ("cpu=8,gres/gpu:a100=1", "gres/gpu:a100=1"), ("gres/gpu=1,cpu=8", "gres/gpu=1")],
)
def test_srun_is_told_of_one_number_of_processors(here, asked, kept):
    """A site's limit of memory for each processor raises SLURM_CPUS_PER_TASK alone, and srun ends if they differ."""
    names = ("SLURM_TRES_PER_TASK", "SLURM_TRES_PER_TASK_HET_GROUP_1")
    done = in_job(here, "printenv | grep ^SLURM_TRES_ || true", **dict.fromkeys(names, asked))
    assert sorted(done.stdout.splitlines()) == [f"{name}={kept}" for name in names if kept], done.stderr


def test_the_end_of_a_heterogeneous_job_is_that_of_its_first_component(here):
    """Slurm before 23.02 tells it in the queue alone, in a line for each component."""
    program = here / "bin" / "squeue"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho 2026-11-23T12:00:00\necho 2026-11-23T12:00:00\n")
    program.chmod(0o755)
    variables = {"SLURM_JOB_END_TIME": "", "PATH": f"{program.parent}:{os.environ['PATH']}"}
    done = in_job(here, 'date -d "@$SLURM_JOB_END_TIME" +%FT%T', **variables)
    assert done.stdout == "2026-11-23T12:00:00\n", done.stderr


@pytest.mark.parametrize("second", ["no ddrl", "ddrl 0.9, source a", "ddrl 1.0, source b"])
def test_the_nodes_of_all_components_need_one_version_and_source(here, second):
    nodes = [f"SLURM_JOB_NUM_NODES{suffix}=1" for suffix in ("", "_HET_GROUP_0", "_HET_GROUP_1")]
    settings = " ".join(["HET_GROUPS=0,1", *nodes])
    says = f'{{ if [[ $* == *het-group=1* ]]; then echo "n3: {second}"; else echo "n1: ddrl 1.0, source a"; fi; }}'
    done = in_job(here, f'{settings}\ntimeout() {{ shift 3; "$@"; }}\nsrun() {says}\ncheck_nodes')
    assert done.returncode == 2 and f"the nodes differ (n1: ddrl 1.0, source a; n3: {second})" in done.stderr, (
        done.stderr
    )


def test_nodes_that_say_nothing_are_not_waited_for_until_the_time_is_up(here):
    done = in_job(here, "SLURM_JOB_NUM_NODES=2\nsrun() { sleep 99; }\ntimeout() { return 124; }\ncheck_nodes")
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert done.stderr == "ddrl: not all nodes said within 600 s which ddrl they have; srun may have said why\n"


SCRIPTS = sites.HERE.parents[1] / "slurm"


@pytest.mark.parametrize("script", sorted(path.name for path in SCRIPTS.glob("*.sbatch")))
def test_a_script_finds_the_code_that_it_shares_in_a_long_record(here, script):
    """To the task that has the number of its array, Slurm shows all of them."""
    lines = (SCRIPTS / script).read_text().partition("\nset -euo pipefail\n")[2].partition("\nsource ")[0]
    for folder in ("slurm", "ddrl/slurm"):
        (here / folder).mkdir(parents=True)
    (here / "ddrl" / "slurm" / "job.sh").touch()
    record = 'scontrol() { printf "   Command=$HOME/slurm/mine.sbatch --seed %s\\n" {1..20000}; }'
    program = f'set -euo pipefail\n{record}\n{lines}\necho "$shared"'
    variables = {"PATH": os.environ["PATH"], "HOME": str(here), "SLURM_JOB_ID": "7"}
    done = subprocess.run(
        ["bash", "-c", program], env=variables, capture_output=True, text=True, timeout=100, check=False
    )
    assert (done.returncode, done.stdout) == (0, f"{here}/slurm/../ddrl/slurm/job.sh\n"), done.stderr


@pytest.mark.parametrize("mask, kept", [(0o077, "0077"), (0o002, "0002"), (0o000, "0002")])
def test_the_files_of_a_job_have_the_rights_that_its_user_wants_but_not_everybody_writes(here, mask, kept):
    before = os.umask(mask)
    try:
        assert in_job(here, "umask").stdout == f"{kept}\n"
    finally:
        os.umask(before)


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


def test_a_job_notes_itself_in_no_link_and_no_pipe(here):
    """A link may lead to any file of this user, and a pipe is waited for without end."""
    (here / "own").write_text("kept")
    for name in ("linked", "piped"):
        (here / name).mkdir()
    (here / "linked" / "slurm-jobs.tsv").symlink_to(here / "own")
    os.mkfifo(here / "piped" / "slurm-jobs.tsv")
    done = in_job(here, f"{FAKES}note_job linked\n[[ $(<own) != kept ]] || note_job piped\nnote_job new")
    assert done.returncode == 0, done.stderr
    assert (here / "own").read_text() == "kept" and (here / "new" / "slurm-jobs.tsv").read_text() == "1\t\n"


def test_a_request_to_stop_makes_no_file_where_a_link_leads(here):
    (here / "run").mkdir()
    (here / "run" / "stop").symlink_to(here / "elsewhere")
    done = in_job(here, f"{FAKES}ask_to_stop run\nask_to_stop run\nask_to_stop missing")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert (here / "run" / "stop").read_bytes() == b"" and not (here / "elsewhere").exists()


def test_a_result_that_is_a_pipe_is_not_waited_for(here):
    (here / "run").mkdir()
    os.mkfifo(here / "run" / rundir.RESULT)
    asks = 'for each in "well run" "ended run old" "ended_well run old" "cut_off run"; do ! $each || echo "$each"; done'
    done = in_job(here, f"{FAKES}nodes_answer() {{ return 1; }}\n{asks}; echo answered")
    assert (done.stdout, done.stderr) == ("answered\n", "")


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


@pytest.mark.parametrize(
    "minutes, result, ended",
    [
        (0.0, {}, "no"),
        (0.0, {"status": "stopped"}, "no"),
        (0.0, {"status": "finished"}, "yes"),
        (0.0, {"status": "failed"}, "yes"),
        (0.0, {"status": "failed", "unsaved": True}, "no"),
        (0.0, {"status": "finished", "unevaluated": True}, "no"),
        (5.0, {"status": "finished", "unevaluated": True}, "no"),
        (5.0, {"status": "finished"}, "yes"),
    ],
)
def test_which_runs_have_ended(here, minutes, result, ended):
    """A new start makes the final evaluation alone."""
    config = TrainConfig(algorithm=BA3CConfig()).changed(run={"run_dir": "run", "max_updates": 200, "minutes": minutes})
    rundir.create_run_dir(config)
    rundir.write_json(here / "run" / rundir.RESULT, result)
    assert in_job(here, "ended run '' && echo yes || echo no").stdout == f"{ended}\n"


# status and logs ------------------------------------------------------------------------------------------------------


def rows_of(out: str) -> list[list[str]]:
    """The cells of a table, without its headings and without empty ones."""
    return [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in out.splitlines()[1:]]


def test_status_of_runs_studies_and_searches(here, ddrl):
    halfway = a_run(here / "halfway", [TRAIN, EVALUATION])
    with (halfway / rundir.METRICS).open("ab") as file:
        file.write(b'{"kind": "train", "update": "many"}\n{"kind": "train", "wall_')
    os.utime(halfway / rundir.METRICS, (1, 1))
    a_run(here / "broken", [TRAIN], {"status": "failed", "message": f"a worker {ESCAPE}died"})
    a_run(here / "done", [TRAIN | {"update": 200}], {"status": "finished", "message": "the budget is used up"})
    gone = a_run(here / "gone").rename(here / f"gone{ESCAPE}")
    note(gone, JobRecord("12", gone / "slurm-12.out"))
    (gone / "slurm-12.out").write_text("ddrl: no such thing\nlast line\n")
    study = here / "study"
    points = [{"name": name} for name in ("one", "two", "three")]
    a_run(study / "points" / "one", [], {"status": "target"})
    a_run(study / "points" / "two", [], {"status": "failed"})
    a_run(study / "points" / "three", [], {"status": "finished", "unevaluated": True})
    rundir.write_json(study / "study.json", {"points": points})
    status, out, err = ddrl("status", *(path.name for path in (halfway, here / "broken", here / "done", gone, study)))
    assert (status, err) == (0, "")
    assert rows_of(out) == [
        ["interrupted", "25% of 200 updates", "1.2, evaluated 2.0", "halfway"],
        ["failed", "25% of 200 updates", "1.2", "broken"],
        ["a worker ?]0;owned?died"],
        ["finished", "100% of 200 updates", "1.2", "done"],
        ["12", "gone", "gone?]0;owned?"],
        ["ddrl: no such thing"],
        ["interrupted", "1 of 3 points finished, 1 failed", "study"],
    ]
    assert ESCAPE not in out


def test_damaged_plans_and_lines_hide_no_other_run(here, ddrl):
    run = a_run(here / "run", [TRAIN])
    with (run / rundir.METRICS).open("ab") as file:
        file.write(b'{"kind": "train", "wall_seconds": 9.0, "update": 60, "seconds_left": Infinity}\n')
    studies = []
    for number, points in enumerate((None, 3, [3, {}, {"name": 7}, {"name": "../../run"}])):
        studies.append(here / f"study{number}")
        studies[-1].mkdir()
        rundir.write_json(studies[-1] / "study.json", {"points": points})
    status, out, err = ddrl("status", "run", *(study.name for study in studies))
    assert (status, err) == (0, "") and "25% of 200 updates" in out
    assert out.count("0 of 0 trials finished") == 3


def test_a_budget_beyond_all_floats_hides_no_other_run(here, ddrl):
    a_run(here / "run", [TRAIN])
    odd = a_run(here / "odd", [TRAIN])
    content = rundir.read_json(odd / rundir.CONFIG)
    content["run"] |= {"max_updates": 0, "minutes": 10**400}
    rundir.write_json(odd / rundir.CONFIG, content)
    status, out, err = ddrl("status", "run", "odd")
    assert (status, err) == (0, "") and "25% of 200 updates" in out and "800 agent steps" in out


HERE = f"process {os.getpid()} on {socket.gethostname()}"


def test_a_run_that_is_locked_is_running_and_its_process_is_named(here, ddrl):
    run = a_run(here / "run", [TRAIN | {"seconds_left": 60.0}])
    row = ["25% of 200 updates, 1:00 left", "1.2", "run"]
    with run_lock.locked(run):
        assert rows_of(ddrl("status", "run")[1]) == [[f"running ({HERE})", *row]]
        rundir.write_json(run / rundir.RESULT, {"status": "finished"})  # its curve is still to be drawn
        assert rows_of(ddrl("status", "run")[1]) == [[f"running ({HERE})", "25% of 200 updates", *row[1:]]]
        (run / run_lock.LOCK).write_text("a text that is somebody's")
        assert rows_of(ddrl("status", "run")[1])[0][0] == "running"
    assert rows_of(ddrl("status", "run")[1]) == [["finished", "25% of 200 updates", *row[1:]]]
    (run / rundir.RESULT).unlink()
    assert rows_of(ddrl("status", "run")[1]) == [["interrupted", "25% of 200 updates", *row[1:]]]
    with run_lock.locked(run):
        note(run, JobRecord("12", run / "slurm-12.out"))  # another job may have ended before
        assert rows_of(ddrl("status", "run")[1])[0][0] == "running"
    assert (run / run_lock.LOCK).read_text() == "a text that is somebody's"


def test_a_run_whose_lock_cannot_be_seen_is_running_while_it_writes(here, ddrl):
    run = a_run(here / "run", [TRAIN])
    os.utime(run / rundir.METRICS)
    assert rows_of(ddrl("status", "run")[1])[0][0] == "running"
    os.utime(run / rundir.METRICS, (time.time() - 100,) * 2)
    assert rows_of(ddrl("status", "run")[1])[0][0] == "interrupted"
    config = rundir.load_config(run).changed(run={"log_every_seconds": 60.0})
    rundir.write_json(run / rundir.CONFIG, rundir.config_to_dict(config))
    assert rows_of(ddrl("status", "run")[1])[0][0] == "running", "it is not yet due to write again"
    os.utime(run / rundir.METRICS)
    rundir.write_json(run / rundir.RESULT, {"status": "stopped"})
    assert rows_of(ddrl("status", "run")[1])[0][0] == "stopped"


def test_studies_that_run_without_jobs_show_the_points_that_do(here, ddrl):
    study = here / "study"
    for name in ("one", "two"):
        a_run(study / "points" / name, [TRAIN])
    rundir.write_json(study / "study.json", {"points": [{"name": name} for name in ("one", "two", "three")]})
    point = ["25% of 200 updates", "1.2", "study/points/two"]
    with run_lock.locked(study / "points" / "two"):
        assert rows_of(ddrl("status", "study")[1]) == [[f"running ({HERE})", "0 of 3 points finished", "study"], point]
    with run_lock.locked(study):
        assert rows_of(ddrl("status", "study")[1]) == [[f"running ({HERE})", "0 of 3 points finished", "study"]]


def test_without_slurm_and_names_the_runs_here_are_listed(here, ddrl):
    status, out, err = ddrl("status")
    assert (status, out, err) == (0, "there are no runs in runs; `ddrl train` starts one\n", "")
    for number in range(12):
        run = a_run(here / "runs" / "of a day" / f"run{number:02d}", [TRAIN], {"status": "finished"})
        os.utime(run / rundir.METRICS, (100 + number,) * 2)
    rundir.write_json(here / "runs" / rundir.CONFIG, {"of": "another program"})
    goes_on = a_run(here / "runs" / "goes on", [TRAIN])
    (here / "studies" / "study").mkdir(parents=True)
    rundir.write_json(here / "studies" / "study" / "study.json", {"points": [{"name": "one"}]})
    with run_lock.locked(goes_on):
        status, out, err = ddrl("status")
        every = ddrl("status", "--all")[1]
    assert (status, err) == (0, "")
    *rows, more = rows_of(out)
    assert [row[-1] for row in rows] == [
        "runs/goes on",
        "studies/study",
        *(f"runs/of a day/run{number:02d}" for number in range(11, 2, -1)),
    ]
    assert rows[0][0].startswith("running") and rows[1][0] == "interrupted" and rows[2][0] == "finished"
    assert more == ["and 3 more that ended earlier (--all)"] and len(rows_of(every)) == 14


def test_status_leaves_out_what_a_resume_has_taken_back(here, ddrl):
    """And evaluations that time cut off: what is there is of the games that were short."""
    resumed = {"kind": "event", "name": "resumed", "text": "from update 30", "wall_seconds": 5.0}
    kept = [EVALUATION | {"wall_seconds": 3.0, "mean": 1.0}, EVALUATION | {"wall_seconds": 4.0, "timed_out": 3}]
    kept.append(TRAIN | {"wall_seconds": 5.0, "update": 30, "online_score_mean": 0.5})
    undone = [TRAIN | {"seconds_left": 60.0}, EVALUATION]
    a_run(here / "again", [*kept, *undone, resumed])
    a_run(here / "further", [*kept, *undone, resumed, TRAIN | {"wall_seconds": 6.0, "seconds_left": 60.0}])
    timed = a_run(here / "timed", [*kept, *undone, resumed])
    config = rundir.load_config(timed).changed(run={"max_updates": 0, "minutes": 2.0})
    rundir.write_json(timed / rundir.CONFIG, rundir.config_to_dict(config))
    requeued = a_run(here / "requeued", [*kept, *undone, resumed | {"wall_seconds": 6.0, "spent_seconds": 6.0}])
    rundir.write_json(requeued / rundir.CONFIG, rundir.config_to_dict(config))
    for path in (here / "again", here / "further", timed, requeued):
        os.utime(path / rundir.METRICS)
    assert rows_of(ddrl("status", "again", "further", "timed", "requeued")[1]) == [
        ["running", "15% of 200 updates, starting", "0.5, evaluated 1.0", "again"],
        ["running", "25% of 200 updates, 1:00 left", "1.2, evaluated 1.0", "further"],
        ["running", "0% of 2.0 minutes, starting", "0.5, evaluated 1.0", "timed"],
        ["running", "4% of 2.0 minutes, starting", "0.5, evaluated 1.0", "requeued"],
    ]


def test_a_job_that_never_began_has_not_ended_as_the_one_before_it_did(here, ddrl):
    run = a_run(here / "run", [TRAIN], {"status": "failed", "message": "of another job"})
    note(run, JobRecord("12", run / "slurm-12.out"))
    os.utime(run / "slurm-jobs.tsv", (1, 1))
    assert "12   failed" in ddrl("status", "run")[1]
    note(run, JobRecord("13", run / "slurm-13.out"))
    os.utime(run / rundir.RESULT, (2, 2))
    (run / "slurm-13.out").write_text("ddrl: the nodes differ\n")
    lines = ddrl("status", "run")[1].splitlines()
    assert lines[1].startswith("13   gone") and lines[2].strip() == "ddrl: the nodes differ" and len(lines) == 3


@pytest.mark.parametrize(
    "said",
    [
        "ddrl: the nodes differ",
        "slurmstepd: error: *** JOB 12 ON n1 CANCELLED DUE TO TIME LIMIT ***",
        "srun: error: n3: task 2: Killed",
        "srun: fatal: cpus-per-task set by two different environment variables",
    ],
)
def test_status_tells_why_a_job_is_gone(here, ddrl, said):
    run = a_run(here / "run")
    os.utime(run / rundir.METRICS)  # it wrote just now, but Slurm knows that it is gone
    note(run, JobRecord("12", run / "slurm-12.out"))
    (run / "slurm-12.out").write_text(f"first\n{said}\nlast\n")
    lines = ddrl("status", "run")[1].splitlines()
    assert lines[1].startswith("12   gone") and lines[2].strip() == said


@pytest.mark.parametrize("start", ["run directory run", "ddrl ended with status 1: it starts again, from the last one"])
def test_what_a_job_said_of_an_earlier_start_is_not_why_it_is_gone(here, ddrl, start):
    """A job that was put back into the queue goes on in the same output."""
    run = a_run(here / "run")
    note(run, JobRecord("12", run / "slurm-12.out"))
    output = run / "slurm-12.out"
    output.write_text(f"run directory run\nddrl: a rank died while the job began\n{start}\ntrains\n")
    assert ddrl("status", "run")[1].splitlines()[2].strip() == f"it has left no result; its last output is in {output}"
    with output.open("a") as file:
        file.write("srun: error: n3: task 2: Killed\n")
    assert ddrl("status", "run")[1].splitlines()[2].strip() == "srun: error: n3: task 2: Killed"


def test_jobs_in_the_queue_come_first(here, ddrl, monkeypatch):
    runs = {name: a_run(here / "runs" / name, [TRAIN]) for name in ("first", "array", "waits")}
    elsewhere = a_run(here / "of another place", [TRAIN])
    note(elsewhere, JobRecord("15", elsewhere / "slurm-15.out"))
    for job, run in zip(("12", "13", "14"), runs.values()):
        note(run, JobRecord(job, run / "slurm.out"))
    jobs = [
        queues.QueuedJob("13_0", "RUNNING", "1:00", "2:00", "None", "/x.sh"),
        queues.QueuedJob("13_1", "RUNNING", "0:30", "2:00", "None", "/x.sh"),
        queues.QueuedJob("13_[2-9]", "PENDING", "0:00", "2:00", "Priority", "/x.sh"),
        queues.QueuedJob("14", "PENDING", "0:00", "2:00", "Resources", "/x.sh"),
        queues.QueuedJob("99", "RUNNING", "0:00", "2:00", "None", "/x.sh"),
        queues.QueuedJob("15", "RUNNING", "0:00", "2:00", "None", f"{elsewhere}/job.sbatch"),
        queues.QueuedJob("16", "RUNNING", "0:00", "2:00", "None", "/another/project/job.sbatch"),
    ]
    monkeypatch.setattr("ddrl.commands.status.has_queue", lambda: True)
    monkeypatch.setattr("ddrl.commands.status.queue", lambda: jobs)
    status, out, _ = ddrl("status")
    lines = out.splitlines()
    assert status == 0 and len(lines) == 6
    assert lines[1].startswith("13   RUNNING (2 tasks)    1:00 of 2:00") and lines[1].endswith("runs/array")
    assert lines[2].startswith("14   PENDING (Resources)") and lines[4].startswith("12   gone")
    assert lines[3].startswith("15   RUNNING") and lines[3].endswith("of another place")
    assert lines[5].strip() == "it has left no output"


NO_CONFIGURATION = """\
squeue: error: resolve_ctls_from_dns_srv: res_nsearch error: Unknown host
squeue: error: fetch_config: DNS SRV lookup failed
squeue: error: _establish_config_source: failed to fetch config
squeue: fatal: Could not establish a configuration source
"""


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("squeue: error:  no\tcontroller\nsqueue: error: gone\n", "squeue failed: squeue: error: no controller"),
        ("", "squeue failed: no reason given"),
    ],
)
def test_a_squeue_that_fails_is_told_of_in_one_short_line(here, ddrl, monkeypatch, said, told):
    failing_squeue(here, monkeypatch, said)
    status, _, err = ddrl("status")
    assert status == 2 and err.startswith(f"ddrl: {told}") and err.count("\n") == 1
    assert "gone" not in err


def test_a_machine_whose_slurm_knows_of_no_cluster_has_runs_without_jobs(here, ddrl, monkeypatch):
    failing_squeue(here, monkeypatch, NO_CONFIGURATION)
    a_run(here / "runs" / "mine")
    status, out, err = ddrl("status")
    assert (status, err) == (0, "") and out.splitlines()[1].endswith("runs/mine")
    with pytest.raises(
        UsageError, match="Slurm's client has no configuration here; log in where Slurm is, or name its"
    ):
        queues.queue()


def failing_squeue(here, monkeypatch, said):
    """Puts a squeue on the path that prints this and fails."""
    program = here / "bin" / "squeue"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{said}END\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    for module in ("ddrl.slurm.queue", "ddrl.commands.status"):
        monkeypatch.setattr(f"{module}.has_queue", lambda: True)


def test_logs_show_the_newest_job_and_follow_it_to_its_end(here, ddrl, monkeypatch):
    run = a_run(here / "run")
    for job in ("12", "13"):
        note(run, JobRecord(job, run / f"slurm-{job}.out"))
        (run / f"slurm-{job}.out").write_text(f"one of {job}\ntwo {ESCAPE}\nthree")
    assert ddrl("logs", "run")[1].splitlines()[1:] == ["one of 13", "two ?]0;owned?", "three"]
    assert ddrl("logs", "run", "--lines", "1")[1].splitlines()[1:] == ["three"]
    assert ddrl("logs", "run", "--lines=2")[1].splitlines()[1:] == ["two ?]0;owned?", "three"]
    asked = []

    def queue():
        asked.append(len(asked))
        if len(asked) == 2:
            with (run / "slurm-13.out").open("a") as file:
                file.write(" and more\nfour\n")
        there = queues.QueuedJob("13", "RUNNING", "0:00", "2:00", "None", "/x.sh")
        return [there] if len(asked) < 3 else []

    monkeypatch.setattr("ddrl.commands.logs.queue", queue)
    monkeypatch.setattr("ddrl.commands.logs.QUEUE_SECONDS", 0.0)
    monkeypatch.setattr("ddrl.commands.logs.READ_SECONDS", 0.01)
    status, out, err = ddrl("logs", "run", "-f")
    assert status == 0 and out.splitlines()[1:] == ["one of 13", "two ?]0;owned?", "three and more", "four"]
    assert err == "ddrl: job 13 has left the queue\n"


def test_an_array_and_the_job_after_it_leave_the_queue(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("ddrl.commands.logs.queue", list)
    assert logs.follow([JobRecord(number, tmp_path / f"slurm-{number}.out") for number in ("9", "10")], None) == 0
    assert capsys.readouterr().err == "ddrl: jobs 9 and 10 have left the queue\n"


@pytest.mark.parametrize(
    "answers, status", [([True, *[False] * 3, True, *[False] * 3], 0), ([True, *[False] * 4], 2), ([False], 2)]
)
def test_logs_are_followed_while_slurm_fails_to_answer_now_and_then(here, ddrl, monkeypatch, answers, status):
    run = a_run(here / "run")
    note(run, JobRecord("13", run / "slurm-13.out"))
    left = iter(answers)

    def queue():
        answer = next(left, None)
        if answer is False:
            raise UsageError("squeue did not answer; try again")
        return [queues.QueuedJob("13", "RUNNING", "0:00", "2:00", "None", "/x.sh")] if answer else []

    monkeypatch.setattr("ddrl.commands.logs.queue", queue)
    for name, value in {"QUEUE_SECONDS": 0.0, "READ_SECONDS": 0.001, "UNANSWERED": 3}.items():
        monkeypatch.setattr(f"ddrl.commands.logs.{name}", value)
    found, _, err = ddrl("logs", "run", "-f")
    assert (found, err.count("has left the queue")) == (status, status == 0), err


@pytest.mark.parametrize("begun", [False, True])
def test_of_an_output_that_begins_while_it_is_followed_every_line_is_shown(here, ddrl, monkeypatch, begun):
    run = a_run(here / "run")
    output = run / "slurm-13.out"
    note(run, JobRecord("13", output))
    if begun:
        output.touch()
    asked = []

    def queue():
        asked.append(len(asked))
        if len(asked) == 2:
            output.write_text("one\ntwo\nthree\n")
        return [queues.QueuedJob("13", "RUNNING", "0:00", "2:00", "None", "/x.sh")] if len(asked) < 3 else []

    monkeypatch.setattr("ddrl.commands.logs.queue", queue)
    monkeypatch.setattr("ddrl.commands.logs.QUEUE_SECONDS", 0.0)
    monkeypatch.setattr("ddrl.commands.logs.READ_SECONDS", 0.01)
    status, out, _ = ddrl("logs", "run", "-f", "--lines", "1")
    assert status == 0 and out.splitlines()[1:] == ["one", "two", "three"]


def test_logs_of_a_study_are_those_of_all_tasks(here, ddrl):
    study = here / "study"
    study.mkdir()
    rundir.write_json(study / "study.json", {"points": []})
    for job, name in (("9", "slurm-9-%a.out"), ("12", "slurm-12-%a.out"), ("13", "report-13.out")):
        note(study, JobRecord(job, study / name))
    for name in ("slurm-9-0", "slurm-12-10", "slurm-12-2", "report-13"):
        (study / f"{name}.out").write_text(f"of {name}\n")
    lines = [line for line in ddrl("logs", "study")[1].splitlines() if not line.startswith("==>")]
    assert lines == ["of slurm-12-2", "of slurm-12-10", "of report-13"]


def test_jobs_are_noted_once_and_damaged_lines_left_out(here):
    record = JobRecord("12_3", here / "slurm-12_3.out")
    for _ in range(2):
        note(here, record)
    with (here / "slurm-jobs.tsv").open("ab") as file:
        file.write(b"\xff\xfe\nno job\tx\n17\n" + b"9" * 5000 + b"\tx\n18\tout")
    assert noted(here) == [record, JobRecord("18", Path("out"))]
    assert record.number == "12"


def test_a_directory_with_what_jobs_leave_can_be_begun_in(here):
    run = here / "run"
    run.mkdir()
    for name in ("job.sbatch", "slurm-jobs.tsv", "slurm-12.out"):
        (run / name).write_text("x")
    rundir.make_run_dir(run)
    (run / "notes.txt").write_text("x")
    with pytest.raises(UsageError, match="holds other files"):
        rundir.make_run_dir(run)
