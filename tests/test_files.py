"""Files that other processes or other users may have put where this user reads and writes."""

from __future__ import annotations

import errno
import itertools
import os
import signal

import pytest

from ddrl import rundir
from ddrl.errors import UsageError
from ddrl.files import cut_half_line, leave_mark, name_new, read_regular, write_whole
from ddrl.job.role import stop_on_signals


def test_a_mark_is_made_once_and_keeps_what_is_in_it(tmp_path):
    leave_mark(tmp_path / "stop")
    assert (tmp_path / "stop").read_bytes() == b""
    (tmp_path / "stop").write_text("why")
    leave_mark(tmp_path / "stop")
    assert (tmp_path / "stop").read_text() == "why"


def test_a_mark_makes_no_file_where_a_link_leads(tmp_path, monkeypatch):
    """In a run of several users, somebody may have put there a link to where this user has no file yet."""
    handlers = {}
    monkeypatch.setattr(signal, "signal", handlers.__setitem__)
    for name in (rundir.STOP, rundir.TRAINED):
        (tmp_path / name).symlink_to(tmp_path / "elsewhere")
    stop_on_signals(tmp_path)
    handlers[signal.SIGTERM](signal.SIGTERM, None)
    rundir.note_trained(tmp_path)
    assert rundir.stop_requested(tmp_path) and (tmp_path / rundir.TRAINED).is_file()
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("number", [0, errno.EPERM, errno.EXDEV])
def test_of_two_that_write_a_new_file_one_does(tmp_path, monkeypatch, number):
    """Without hard links, as on a FAT file system, too."""
    if number:
        monkeypatch.setattr("os.link", lambda *names: (_ for _ in ()).throw(OSError(number, "no links")))
    write_whole(tmp_path / "plan", b"first", new=True)
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for name in ("plan", "link"):
        with pytest.raises(FileExistsError) as error:
            write_whole(tmp_path / name, b"second", new=True)
        assert (error.value.filename, error.value.filename2) == (str(tmp_path / name), None)
    assert (tmp_path / "plan").read_bytes() == b"first"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "plan"]
    write_whole(tmp_path / "plan", b"third")
    assert (tmp_path / "plan").read_bytes() == b"third"


def test_without_hard_links_too_one_of_two_that_write_at_once_does(tmp_path, monkeypatch):
    """The second comes when the first is about to give its file the name."""
    monkeypatch.setattr("os.link", lambda *names: (_ for _ in ()).throw(OSError(errno.EPERM, "no links")))
    replace, late = os.replace, []

    def meanwhile(*names):
        monkeypatch.setattr("os.replace", replace)
        with pytest.raises(FileExistsError) as error:
            write_whole(tmp_path / "plan", b"second", new=True)
        late.append(error.value.filename)
        replace(*names)

    monkeypatch.setattr("os.replace", meanwhile)
    write_whole(tmp_path / "plan", b"first", new=True)
    assert late == [str(tmp_path / "plan")] and (tmp_path / "plan").read_bytes() == b"first"
    assert [path.name for path in tmp_path.iterdir()] == ["plan"]


def test_a_name_is_free_again_if_its_file_could_not_get_it(tmp_path, monkeypatch):
    for name in ("os.link", "os.replace"):
        monkeypatch.setattr(name, lambda *names: (_ for _ in ()).throw(OSError(errno.EPERM, "no")))
    with pytest.raises(OSError, match="no"):
        write_whole(tmp_path / "plan", b"first", new=True)
    assert list(tmp_path.iterdir()) == []


def test_nothing_gets_a_name_that_is_taken(tmp_path):
    for name in ("new", "theirs"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    (tmp_path / "file").write_text("theirs")
    (tmp_path / "mine").touch()
    for mine, name in itertools.product(("new", "mine"), ("theirs", "file")):
        with pytest.raises(FileExistsError) as error:
            name_new(tmp_path / mine, tmp_path / name)
        assert (error.value.filename, error.value.filename2) == (str(tmp_path / name), None)
    assert (tmp_path / "theirs" / "file").read_text() == (tmp_path / "file").read_text() == "theirs"
    name_new(tmp_path / "new", tmp_path / "free")
    assert (tmp_path / "free" / "file").read_text() == "new" and not (tmp_path / "new").exists()


def test_another_error_of_a_link_does_not_replace_a_new_file(tmp_path, monkeypatch):
    """Such as that of a network file system whose server does not answer: it is not that there are no links."""
    monkeypatch.setattr("os.link", lambda *names: (_ for _ in ()).throw(OSError(errno.EIO, "no answer")))
    with pytest.raises(OSError, match="no answer"):
        write_whole(tmp_path / "plan", b"first", new=True)
    assert list(tmp_path.iterdir()) == []


def test_half_a_line_is_not_cut_off_a_file_to_which_a_link_leads(tmp_path):
    own, log = tmp_path / "own", tmp_path / "log"
    for path in (own, log):
        path.write_text("one\nhalf")
    (tmp_path / "link").symlink_to(own)
    with pytest.raises(OSError, match="link"):
        cut_half_line(tmp_path / "link")
    cut_half_line(log)
    assert (own.read_text(), log.read_text()) == ("one\nhalf", "one\n")


def test_files_of_others_are_read_up_to_a_size(tmp_path):
    """A file with a hole may have more bytes than there is memory, and take none on the disk."""
    path = tmp_path / rundir.CONFIG
    with path.open("wb") as file:
        file.truncate(rundir.MOST_BYTES + 1)
    assert rundir.read_json(path) is None
    with pytest.raises(UsageError, match=r"config\.json: it has more than 67,108,864 bytes; fix that"):
        rundir.load_config(tmp_path)
    path.write_bytes(b"123")
    assert read_regular(path, 3) == read_regular(path) == b"123"
    with pytest.raises(OSError, match="it has more than 2 bytes"):
        read_regular(path, 2)
