"""What ranks say when MPI has started and their messages do not arrive, as in `tests/parallel/test_machines.py`."""

from __future__ import annotations

import socket
import types

import pytest

from ddrl.launch import contact


@pytest.fixture
def left(monkeypatch):
    """Statuses with which this process would have ended; it waits for no other machine."""
    statuses: list[int] = []
    monkeypatch.setattr(contact.os, "_exit", statuses.append)
    monkeypatch.setattr(contact.time, "sleep", lambda seconds: None)
    return statuses


@pytest.mark.parametrize(
    "rank, environ, lines",
    [
        (0, {"OMPI_COMM_WORLD_LOCAL_RANK": "0"}, 2),
        (2, {"SLURM_LOCALID": "0"}, 1),
        (2, {"MPI_LOCALRANKID": "0"}, 1),
        (3, {"MPI_LOCALRANKID": "1"}, 0),
        (3, {"MPI_LOCALRANKID": "1", "SLURM_LOCALID": "0"}, 0),
        (3, {"SLURM_LOCALID": "1"}, 0),
        (3, {}, 1),
    ],
)
def test_one_rank_of_each_machine_speaks_and_all_end(left, capsys, rank, environ, lines):
    contact._give_up(rank, 4, 60.0, environ)
    said = capsys.readouterr().err.splitlines()
    where = f"ddrl: rank {rank}, the first on {socket.gethostname()} (network interfaces: "
    assert left == [1] and len(said) == lines and all(line.startswith(where) for line in said[:1])


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("fails", ["stderr", "interfaces"])
def test_a_rank_that_cannot_say_it_ends_all_the_same(left, monkeypatch, capsys, rank, fails):
    def fail(*arguments):
        raise OSError("no")

    if fails == "stderr":
        monkeypatch.setattr(contact.sys, "stderr", types.SimpleNamespace(write=fail, flush=fail))
    else:
        monkeypatch.setattr(contact.socket, "if_nameindex", fail)
    contact._give_up(rank, 2, 60.0, {})
    assert left == [1]
    if fails == "interfaces":
        said = capsys.readouterr().err.splitlines()
        assert said[0] == f"ddrl: rank {rank}, the first on {socket.gethostname()}, gets no messages"
        assert len(said) == 2 - rank


def test_seconds_are_said_in_short(left, capsys):
    contact._give_up(0, 2, 100 / 3, {})
    assert "did not arrive within 33.3 s: " in capsys.readouterr().err


@pytest.mark.parametrize("environ, setting", [({}, "is not set"), ({contact.INTERFACE: "docker0"}, "is docker0")])
def test_rank_0_says_what_to_do(left, capsys, environ, setting):
    contact._give_up(0, 4, 60.0, environ)
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith("ddrl: MPI has started 4 ranks, but their messages did not arrive within 60 s: ")
    assert f"(OMPI_MCA_btl_tcp_if_include {setting}; it is INTERFACE in a site file)" in said


@pytest.mark.parametrize("together, seconds", [(True, 60.0), (False, 180.0)])
def test_where_a_rank_may_still_import_it_has_the_whole_time_of_a_start(monkeypatch, together, seconds):
    """An MPI may let the first rank go on before the last one has come to it."""
    set_to = []

    class Timer:
        """Notes its seconds."""

        def __init__(self, seconds, *_):
            set_to.append(seconds)

        def start(self):
            set_to.append("started")

        def cancel(self):
            set_to.append("canceled")

    monkeypatch.setattr(contact, "_began_together", lambda: together)
    monkeypatch.setattr(contact.threading, "Timer", Timer)
    with pytest.raises(RuntimeError), contact.bounded_contact(0, 2, 180.0, {}):
        assert set_to == [seconds, "started"]
        raise RuntimeError  # as MPI does for a rank that has died
    assert set_to == [seconds, "started", "canceled"]
