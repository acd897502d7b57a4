"""Checkpoints: round trip to the bit, every flipped bit found, and a name only for what is whole."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import io
import json
import os
import stat
import tracemalloc
import zipfile

import numpy as np
import pytest

from ddrl import checkpoint as ckpt
from ddrl import sealed
from ddrl.errors import UsageError
from ddrl.kept_checkpoints import KeptCheckpoints
from ddrl.npz import encode_arrays

LAYOUT = (("conv/kernel", (2, 3)), ("conv/bias", ()), ("head/kernel", (4,)))
SIZE = 11


def make(version: int = 7, seed: int = 0) -> ckpt.Checkpoint:
    random = np.random.default_rng(seed)
    special = np.array([np.nan, -0.0, np.inf, 1e-45], np.float32)
    parameters = np.concatenate([special, random.normal(size=SIZE - 4).astype(np.float32)])
    return ckpt.Checkpoint(
        version=version,
        step=version + 2,
        agent_steps=123_456_789_012,
        wall_seconds=0.1 + 0.2,
        parameters=parameters,
        slots={"m": parameters[::-1].copy(), "v": parameters * 2},
        optimizer_count=version,
        layout=LAYOUT,
        counters={"totals": {"agent_steps": 5}, "scores": [1.0, 2.5]},
        worker_states={0: {"env/a": random.integers(0, 255, (3, 5), np.uint8), "file": np.array(3)}, 12: {}},
        config={"environment": {"game": "breakout"}, "target_score": None},
    )


def assert_same(one: ckpt.Checkpoint, other: ckpt.Checkpoint) -> None:
    for field in dataclasses.fields(ckpt.Checkpoint):
        left, right = getattr(one, field.name), getattr(other, field.name)
        if field.name == "parameters":
            left, right = {0: {"": left}}, {0: {"": right}}
        elif field.name == "slots":
            left, right = {0: left}, {0: right}
        elif field.name != "worker_states":
            assert left == right, field.name
            continue
        assert {k: list(v) for k, v in left.items()} == {k: list(v) for k, v in right.items()}
        for key, arrays in left.items():
            for name, array in arrays.items():
                found = right[key][name]
                assert (array.dtype, array.shape) == (found.dtype, found.shape)
                assert array.tobytes() == found.tobytes()


def good_versions(run_dir) -> list[int]:
    found = []
    for path in ckpt.list_checkpoints(run_dir):
        with contextlib.suppress(UsageError):
            found.append(ckpt.load(path).version)
    return found


def test_round_trip_is_exact_to_the_bit(tmp_path):
    saved = make()
    path = ckpt.save(tmp_path, saved)
    assert path == tmp_path / "checkpoints" / "update-000000007.npz"
    assert_same(ckpt.load(path), saved)
    assert ckpt.load(path).stamp["packages"]["numpy"] == np.__version__
    assert ckpt.load(path).parameters.flags.writeable


def test_file_is_an_npz_without_pickle_and_leaves_nothing_beside_it(tmp_path):
    path = ckpt.save(tmp_path, make())
    with np.load(path, allow_pickle=False) as archive:
        assert archive["slots/v"].shape == (SIZE,)
    assert os.listdir(path.parent) == [path.name]


def test_numpy_numbers_in_counters_are_saved(tmp_path):
    saved = dataclasses.replace(make(), counters={"steps": np.int64(3), "rate": np.float32(0.5)})
    assert ckpt.load(ckpt.save(tmp_path, saved)).counters == {"steps": 3, "rate": 0.5}


@pytest.mark.parametrize(("mask", "file", "directory"), [(0o022, 0o644, 0o755), (0o077, 0o600, 0o700)])
def test_modes_honor_the_umask(tmp_path, mask, file, directory):
    before = os.umask(mask)
    try:
        path = ckpt.save(tmp_path, make())
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == file
    assert stat.S_IMODE(path.parent.stat().st_mode) == directory


@pytest.mark.slow
def test_every_flipped_bit_is_found(tmp_path):
    """All bytes of the file, one bit each (every bit of the first and last 100 bytes)."""
    path = ckpt.save(tmp_path, make())
    data = path.read_bytes()
    edge = [*range(100), *range(len(data) - 100, len(data))]
    flips = [(at, at * 5 % 8) for at in range(len(data))] + [(at, bit) for at in edge for bit in range(8)]
    for at, bit in flips:
        damaged = bytearray(data)
        damaged[at] ^= 1 << bit
        path.write_bytes(damaged)
        with pytest.raises(UsageError):
            ckpt.load(path)
    path.write_bytes(data)
    ckpt.load(path)


def test_every_truncation_is_found(tmp_path):
    path = ckpt.save(tmp_path, make())
    data = path.read_bytes()
    for length in [*range(0, len(data), 37), len(data) - 1]:
        path.write_bytes(data[:length])
        with pytest.raises(UsageError) as caught:
            ckpt.load(path)
        assert "\n" not in str(caught.value) and path.name in str(caught.value)


def test_appended_bytes_are_found(tmp_path):
    path = ckpt.save(tmp_path, make())
    path.write_bytes(path.read_bytes() + b"x")
    with pytest.raises(UsageError):
        ckpt.load(path)


def _sealed_zip(members: dict[str, bytes], compression: int) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return sealed.archive_bytes(buffer.getvalue())


def test_what_unpacks_to_more_than_it_is_is_refused_before_memory_is_taken(tmp_path):
    """Some kilobytes that are 64 MB of zeros, and a few bytes that say that they are 40 GB."""
    path = tmp_path / "update-000000001.npz"
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": (10**10,)})
    for data in (
        _sealed_zip({"manifest.npy": bytes(1 << 26)}, zipfile.ZIP_DEFLATED),
        _sealed_zip({"parameters.npy": header.getvalue() + bytes(8)}, zipfile.ZIP_STORED),
    ):
        path.write_bytes(data)
        tracemalloc.start()
        with pytest.raises(UsageError, match="malformed"):
            ckpt.load(path)
        assert tracemalloc.get_traced_memory()[1] < 4 * len(data) + (1 << 22)
        tracemalloc.stop()


@pytest.mark.parametrize("kind", ["pipe", "directory", "device"])
def test_what_is_no_file_is_refused_at_once_and_does_not_disturb_a_save(tmp_path, kind):
    ckpt.save(tmp_path, make(version=1))
    path = ckpt.checkpoint_path(tmp_path, 2)
    {"pipe": os.mkfifo, "directory": os.mkdir, "device": lambda path: path.symlink_to("/dev/zero")}[kind](path)
    with pytest.raises(UsageError, match="000002.npz: it is no regular file"):
        ckpt.load(path)
    assert ckpt.load_latest(tmp_path).version == 1
    KeptCheckpoints(tmp_path).save(make(version=3), keep=1)
    assert ckpt.load_latest(tmp_path).version == 3


def test_a_directory_that_cannot_be_read_is_one_line(tmp_path, monkeypatch):
    ckpt.save(tmp_path, make(version=1))
    fail_at(monkeypatch, "listdir", 1, errno.EACCES)
    with pytest.raises(UsageError, match="cannot read .*checkpoints: Permission denied; fix its permissions"):
        ckpt.list_checkpoints(tmp_path)


def test_foreign_files_are_named_so(tmp_path):
    path = tmp_path / "foreign.npz"
    for content in (b"", b"hello\n" * 100, _npz(parameters=np.zeros(3, np.float32))):
        path.write_bytes(content)
        with pytest.raises(UsageError, match="foreign.npz was not written by ddrl"):
            ckpt.load(path)
    with pytest.raises(UsageError, match="cannot read checkpoint"):
        ckpt.load(tmp_path / "none.npz")
    with pytest.raises(UsageError, match="cannot read checkpoint"):
        ckpt.load(tmp_path)


def _npz(**arrays) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


class Trap:
    """Unpickling this would show."""

    sprung = False

    def __reduce__(self):
        return setattr, (Trap, "sprung", True)


def test_pickled_objects_are_refused_and_not_run(tmp_path):
    path = tmp_path / "update-000000001.npz"
    trap = np.empty(1, object)
    trap[0] = Trap()
    for content in (_npz(manifest=trap), sealed.archive_bytes(_npz(manifest=trap))):
        path.write_bytes(content)
        with pytest.raises(UsageError):
            ckpt.load(path)
    assert not Trap.sprung


def test_slots_go_to_the_optimizer_by_their_names_and_others_are_named():
    saved, start = make(), ckpt.with_slots(make(), ["v", "m"])
    assert list(start.slots) == ["v", "m"], "in which order servers get them, without names"
    assert_same(dataclasses.replace(start, slots={name: start.slots[name] for name in ("m", "v")}), saved)
    with pytest.raises(
        UsageError, match="update 7 has the optimizer slots m, v, this run's optimizer has square: resume"
    ):
        ckpt.with_slots(make(), ["square"])


def test_a_checkpoint_under_the_name_of_another_version_is_refused(tmp_path):
    path = ckpt.save(tmp_path, make(version=7))
    path.rename(ckpt.checkpoint_path(tmp_path, 70))
    with pytest.raises(UsageError, match="000070.npz is that of update 7: rename it to update-000000007.npz, or use"):
        ckpt.load(ckpt.checkpoint_path(tmp_path, 70))
    assert ckpt.load(ckpt.checkpoint_path(tmp_path, 70).rename(tmp_path / "kept.npz")).version == 7


def _rewritten(checkpoint: ckpt.Checkpoint, path, change) -> None:
    """A file with a right digest and wrong content."""
    arrays = ckpt._to_arrays(checkpoint)
    change(arrays)
    path.write_bytes(sealed.archive_bytes(encode_arrays(arrays)))


def _with(**changed):
    """A change of the manifest."""

    def change(arrays):
        manifest = json.loads(arrays["manifest"].tobytes()) | changed
        arrays["manifest"] = np.frombuffer(json.dumps(manifest).encode(), np.uint8)

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_with(format_version=9), "format version is 9"),
        (_with(version="7"), "version is '7'"),
        (_with(step=-1), "step is -1"),
        (_with(agent_steps=True), "agent_steps is True"),
        (_with(wall_seconds=float("nan")), "wall_seconds is nan"),
        (_with(optimizer_count=7.5), "optimizer_count is 7.5"),
        (_with(counters=[]), r"counters is \[\]"),
        (_with(config="x"), "config is 'x'"),
        (_with(layout=[["w", ["11"]]]), "a length of '11'"),
        (_with(layout=[["w", [-11]], ["v", [22]]]), "a length of -11"),
        (_with(layout=[["w", [10**30]]]), "layout holds"),
        (_with(layout=7), "malformed"),
        (_with(worker_ids=["x"]), "malformed"),
        (lambda arrays: arrays.update({"manifest": np.frombuffer(b"[" * 99999, np.uint8)}), "malformed"),
        (lambda arrays: arrays.update({"other/0/x": np.zeros(1)}), "malformed"),
        (lambda arrays: arrays.update({"slots/m": np.zeros(SIZE - 1, np.float32)}), "'m' is float32"),
        (lambda arrays: arrays.update({"slots/m": np.zeros(SIZE, np.float64)}), "'m' is float64"),
        (lambda arrays: arrays.update({"parameters": np.zeros((1, SIZE), np.float32)}), "'parameters' is"),
        (lambda arrays: arrays.update({"extra": np.zeros(1)}), "malformed"),
        (lambda arrays: arrays.pop("parameters"), "malformed"),
        (lambda arrays: arrays.update({"manifest": np.frombuffer(b"[]", np.uint8)}), "malformed"),
    ],
)
def test_inconsistent_content_is_refused(tmp_path, change, message):
    path = tmp_path / "update-000000007.npz"
    _rewritten(make(), path, change)
    with pytest.raises(UsageError, match=message) as caught:
        ckpt.load(path)
    assert "\n" not in str(caught.value)


def test_layout_must_fit_the_parameters():
    with pytest.raises(UsageError, match="layout holds 6 numbers, its parameters 11"):
        dataclasses.replace(make(), layout=LAYOUT[:1])


def fail_at(monkeypatch, name: str, call: int, code: int) -> None:
    """Let the `call`-th use of os.NAME raise."""
    real, calls = getattr(os, name), []

    def failing(*args, **options):
        calls.append(1)
        if len(calls) == call:
            raise OSError(code, os.strerror(code))
        return real(*args, **options)

    monkeypatch.setattr(os, name, failing)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_really_full_device_is_reported(tmp_path, monkeypatch):
    real = os.open

    def on_full_device(path, *rest):
        return real("/dev/full", os.O_WRONLY) if str(path).endswith(".tmp") else real(path, *rest)

    monkeypatch.setattr(os, "open", on_full_device)
    with pytest.raises(UsageError, match="No space left"):
        ckpt.save(tmp_path, make())


def test_a_file_has_its_name_only_when_it_is_whole(tmp_path, monkeypatch):
    """Whoever is killed in the middle of a save leaves no file that looks like a checkpoint."""
    synced, fsync = [], os.fsync
    monkeypatch.setattr(os, "fsync", lambda file: (synced.append(ckpt.list_checkpoints(tmp_path)), fsync(file)))
    path = ckpt.save(tmp_path, make())
    assert synced == [[], [path]], "its bytes, and then its name"


def test_a_link_in_the_place_of_a_temporary_file_is_not_followed(tmp_path, monkeypatch):
    monkeypatch.setattr("secrets.token_hex", lambda size: "0")
    path, outside = ckpt.checkpoint_path(tmp_path, 1), tmp_path / "outside"
    outside.write_text("mine")
    path.parent.mkdir()
    (path.parent / f".{path.name}.0.tmp").symlink_to(outside)
    ckpt.save(tmp_path, make(version=1))
    assert outside.read_text() == "mine" and not path.is_symlink()


def test_a_directory_that_cannot_be_synced_is_no_failure(tmp_path, monkeypatch):
    fail_at(monkeypatch, "fsync", 2, errno.EINVAL)
    assert ckpt.load(ckpt.save(tmp_path, make())).version == 7


def test_versions_are_ordered_as_numbers_and_strangers_left_alone(tmp_path):
    for version in (999_999_999, 1_000_000_000):
        ckpt.save(tmp_path, make(version))
    stranger = tmp_path / "checkpoints" / "update-final.npz"
    stranger.write_bytes(b"mine")
    ckpt.save(tmp_path, make(version=2_000_000_000))
    assert ckpt.load_latest(tmp_path).version == 2_000_000_000
    assert good_versions(tmp_path) == [999_999_999, 1_000_000_000, 2_000_000_000]
    assert stranger.exists()


def test_a_damaged_newest_is_named_and_the_next_one_used(tmp_path, capsys):
    ckpt.save(tmp_path, make(version=1))
    path = ckpt.save(tmp_path, make(version=2))
    path.write_bytes(path.read_bytes()[:200])
    assert ckpt.load_latest(tmp_path).version == 1
    error = capsys.readouterr().err
    assert str(path) in error and "damaged" in error and error.count("\n") == 1


def test_the_warning_of_a_damaged_one_gives_a_terminal_no_commands(tmp_path, capsys):
    for version in (1, 2):
        ckpt.save(tmp_path, make(version))

    def check(checkpoint):
        if checkpoint.version == 2:
            raise UsageError("lacks \x1b[2J")

    assert ckpt.load_latest(tmp_path, check).version == 1
    assert "lacks ?[2J; trying the next older one" in capsys.readouterr().err


def test_no_sound_checkpoint_is_an_error(tmp_path):
    with pytest.raises(UsageError, match="there is no checkpoint"):
        ckpt.load_latest(tmp_path)
    ckpt.save(tmp_path, make()).write_bytes(b"")
    with pytest.raises(UsageError, match="the only checkpoint is not sound in"):
        ckpt.load_latest(tmp_path)


def test_the_best_is_neither_pruned_nor_the_newest_and_is_written_whole(tmp_path, monkeypatch):
    saved = make(version=9)
    path = ckpt.save_best(tmp_path, saved)
    assert path == ckpt.best_path(tmp_path) == tmp_path / "checkpoints" / "best.npz"
    with pytest.raises(UsageError, match="there is no checkpoint"):
        ckpt.load_latest(tmp_path)
    for version in (1, 2):
        KeptCheckpoints(tmp_path).save(make(version), keep=1)
    ckpt.save_best(tmp_path, saved)
    assert good_versions(tmp_path) == [2] and ckpt.load_latest(tmp_path).version == 2, "a best one prunes none"
    fail_at(monkeypatch, "fsync", 1, errno.ENOSPC)
    with pytest.raises(UsageError, match="cannot write checkpoint .*best.npz .*: No space left"):
        ckpt.save_best(tmp_path, make(version=10))
    assert_same(ckpt.load(path), saved)
    assert sorted(os.listdir(path.parent)) == ["best.npz", "update-000000002.npz"]


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        ((LAYOUT[0], ("conv/bias", (1,)), LAYOUT[2]), r"tensor 1: .* has 'conv/bias' \[\], .*bias' \[1\]"),
        (LAYOUT[:2], r"tensor 2: the checkpoint has 'head/kernel' \[4\], this run has no such tensor"),
        ((*LAYOUT, ("more", (2,))), r"tensor 3: the checkpoint has no such tensor, this run has 'more' \[2\]"),
    ],
)
def test_another_network_is_refused(layout, message):
    ckpt.check_layout(make(), LAYOUT)
    ckpt.check_layout(make(), [(name, list(shape)) for name, shape in LAYOUT])
    with pytest.raises(UsageError, match=message):
        ckpt.check_layout(make(), layout)


def test_the_version_in_a_name(tmp_path):
    assert ckpt.version_of(ckpt.checkpoint_path(tmp_path, 123)) == 123
    with pytest.raises(ValueError, match="notes.npz"):
        ckpt.version_of(tmp_path / "notes.npz")
