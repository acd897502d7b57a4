"""The benchmark of the replay, small."""

from __future__ import annotations

import json
import sys

import pytest

from ddrl.bench import replay, replay_shard
from ddrl.errors import UsageError

SMALL = ["--replay-capacity", "6000", "--batch-size", "32", "--seconds", "0.2", "--tree-items", "10", "1000"]


def test_it_reports_rates_memory_and_the_tree_by_size(capsys):
    assert replay.main([*SMALL, "--json", "-"]) == 0
    values = json.loads(capsys.readouterr().out)
    for name in ("samples_per_s", "inserts_per_s", "samples_per_s_alone", "inserts_per_s_alone"):
        assert values[name] > 0
    assert values["cores"] == 1 and values["bytes_per_transition"] > 0
    assert set(values["find_us"]) == set(values["set_us"]) == {"10", "1000"}
    assert values["machine"]["cores"] >= 1


def test_the_unroll_can_be_added_again_and_again():
    unroll = replay.endless_unroll(2)
    kept = replay.Replay(200, 2, replay.OBSERVATION, "uint8", stack=replay.STACK)
    for _ in range(5):
        kept.add(unroll)
    assert kept._history.head == replay.STACK - 1 + 5 * replay.STEPS, "no reset in between"


def test_a_replay_larger_than_memory_is_refused(monkeypatch):
    monkeypatch.setattr(replay, "available_memory", lambda: 1_000_000)
    with pytest.raises(UsageError, match="needs 7,[0-9,]* bytes .* 1,000,000 .*--replay-capacity"):
        replay.measure(replay.ReplayArguments(replay_capacity=1000))


def test_a_shard_larger_than_memory_is_refused_before_a_game_is_played(monkeypatch):
    monkeypatch.setattr(replay_shard, "available_memory", lambda: 1_000_000)
    monkeypatch.setattr(replay_shard, "recorded_frames", lambda: pytest.fail("it was played"))
    with pytest.raises(UsageError, match="needs [0-9,]* bytes .* 1,000,000 .*--replay-capacity"):
        replay.measure(replay.ReplayArguments(kind="shard-images", replay_capacity=1000))


def test_bad_options_are_refused():
    with pytest.raises(UsageError, match="--tree-items"):
        replay.ReplayArguments(tree_items=(0,))
    with pytest.raises(UsageError, match="--seconds"):
        replay.ReplayArguments(seconds=0.0)
    with pytest.raises(UsageError, match=r"--inserts-per-sample 1e\+300: must be between 0.0 and 1000.0"):
        replay.ReplayArguments(inserts_per_sample=1e300)


@pytest.mark.parametrize("kind", ["shard-images", "shard-features"])
def test_a_shard_of_ape_x_is_measured(kind, capsys):
    assert replay.main(["--kind", kind, "--replay-capacity", "2000", "--seconds", "0.1", "--json", "-"]) == 0
    values = json.loads(capsys.readouterr().out)
    names = ("inserts_per_s", "samples_per_s", "inserts_per_s_alone", "samples_per_s_alone")
    assert all(values[name] > 0 for name in names) and values["cores"] == 1


def test_a_peer_that_is_not_there_is_named_with_what_installs_it():
    with pytest.raises(UsageError, match=r"reverb.*pip install 'dm-reverb"):
        replay.main(["--kind", "shard-features", "--replay-capacity", "100", "--peer-python", sys.executable])
    with pytest.raises(UsageError, match="--peer-python .*--kind shard-images"):
        replay.ReplayArguments(peer_python=sys.executable)
