"""What the system can raise, in the real programs: one line, and output that nobody takes."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from cluster.launch import find_mpirun
from ddrl import programs, run_lock, rundir
from ddrl.algorithms.ba3c import BA3CConfig
from ddrl.config import RunConfig, TrainConfig
from ddrl.launch.local import clear
from ddrl.options.train_options import parse
from ddrl.types import Machine

pytestmark = pytest.mark.slow
DDRL = programs.python_command("ddrl.cli")
ALONE = ("--preset", "smoke", "--workers", "1", "--parameter-servers", "0", "--no-evaluator", "--no-video")
SMOKE = ("train", "ba3c", *ALONE)
PRINTING = (
    ("--help",), ("--version",), ("train", "--help"), ("evaluate", "--help"), ("play", "--help"), ("plan", "--help"),
    ("plan", "--preset", "smoke"), ("plan", "--preset", "smoke", "--json", "-"), ("bench", "--help"),
    ("bench", "idle", "--help"), ("doctor", "--help"), ("study", "--help"), ("study", "hts", "--list"),
)  # fmt: skip
NO_ACCESS_OVERRIDE = 1  # CAP_DAC_OVERRIDE of <linux/capability.h>
PR_CAPBSET_DROP = 24  # <sys/prctl.h>


def obeys_permissions() -> None:
    """In the child: root, too, may write only where the permissions say so."""
    if os.geteuid() == 0:
        assert ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, NO_ACCESS_OVERRIDE, 0, 0, 0) == 0


def small_files() -> None:
    """In the child: no file takes a byte."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))


def ended(*command: str, **options) -> subprocess.CompletedProcess[str]:
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "timeout": 110} | options
    return subprocess.run(command, check=False, **options)


def ddrl(*words: str, **options) -> subprocess.CompletedProcess[str]:
    return ended(*DDRL, *words, **options)


def closed_pipe() -> int:
    """The writing end of a pipe that nobody reads."""
    reading, writing = os.pipe()
    os.close(reading)
    return writing


def one_line(done: subprocess.CompletedProcess[str], *parts: str) -> None:
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("ddrl: ") and done.stderr.count("\n") == 1, done.stderr
    for part in parts:
        assert part in done.stderr


@pytest.mark.parametrize("words", PRINTING, ids=" ".join)
def test_a_full_device_is_one_line_and_a_closed_pipe_a_silent_end(words, tmp_path):
    with open("/dev/full", "w") as full:
        one_line(ddrl(*words, stdout=full, cwd=tmp_path), "standard output: No space left on device; free space")
    writing = closed_pipe()
    done = ddrl(*words, stdout=writing, cwd=tmp_path)
    os.close(writing)
    assert (done.returncode, done.stderr) == (programs.CLOSED_PIPE, "")


def test_libraries_that_look_for_a_closed_pipe_end_nothing_themselves(tmp_path):
    """Rich ends a program whose pipe is closed with status 1."""
    program = (
        "from ddrl import programs\nfrom rich.console import Console\n"
        "raise SystemExit(programs.run(lambda: Console().print('a line')))"
    )
    writing = closed_pipe()
    done = ended(sys.executable, "-c", program, stdout=writing)
    os.close(writing)
    assert (done.returncode, done.stderr) == (programs.CLOSED_PIPE, "")


@pytest.mark.skipif(find_mpirun() is None, reason="no mpirun on this machine")
def test_the_table_of_ranks_that_doctor_started_is_not_lost_silently(tmp_path):
    with open("/dev/full", "w") as full:
        words = ("doctor", "--preset", "smoke", "--workers", "1", "--parameter-servers", "1", "--no-evaluator")
        one_line(ddrl(*words, stdout=full, cwd=tmp_path), "standard output: No space left on device")


