"""The script of `ddrl submit`: what it asks Slurm for, words that stay words, and the minutes of resumed runs."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest

from ddrl import checkpoint as checkpoints
from ddrl import rundir
from ddrl.algorithms import preset
from ddrl.commands.slurm_job import JobArguments
from ddrl.commands.submit import HELP
from ddrl.options import train_options
from ddrl.types import Machine
from tests.launch.support import checkpoint
from tests.submit.support import HOSTILE, SMOKE, a_run


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
