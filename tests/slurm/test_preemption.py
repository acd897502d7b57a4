"""A site where Slurm sends its warning to jobs that it preempts, too: the setting that the page names does it."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

from tests.slurm.conftest import ROOT
from tests.slurm.testbed import PATH, Cluster, missing

pytestmark = pytest.mark.timeout(400)
PAGE = ROOT / "docs" / "failures.md"
LISTENS = f"""\
#!/bin/bash
export DDRL_SITE=
source "{ROOT}/ddrl/slurm/job.sh"
echo listens
until [[ $ASKED ]]; do sleep 0.1; done
echo "asked by $ASKED"
"""


def setting_of_the_page() -> str:
    """The setting that a row of the page names for this version of Slurm."""
    program = [shutil.which("slurmctld", path=PATH), "-V"]
    version = subprocess.run(program, capture_output=True, text=True, timeout=100, check=True).stdout
    since, before = re.search(
        r"preemption with `GraceTime` and `(\w+=\w+)` \(before Slurm 23\.02 `(\w+=\w+)`\)", PAGE.read_text()
    ).groups()
    return since if tuple(map(int, re.findall(r"\d+", version)[:2])) >= (23, 2) else before


def said(output: Path, text: str, seconds: float = 100.0) -> bool:
    """Whether a job's output has a text within so many seconds."""
    end = time.monotonic() + seconds
    while not (output.exists() and text in output.read_text()) and time.monotonic() < end:
        time.sleep(0.1)
    return output.exists() and text in output.read_text()


def test_a_script_is_warned_as_the_grace_begins_where_a_site_has_the_setting_of_the_page(tmp_path):
    if why := missing():
        pytest.skip(why)
    with tempfile.TemporaryDirectory(prefix="ddrl-slurm-") as directory:  # short: sockets have short names
        cluster = Cluster(Path(directory) / "state", 1, cpus=2, more=setting_of_the_page())
        script, output = tmp_path / "job", tmp_path / "output"
        script.write_text(LISTENS)
        try:
            cluster.start()
            options = ("--exclusive", "--ntasks=1", "--time=10", "--signal=B:USR1@60", f"--output={output}")
            cluster.run("sbatch", "--partition=low", *options, str(script))
            assert said(output, "listens")
            cluster.run("sbatch", "--partition=high", "--exclusive", "--output=/dev/null", "--wrap=true")
            assert said(output, "asked by USR1"), cluster.describe()
        finally:
            cluster.stop()