@pytest.mark.timeout(240)
def test_training_goes_on_to_its_end_without_its_output(tmp_path):
    writing = closed_pipe()
    done = ddrl(*SMOKE, "--max-updates", "3", "--run-dir", str(tmp_path / "run"), stdout=writing, timeout=200)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, "ddrl: standard output: Broken pipe; going on without it\n")
    assert rundir.read_json(tmp_path / "run" / rundir.RESULT)["status"] == "finished"
    assert (tmp_path / "run" / "checkpoints" / "update-000000003.npz").exists()


@pytest.mark.parametrize("needed, left", [(True, None), (False, "end")])
def test_what_needs_no_output_goes_on_without(needed, left, tmp_path):
    program = (
        "import subprocess\nfrom ddrl import programs\n"
        f"def main():\n    needed = {needed}\n    needed or programs.outlast_output()\n"
        "    print('lost')\n    print('dropped')\n"
        "    subprocess.run(['echo', 'of a child'], check=True)\n    open('left', 'w').write('end')\n"
        "raise SystemExit(programs.run(main))"
    )
    with open("/dev/full", "w") as full:
        done = ended(sys.executable, "-c", program, stdout=full, cwd=tmp_path)
    assert done.returncode == (2 if needed else 0)
    assert done.stderr.startswith("ddrl: standard output: No space left on device; ") and done.stderr.count("\n") == 1
    assert [file.read_text() for file in tmp_path.iterdir()] == ([left] if left else [])


def test_descriptors_that_are_closed_are_not_taken_by_files(tmp_path):
    program = (
        "from ddrl import programs\n"
        "def main():\n    file = open('file', 'w')\n    print('not for the file')\n    assert file.fileno() > 2\n"
        "raise SystemExit(programs.run(main))"
    )
    done = subprocess.run(
        ["sh", "-c", 'exec "$0" -c "$1" <&- >&- 2>&-', sys.executable, program], cwd=tmp_path, check=False, timeout=60
    )
    assert done.returncode == 0
    assert (tmp_path / "file").read_text() == ""


def test_nothing_is_made_that_everybody_may_write(tmp_path):
    """Such as a config.json, in which anybody could name a plugin that a resume would import."""
    program = (
        "import os, pathlib\nfrom ddrl import programs\nos.umask(0)\n"
        "def main():\n    os.mkdir('made')\n    pathlib.Path('made', 'file').touch()\n"
        "raise SystemExit(programs.run(main))"
    )
    assert ended(sys.executable, "-c", program, cwd=tmp_path).returncode == 0
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("made", "made/file")]
    assert modes == [0o775, 0o664]


def test_a_run_in_a_directory_that_cannot_be_written_is_refused(tmp_path):
    tmp_path.chmod(0o555)
    done = ddrl(*SMOKE, "--run-dir", "run", cwd=tmp_path, preexec_fn=obeys_permissions)
    tmp_path.chmod(0o755)
    one_line(done, "cannot make run directory run: Permission denied; choose another --run-dir")


@contextlib.contextmanager
def full_disk(path: Path):
    """A file system on `path` that has room for directories and no byte for files."""
    path.mkdir()
    if os.geteuid():
        pytest.skip("only root can mount a small file system")
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "none", str(path)], check=False).returncode:
        pytest.skip("no tmpfs can be mounted here")
    try:
        (path / "filling").write_bytes(b"x" * 16384)
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


def test_a_run_on_a_full_disk_is_refused_and_its_directory_is_taken_later(tmp_path):
    with full_disk(tmp_path / "disk") as disk:
        words = (*SMOKE, "--run-dir", str(disk / "run"))
        one_line(ddrl(*words), f"{disk}/run/config.json: No space left on device; free space there")
        assert sorted(file.name for file in (disk / "run").iterdir()) == ["lock"]
        (disk / "filling").unlink()
        assert parse([*words[1:], "--resume-or-start"], Machine(2, 1 << 40)).resume == ""
        config = TrainConfig(algorithm=BA3CConfig(), run=RunConfig(run_dir=str(disk / "run")))
        assert rundir.load_config(rundir.create_run_dir(config)[0]) == config


