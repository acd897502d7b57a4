"""Every command of README and docs/, as written: read by its own parser, and run with the mark `minutes`."""

from __future__ import annotations

import glob
import importlib
import re
import shlex
import shutil
import subprocess
import sys

import pytest
import tyro

from ddrl import cli
from ddrl.bench.benchmark import TakesTrainOptions
from ddrl.commands import bench, study, tune
from ddrl.options import train_options
from ddrl.types import Machine
from tests.documents import pages
from tests.documents.pages import ROOT, Command

pytestmark = pytest.mark.timeout(300)  # the first test waits for a run
MACHINE = Machine(8, 64 * 10**9)
PYTHON = sys.executable
# Words in capitals stand for what is the reader's.
PLACES = {
    "RUN": "run", "OTHER": "other", "PEER": "peer", "DIR": "directory", "DATA": "data", "FILE": "file.json", "CORE": "0"
}  # fmt: skip
PLACE = re.compile(rf"\b({'|'.join(PLACES)})\b")
OUTSIDE = ("make", "pip", "apt-get", "cp", ".", "sbatch", "ssh", "python")  # what is no command of ddrl
LAUNCHERS = ("salloc", "srun", "mpirun", "taskset", "env")
COMMANDS = pages.commands()
OWN = [command for command in COMMANDS if command.words[0].split("/")[-1] not in OUTSIDE]


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """A directory with what the commands name: a run, settings files, a plugin; they are those of the pages."""
    place = tmp_path_factory.mktemp("commands")
    small = "train ba3c --preset smoke --workers 1 --parameter-servers 0 --minutes 0 --max-updates 3 --no-video"
    done = subprocess.run(
        [PYTHON, "-m", "ddrl.cli", *small.split(), "--run-dir", "run"],
        cwd=place,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for copy in ("other", "runs/first", "search/trials/0"):
        shutil.copytree(place / "run", place / copy)
    settings = pages.blocks(ROOT / "docs/configuration.md", "yaml")[0]
    for name in ("pong.yaml", "search/best.yaml"):
        (place / name).write_text(settings)
    plugin = next(code for code in pages.blocks(ROOT / "docs/extending.md", "python") if code.startswith("# mine.py"))
    (place / "mine.py").write_text(plugin)
    (place / "examples").symlink_to(ROOT / "examples")
    return place


@pytest.fixture
def in_place(here, monkeypatch):
    monkeypatch.chdir(here)
    monkeypatch.syspath_prepend(str(here))
    return here


@pytest.mark.parametrize("command", OWN, ids=str)
def test_commands_are_understood(command, in_place, monkeypatch, capsys, tmp_path):
    for words in of_ddrl(command):
        read(words, monkeypatch, tmp_path)


def test_other_commands_name_what_is_there():
    makefile = (ROOT / "Makefile").read_text()
    for command in COMMANDS:
        first, *rest = command.words
        if first == "make":
            assert re.search(rf"^{rest[0]}:", makefile, re.MULTILINE), command
            for setting in rest[1:]:
                train_options.parse(
                    ["ba3c", "--preset", "laptop", *shlex.split(setting.removeprefix("ARGS="))], MACHINE
                )
        elif first in ("cp", "sbatch"):
            assert (ROOT / next(word for word in rest if not word.startswith("--"))).exists(), command
        elif first == "python" and rest[:1] == ["-m"] and rest[1] != "venv":
            assert importlib.util.find_spec(rest[1]), command


@pytest.mark.skipif(shutil.which("make") is None, reason="no make here")
def test_what_make_installs_may_not_be_written_by_everybody(tmp_path):
    """Whatever the umask is; the programs there are run by whoever trains."""
    python = tmp_path / "python"
    python.write_text(
        '#!/bin/sh\n[ "$2" = venv ] && mkdir -p "$3/bin" && cp "$0" "$3/bin/python"\n'
        '[ "$2" = pip ] && echo 1 >"${0%/*}/ddrl"\nexit 0\n'
    )
    python.chmod(0o755)
    for name in ("Makefile", "setup.cfg", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    command = f"umask 0 && make install PYTHON={python} && mv .venv/bin/ddrl .venv/first && make .venv/.docs-installed"
    subprocess.run(["sh", "-c", command], cwd=tmp_path, check=True, capture_output=True)
    made = [tmp_path / ".venv" / name for name in ("", "bin", "bin/python", "first", "bin/ddrl")]
    assert [path.stat().st_mode & 0o002 for path in made] == [0] * 5


def of_ddrl(command: Command) -> list[list[str]]:
    """The arguments of `ddrl` in a command, behind whatever launches it; `srun` may launch several."""
    words = [PLACE.sub(lambda place: PLACES[place[0]], word) for word in command.words]
    assert words[0] == "ddrl" or words[0] in LAUNCHERS, command
    starts = [number for number, word in enumerate(words) if word == "ddrl"]
    ends = [number for number, word in enumerate(words) if word == ":"]
    return [words[start + 1 : min([end for end in ends if end > start], default=len(words))] for start in starts]


class Understood(Exception):
    """A command has read its options and would begin to work."""


def read(words: list[str], monkeypatch: pytest.MonkeyPatch, directory) -> None:
    """Reads a command as the program does, up to where it would begin to work."""
    name, *rest = words
    if "--help" in words or "--help-all" in words:
        with pytest.raises(SystemExit, match=r"^0$"):
            raise SystemExit(cli.dispatch(words))
    elif name == "train":
        train_options.parse([word for word in rest if word != "--print-config"], MACHINE)
    elif name == "bench":
        module, _, function = bench.BENCHMARKS[rest[0]].function.partition(":")
        arguments = getattr(importlib.import_module(f"ddrl.bench.{module}"), function).parse(rest[1:])
        if isinstance(arguments, TakesTrainOptions):
            train_options.parse(arguments.train_options, MACHINE)
    elif name == "study":
        known = study.study_of(rest[0])
        _, settings, _ = study.parse(known, [*rest[1:], "--dir", str(directory / "study")])
        assert tuple(known.points(settings, MACHINE))
    elif name == "tune":
        monkeypatch.setattr(tune, "act", lambda *_: 0)
        assert cli.dispatch([*words, "--dir", str(directory / "tune")]) == 0
    elif name == "submit":
        monkeypatch.setenv("HOME", str(directory))
        if rest[0] in ("study", "tune"):
            read(rest, monkeypatch, directory)
        else:
            assert cli.dispatch([*words, *["--dry-run"] * (rest[0] == "train")]) == 0
    elif name in ("plan", "plugins"):
        assert cli.dispatch(words) == 0
    else:
        real = tyro.cli

        def and_stop(*arguments, **named):
            real(*arguments, **named)
            raise Understood

        monkeypatch.setattr(tyro, "cli", and_stop)
        with pytest.raises(Understood):
            cli.dispatch(words)


# Options that make a command small; of options that are given twice the last one counts.
SMALL = {
    "train": "--minutes 0 --max-updates 2 --eval-games 1 --evaluation-minutes 0.2 --no-video",
    "evaluate": "--games 1",
    "tune": "--trials 1 --minutes 0.1",
    "study": "--list",
    "bench roofline": "--seconds 0.2",
    "bench train": "--seconds 40 --roofline-seconds 0.2",
    "bench profile": "--seconds 2",
    "bench exchange": "--rounds 2 --parameters 10000",
    "bench networks": "--turns 1",
    "bench scaling": "--seconds 1 --workers 1 2",
    "bench stragglers": "--steps 5",
    "bench actors": "--actors 1 2 --seconds 3 --warm-up 1",
    "bench learner": "--seconds 12 --alone 1 --warm-up 1 --unfed 0",
    "bench replay": "--replay-capacity 5000 --seconds 1",
    "bench faults": "--faults 1",
    "bench fuzz": "--flips 5 --inputs 5",
    "bench soak": "--minutes 1",
}
ELSEWHERE = (
    "bench peers", "bench learning", "--peer-python", "--submit", "football/", "srun", "humanoid", "HalfCheetah",
    "cartpole-swingup", "submit", "status", "logs", "ddrl board", "--preset ba3c-paper --nodes", "--help",
)  # fmt: skip
"""What needs another library, an extra or a cluster."""


@pytest.mark.minutes
@pytest.mark.timeout(600)
@pytest.mark.parametrize("command", OWN, ids=str)
def test_commands_run_with_a_small_budget(command, in_place, tmp_path):
    if any(word in str(command) for word in ELSEWHERE):
        pytest.skip("needs another library, an extra, or a cluster")
    (words,) = of_ddrl(command)
    words = [path for word in words for path in glob.glob(word, root_dir=in_place) or [word]]  # as a shell does
    name = " ".join(words[:2]) if words[0] == "bench" else words[0]
    small = SMALL.get(name, "").split()
    if name == "train":
        at = ["--resume"] if "--resume" in words else ["--run-dir", str(tmp_path / "run")]
        small = small if "--print-config" not in words else []
        small += at if at[0] == "--run-dir" and "--print-config" not in words else []
        small = [word if word != "2" or "--resume" not in words else "5" for word in small]
    if name in ("study", "tune"):
        small += ["--dir", str(tmp_path / name)]
    done = subprocess.run(
        [PYTHON, "-m", "ddrl.cli", *words, *small], cwd=in_place, capture_output=True, text=True, timeout=590
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.minutes
@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", ["README.md", "docs/get-started/python.md"])
def test_python_blocks_run(page, in_place, tmp_path):
    code = pages.blocks(ROOT / page, "python")[0]
    code = code.replace("minutes=1", f"minutes=0.1, progress=False, run_dir={str(tmp_path / 'run')!r}")
    code = code.replace("games=50", "games=2")
    done = subprocess.run([PYTHON, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=590)
    assert done.returncode == 0, done.stdout + done.stderr
