"""An empty directory for each test, without site files and Slurm, and `ddrl` as a function."""

from __future__ import annotations

import pytest

from ddrl import cli
from ddrl.slurm import queue as queues
from ddrl.slurm import site as sites


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
