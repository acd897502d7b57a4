"""Whole lines of a file that grows, each once."""

from __future__ import annotations

import json

from ddrl import rundir
from ddrl.json_lines import JsonLines
from ddrl.reporting.metrics import MetricsWriter


def test_json_lines_follow_whole_lines_only(tmp_path):
    path = tmp_path / "metrics.jsonl"
    follower = JsonLines(path)
    assert follower.read() == []
    path.write_text(json.dumps({"a": 1}) + "\n" + '{"a":')
    assert follower.read() == [{"a": 1}]
    with path.open("a") as file:
        file.write(" 2}\nnot json\n[1]\n")
    assert follower.read() == [{"a": 2}]
    assert JsonLines(path, from_end=True).read() == []


def test_a_half_line_that_a_resume_cuts_off_hides_no_record_from_who_follows_it(tmp_path):
    """The first record is `resumed`, by which a panel knows when this part of the run began."""
    (tmp_path / rundir.METRICS).write_text('{"kind": "event"}\n{"kind": "tr')
    follower = JsonLines(tmp_path / rundir.METRICS, from_end=True)
    writer = MetricsWriter(tmp_path)
    writer.event("resumed", "from update 2", 2.0)
    writer.close()
    assert [record["name"] for record in follower.read()] == ["resumed"] and follower.damaged == 0