def test_a_limit_of_file_sizes_is_one_line(tmp_path):
    done = ddrl(*SMOKE, "--run-dir", "run", cwd=tmp_path, preexec_fn=small_files)
    one_line(done, "run/config.json: File too large; raise the limit of file sizes (ulimit -f)")


@pytest.mark.parametrize("name", [rundir.LOG, rundir.STOP, run_lock.LOCK])
def test_a_directory_in_the_place_of_a_file_is_named(name, tmp_path):
    (tmp_path / "run" / name).mkdir(parents=True)
    done = ddrl(*SMOKE, "--run-dir", "run", cwd=tmp_path)
    one_line(done, f"run/{name}", "s a directory")


def test_a_log_that_cannot_be_written_is_named_before_a_resume_changes_anything(tmp_path):
    path, _ = rundir.create_run_dir(TrainConfig(algorithm=BA3CConfig(), run=RunConfig(run_dir=str(tmp_path / "run"))))
    (path / "log.txt").touch(mode=0o444)
    (path / rundir.RESULT).write_text("{}")
    with pytest.raises(IsADirectoryError):
        (path / rundir.STOP).mkdir()
        clear(path)
    assert (path / rundir.RESULT).exists()
    (path / rundir.STOP).rmdir()
    done = ddrl(*SMOKE, "--resume-or-start", "--run-dir", str(path), preexec_fn=obeys_permissions)
    one_line(done, f"{path}/log.txt: Permission denied; fix its permissions")


