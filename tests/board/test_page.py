"""The page as one file: nothing from outside, and no text of a run can become markup."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddrl.board.board import Board
from ddrl.board.page import in_script, page
from ddrl.commands import board as command
from ddrl.errors import UsageError
from tests.board.runs import evaluation, make_run, train_record

HOSTILE = "</script><script>alert(1)</script><!--"


@given(st.text())
def test_no_text_ends_its_script_element(text):
    safe = in_script({"text": text})
    assert not set("<>&") & set(safe) and json.loads(safe) == {"text": text}


def test_the_policy_names_the_style_and_the_script_that_are_there():
    made = page("runs", {})
    for tag in ("script", "style"):
        text = re.findall(rf"<{tag}>(.*?)</{tag}>", made.html, re.DOTALL)
        assert len(text) == 1
        digest = base64.b64encode(hashlib.sha256(text[0].encode()).digest()).decode()
        assert f"'sha256-{digest}'" in made.policy
    assert "connect-src 'none'" in made.policy and "'self'" not in made.policy
    assert not re.search(r'(src|href)="(?!data:)', made.html)


def test_a_file_holds_everything(tmp_path, capsys):
    writer = make_run(tmp_path / "runs" / "hostile", game="ddrl/Catch-v0")
    for line in range(20):
        writer.write(train_record(line))
    writer.write(evaluation(10, 3.0))
    writer.event("odd", HOSTILE, 2.0)
    (tmp_path / "runs" / "hostile" / "log.txt").write_text(HOSTILE)
    (tmp_path / "runs" / "hostile" / "video.gif").write_bytes(b"GIF89a")
    output = tmp_path / "board.html"
    assert command.main([str(tmp_path / "runs"), "--output", str(output)]) == 0
    assert f"page: {output}" in capsys.readouterr().out
    html = output.read_text()
    assert HOSTILE not in html and html.count("</script>") == 2
    data = json.loads(re.search(r'id="data">(.*?)</script>', html)[1])["content"]
    assert data["runs"][0]["name"] == "hostile" and data["series"]["1"]["columns"]["evaluation/mean"] == [3.0]
    assert data["details"][0]["events"][0]["text"] == HOSTILE and data["logs"][0]["lines"] == [HOSTILE]
    assert data["videos"] == {"1/0": "data:image/gif;base64,R0lGODlh"}


@pytest.mark.parametrize(
    "interruption, raised",
    [(OSError(28, "No space left on device"), UsageError), (KeyboardInterrupt(), KeyboardInterrupt)],
    ids=["full disk", "Ctrl-C"],
)
def test_a_file_that_is_not_written_to_its_end_leaves_the_one_before(tmp_path, monkeypatch, interruption, raised):
    make_run(tmp_path / "run")
    output = tmp_path / "board.html"
    output.write_text("before")

    def interrupted(descriptor):
        raise interruption

    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(raised) as error:
        command.main([str(tmp_path / "run"), "--output", str(output)])
    assert raised is KeyboardInterrupt or f"{output}: No space left on device; name a file" in str(error.value)
    assert output.read_text() == "before"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["board.html", "run"]


def test_a_link_and_a_pipe_stay_what_they_are(tmp_path):
    make_run(tmp_path / "run")
    link, pipe, read = tmp_path / "link", tmp_path / "pipe", []
    link.symlink_to(tmp_path / "board.html")
    assert command.main([str(tmp_path / "run"), "--output", str(link)]) == 0
    assert link.is_symlink() and (tmp_path / "board.html").read_text().lower().startswith("<!doctype html>")
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()), daemon=True)
    reader.start()
    assert command.main([str(tmp_path / "run"), "--output", str(pipe)]) == 0
    assert pipe.is_fifo()
    reader.join(timeout=60)
    assert read and read[0].rstrip().endswith("</html>")


def test_a_video_that_goes_away_costs_no_more_than_itself(tmp_path, monkeypatch):
    make_run(tmp_path / "run")
    (tmp_path / "run" / "video.gif").write_bytes(b"GIF89a")

    def gone(path):
        raise FileNotFoundError(2, "No such file or directory")

    monkeypatch.setattr("ddrl.board.board.read_regular", gone)
    found = Board([tmp_path]).everything()
    assert found["videos"] == {} and len(found["details"][0]["videos"]) == 1


def test_many_runs_in_a_file_have_fewer_points(tmp_path, monkeypatch):
    monkeypatch.setattr("ddrl.board.board.NUMBERS_IN_A_FILE", 100)
    writer = make_run(tmp_path / "run")
    for line in range(500):
        writer.write(train_record(line))
    columns = Board([tmp_path]).everything()["series"]["1"]["columns"]
    assert 32 < len(columns["train/loss"]) <= 64 and columns["train/loss"][0] == 1.0
    assert columns["train/update"][-1] == 499, "the newest point stays"


@pytest.mark.parametrize(
    "words, message",
    [
        (["--host", "0.0.0.0"], "--host 0.0.0.0: the board serves only this machine"),
        (["--host", "::"], "ssh -L"),
        (["--port", "70000"], "--port 70000: use 0"),
        (["{nothing}"], "does not exist: name directories of runs"),
        (["{file}"], "is no directory"),
        (["{empty}"], "holds no run"),
        (["{other}"], "holds no run"),
        (["{run}", "--output", "{empty}"], "--output .*: Is a directory"),
    ],
)
def test_bad_input_is_one_line(tmp_path, words, message):
    places = {name: tmp_path / name for name in ("nothing", "file", "empty", "other", "run")}
    places["file"].write_text("x")
    places["empty"].mkdir()
    places["other"].mkdir()
    (places["other"] / "config.json").write_text('{"name": "of another program"}')
    make_run(places["run"])
    with pytest.raises(UsageError, match=message) as refused:
        command.main([word.format(**places) for word in words])
    assert "\n" not in str(refused.value)
