"""A soak's samples of memory, and what is made of them."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from ddrl.bench import soak
from ddrl.errors import UsageError
from ddrl.placement import start


def leg(number: int, minutes: int, megabytes) -> list[dict]:
    """A sample every ten seconds."""
    return [
        {"leg": number, "seconds": float(second), "resident_mb": {"rank 0": megabytes(second)}}
        for second in range(0, 60 * minutes + 1, 10)
    ]


def test_what_grows_after_five_minutes_is_seen():
    found = soak.summary(leg(1, 30, lambda second: 100.0 + second / 60))
    # 105.0 to 105.8 MB in the sixth minute, 128.8 in the last that counts
    assert found["largest_deviation_percent"] == pytest.approx(100 * (128.4 - 105.4) / 105.4, abs=0.5)
    assert found["hours"] == pytest.approx(0.5) and found["legs"] == 1
    assert found["processes"]["rank 0, leg 1"].startswith("105.4 MB, then 105.4 to 128.4")


def test_what_grows_before_does_not_count_nor_does_the_end_of_a_leg():
    def megabytes(second):
        return {True: 50.0 + second / 10}.get(second < 300, 80.0 if second < 1750 else 500.0)

    assert soak.summary(leg(1, 30, megabytes))["largest_deviation_percent"] == 0.0


def test_less_memory_is_a_deviation_too_and_each_leg_begins_anew():
    lines = leg(1, 20, lambda second: 100.0) + leg(2, 20, lambda second: 200.0 if second < 900 else 150.0)
    found = soak.summary(lines)
    assert found["largest_deviation_percent"] == 25.0 and found["legs"] == 2
    assert "0.00%" in found["processes"]["rank 0, leg 1"] and "25.00%" in found["processes"]["rank 0, leg 2"]


def test_a_process_that_is_there_for_moments_is_not_compared():
    lines = leg(1, 60, lambda second: 100.0)
    for line in lines[40:50]:
        line["resident_mb"]["finish of launcher"] = line["seconds"]
    assert list(soak.summary(lines)["processes"]) == ["rank 0, leg 1"]


def test_a_sample_has_every_process_below_the_launcher_by_name(tmp_path):
    begun = tmp_path / "begun"  # before that, a program has hardly any memory
    statement = f"open({str(begun)!r}, 'w'); input()"
    program = (
        f"import subprocess, sys; subprocess.run([sys.executable, '-m', 'timeit', '-n', '1', '-r', '1', {statement!r}])"
    )
    process = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    try:
        while not begun.exists():
            assert process.poll() is None
            time.sleep(0.01)
        child = soak.descendants(process.pid)[1]
        found = soak.sample(process.pid, tmp_path)
        assert set(found) == {"launcher", "timeit of launcher"} and min(found.values()) > 1.0
        note = start.Note("here", child[0], start.IN_JOB)._asdict()
        (tmp_path / start.RANKS).mkdir()
        (tmp_path / start.RANKS / "3").write_text(str(note).replace("'", '"'))
        assert set(soak.sample(process.pid, tmp_path)) == {"launcher", "rank 3"}
    finally:
        process.communicate(b"\n")


def test_a_directory_is_needed_and_must_be_writable(tmp_path):
    with pytest.raises(UsageError, match="--directory"):
        soak.SoakArguments()
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="--directory"):
        soak.main(["ba3c", "--directory", str(tmp_path / "file" / "below")])
