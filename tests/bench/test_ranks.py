from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from cluster.session import SESSION_DIRECTORY
from ddrl.bench import ranks
from ddrl.launch.local import require_mpirun
from tests.parallel.support import needs_mpirun

LEFT_BEHIND = """#!/bin/sh
mkdir -m 700 "{folder}/ompi.$$" && echo x > "{folder}/ompi.$$/pmix.vm.tool"
exec "{mpirun}" "$@"
"""


@needs_mpirun
def test_files_of_a_killed_mpirun_of_the_same_process_number_are_in_nobodys_way(tmp_path, monkeypatch):
    """Open MPI names its session files after that number, and does not start where there are some."""
    folder = tempfile.mkdtemp(prefix="ddrl-test-")  # the path of sockets is short
    monkeypatch.setenv("TMPDIR", folder)
    monkeypatch.setattr(tempfile, "tempdir", None)  # read TMPDIR anew
    monkeypatch.delenv(SESSION_DIRECTORY)
    real = require_mpirun()
    wrapper = tmp_path / "mpirun"
    wrapper.write_text(LEFT_BEHIND.format(folder=folder, mpirun=real.path))
    wrapper.chmod(0o755)
    monkeypatch.setattr(ranks, "require_mpirun", lambda: real._replace(path=str(wrapper)))
    Path(tmp_path, "says_result.py").write_text("print('RESULT 7')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert ranks.run_ranks(1, "says_result", {}, 60.0) == 7
    assert [path.name.partition(".")[0] for path in Path(folder).iterdir()] == ["ompi"]  # ours are gone
    shutil.rmtree(folder)
