"""`ddrl train` as one rank of a bare job, without TensorFlow (see tests/parallel/light.py): ranks_bare.py OPTION...

TEST_HANGS names a rank that stops (SIGSTOP) before it has looked at the run directory; the others soon give up.
TEST_SHARE_SECONDS is how long ranks look for the run directory, and TEST_CONTACT_SHARE the share of --start-seconds
that their first messages have.
"""

from __future__ import annotations

import os
import signal
import sys

import light

AGREEMENT_SECONDS = 5.0


def hang(rank: str) -> None:
    """Has a rank hang before all agree on the run."""
    from ddrl.config import RunConfig
    from ddrl.launch import job

    job.AGREEMENT_SECONDS = AGREEMENT_SECONDS - RunConfig().start_seconds  # which MPI has, for its own start
    if os.environ["OMPI_COMM_WORLD_RANK"] == rank:
        job._share = lambda *arguments: os.kill(os.getpid(), signal.SIGSTOP)


if __name__ == "__main__":
    light.install()
    if "TEST_SHARE_SECONDS" in os.environ:
        from ddrl.launch import job

        job.SHARE_SECONDS = float(os.environ["TEST_SHARE_SECONDS"])
    if "TEST_CONTACT_SHARE" in os.environ:
        from ddrl.launch import contact

        contact.SHARE = float(os.environ["TEST_CONTACT_SHARE"])
    if "TEST_HANGS" in os.environ:
        hang(os.environ["TEST_HANGS"])
    from ddrl.cli import main

    sys.exit(main(["train", *sys.argv[1:]]))