@pytest.mark.parametrize("words", [("plan", *ALONE), ("train", "--help"), ("study", "hts", "--list")], ids=" ".join)
def test_programs_need_neither_home_nor_temporary_folder_nor_letters_beyond_ascii(words, tmp_path):
    place = tmp_path / "d\u00e9\u2014\u00fc"
    place.mkdir()
    plain = {"LC_ALL": "C", "PYTHONIOENCODING": "ascii", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    homeless = {name: value for name, value in os.environ.items() if name != "HOME"}
    done = ddrl(*words, cwd=place, env=homeless | plain | {"TMPDIR": "/nowhere"})
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_a_home_among_temporary_files_is_nobody_elses(tmp_path, monkeypatch):
    monkeypatch.setattr(programs.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(programs.tempfile, "tempdir", str(tmp_path))
    own = Path(programs._own_directory("home"))
    assert own == tmp_path / "home" and own.stat().st_mode & 0o777 == 0o700
    assert programs._own_directory("home") == str(own), "the same for the next program"
    own.chmod(0o777)
    (tmp_path / "link").symlink_to(tmp_path)
    for name in ("home", "link"):
        other = Path(programs._own_directory(name))
        assert other.name.startswith(f"{name}-") and other.stat().st_mode & 0o777 == 0o700
    assert programs._own_directory("no/such") == programs.NO_HOME


@pytest.mark.skipif(find_mpirun() is None, reason="no mpirun on this machine")
def test_ranks_start_without_home(tmp_path):
    program = (
        "import sys\nfrom ddrl import programs\nfrom ddrl.bench.ranks import run_ranks\n"
        "sys.exit(programs.run(lambda: print(run_ranks(1, 'says_result', {}, 60.0))))"
    )
    (tmp_path / "says_result.py").write_text("from mpi4py import MPI\nprint('RESULT 7')")
    environment = {name: value for name, value in os.environ.items() if name != "HOME"}
    environment["PYTHONPATH"] = os.pathsep.join([str(tmp_path), *sys.path])
    done = ended(sys.executable, "-c", program, env=environment)
    assert done.stdout == "7\n", done.stderr


def test_a_path_that_its_encoding_has_not_is_printed(tmp_path):
    done = ended(*map(os.fsencode, DDRL), b"evaluate", b"\xff\xfe", text=False)
    assert done.returncode == 2
    assert done.stderr.count(b"\n") == 1 and b"does not exist, so it is not a run" in done.stderr


@pytest.mark.parametrize(
    "raised, said",
    [
        ("OSError(5, 'EIO', 'a', None, 'b')", "ddrl: a and b: EIO; look at the disk, or name another place"),
        ("OSError(28, 'ENOSPC')", "ddrl: <string>, line 1: ENOSPC; free space there, or name another place"),
        ("OSError(5, 'EIO', programs.Path('a'))", "ddrl: a: EIO; look at the disk, or name another place"),
        ("MemoryError('8 GB')", "ddrl: not enough memory (8 GB): close other programs, or ask for less"),
        ("RecursionError('deep')", "ddrl: <string>, line 1: RecursionError (deep)"),
        ("BrokenPipeError(32, 'Broken pipe')", "ddrl: <string>, line 1: Broken pipe"),
    ],
)
def test_what_the_system_raises_is_one_line(raised, said):
    main = f"lambda: (_ for _ in ()).throw({raised})"
    done = ended(sys.executable, "-c", f"from ddrl import programs; raise SystemExit(programs.run({main}))")
    assert (done.returncode, done.stdout, done.stderr) == (2, "", said + "\n")


def test_a_refusal_gives_a_terminal_no_commands(capsys):
    assert programs.say("--game a\x1b[2Jb\nc\x9bK: unknown") == programs.REFUSED
    assert capsys.readouterr().err == "ddrl: --game a?[2Jb c?K: unknown\n"


def test_a_mistake_of_the_program_itself_keeps_its_traceback():
    program = "from ddrl import programs; programs.run(lambda: 1 / 0)"
    done = ended(sys.executable, "-c", program)
    assert done.returncode == 1 and "Traceback" in done.stderr and "ZeroDivisionError" in done.stderr


SEARCHED = """
from ddrl import programs
class Cycle:
    def __init__(self): self.self = self
    def __del__(self): print("searched")
kept = Cycle()
programs.run(lambda: None)
"""


def test_the_end_of_a_program_does_not_search_for_garbage():
    done = ended(sys.executable, "-c", SEARCHED)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(
    "module, words",
    [("ddrl.roles", []), ("ddrl.launch.finish", []), ("ddrl.apex.acting", ["0", "0", "0", "1", "PARENT", "0", "1"])],
)
def test_the_other_programs_say_it_in_one_line_too(module, words):
    words = [str(os.getpid()) if word == "PARENT" else word for word in words]
    one_line(ended(*programs.python_command(module), "/nowhere", *words), "/nowhere does not exist, so it is not a run")


def test_a_measuring_process_says_it_in_one_line(tmp_path):
    first = json.dumps({"config": {}, "cores": [0], "kind": "parts"})
    done = ended(*programs.python_command("ddrl.bench.phases"), input=first + "\n")
    assert done.returncode == 2 and "is not a configuration" in json.loads(done.stdout)["error"]


@pytest.mark.parametrize("version", [(3, 10), *([(3, 11)] if sys.version_info >= (3, 11) else [])])
def test_a_module_of_the_current_directory_is_not_imported(tmp_path, version):
    """A program of ours, which imports json, is started where somebody has put a json.py."""
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    (tmp_path / "here" / "json.py").write_text("print('foreign')")
    (tmp_path / "here" / "runpy.py").write_text("print('foreign')")  # found there by Python 3.10
    (tmp_path / "there" / "ours.py").write_text("import json, sys; print(json.dumps(sys.argv[1:]), __name__)")
    for options in ([sys.executable, "-m", "ours"], programs.python_command("ours", version)):
        done = subprocess.run(
            [*options, "a", "-b"],
            env=dict(os.environ) | {"PYTHONPATH": str(tmp_path / "there")},
            cwd=tmp_path / "here",
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        if options[1] == "-m":
            assert "foreign" in done.stdout
        else:
            assert done.stdout == '["a", "-b"] __main__\n', done
