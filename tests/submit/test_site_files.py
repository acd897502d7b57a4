"""Site files: where they are looked for, and what Bash makes of them."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from ddrl.errors import UsageError
from ddrl.slurm import site as sites
from tests.submit.support import HOSTILE


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
    assert site.variables == {} and site.runs == Path.home() / "runs"
    venv = next(line for line in path.read_text().splitlines() if line.startswith("VENV="))
    assert Path(shlex.split(venv, comments=True)[0].removeprefix("VENV="), "bin", "ddrl").exists()
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
