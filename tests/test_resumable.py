"""Which settings of a run may differ from those in its checkpoint, and what is said of the others."""

from __future__ import annotations

import dataclasses
import os

import numpy as np
import pytest

from ddrl import algorithms, plugin_modules, resumable, rundir
from ddrl import checkpoint as checkpoints
from ddrl.algorithms.ba3c import BA3CConfig
from ddrl.checkpoint import Checkpoint
from ddrl.config import RunConfig, TrainConfig
from ddrl.errors import UsageError
from ddrl.options.train_options import parse
from ddrl.resumable import AGENT, check_settings
from ddrl.roles.resume import newest_start
from ddrl.types import Machine

MACHINE = Machine(2, 16 * 10**9)


def begun(path, algorithm: str = "ba3c", **settings) -> tuple[TrainConfig, Checkpoint]:
    """A new run directory with one checkpoint."""
    config = algorithms.preset("smoke", None, MACHINE, algorithm).changed(run={"run_dir": str(path)}, **settings)
    rundir.create_run_dir(config)
    return config, saved(path, config)


def saved(path, config: TrainConfig, version: int = 5) -> Checkpoint:
    parameters = np.zeros(2, np.float32)
    made = Checkpoint(
        version, version, 9, 1.0, parameters, {}, version, (("w", (2,)),), config=rundir.config_to_dict(config)
    )
    checkpoints.save(path, made)
    return made


def resumed(path, *flags: str) -> TrainConfig:
    """The settings of `ddrl train --resume`, written as the launcher does."""
    config = parse(["--resume", str(path), *flags], MACHINE).config
    rundir.update_run_dir(path, config)
    return config


def test_every_setting_in_the_tables_is_one():
    groups = {
        field.name: {each.name for each in dataclasses.fields(getattr(TrainConfig(algorithm=BA3CConfig()), field.name))}
        for field in dataclasses.fields(TrainConfig)
    }
    groups["algorithm"] |= {"n_step"}
    free = {(group, name) for group, names in resumable.FREE.items() for name in names}
    tables = (resumable.FIXED, resumable.FIXED_REPLAY, resumable.FIXED_SHARDS)
    fixed = {(group, name) for table in tables for group, names in table.items() for name in names}
    assert all(name in groups[group] for group, name in free | fixed) and not free & fixed
    assert set(RunConfig.__dataclass_fields__) - set(resumable.FREE["run"]) == {
        "seed",
        "init_from",
        "reset_at_checkpoint",
        "deterministic",
    }


def test_what_the_command_line_changes_is_told(tmp_path):
    path = tmp_path / "run"
    config, made = begun(path)
    assert newest_start(path, config).notes == ()
    now = resumed(path, "--minutes", "3", "--no-evaluator", "--parameter-servers", "2", "--no-video")
    assert check_settings(made, now, path) == "", "they do not change what is trained"
    now = resumed(path, "--discount", "0.9", "--workers", "1")
    told = f"--discount {config.algorithm.discount}, now 0.9; --workers {config.exchange.workers}, now 1"
    assert newest_start(path, now).notes == (("settings_changed", f"since the checkpoint of update 5: {told}"),)
    again = resumed(path)
    assert check_settings(made, again, path) == told, "killed before its first checkpoint, and resumed once more"
    third = resumed(path, "--discount", "0.8")
    assert "now 0.8" in check_settings(made, third, path)
    assert check_settings(saved(path, again, 6), third, path) == "--discount 0.9, now 0.8"


@pytest.mark.parametrize("is_sealed", [True, False])
def test_settings_that_no_resume_changed_are_refused_and_named(tmp_path, capsys, is_sealed):
    path = tmp_path / "run"
    config, made = begun(path)
    other = rundir.config_to_dict(config.changed(algorithm={"discount": 0.9}))
    rundir.write_json(path / rundir.CONFIG, other)
    if not is_sealed:
        text = (path / rundir.CONFIG).read_text()
        (path / rundir.CONFIG).write_text(text[: text.index(',\n  "sha256"')] + "\n}\n")
    config = resumed(path, "--minutes", "3")
    assert ("has no checksum" in capsys.readouterr().err) != is_sealed
    with pytest.raises(UsageError, match=r"update 5 has --discount 0\.\d+, now 0.9 here, and no resume") as caught:
        newest_start(path, config)
    assert "\n" not in str(caught.value)
    mended = resumed(path, "--discount", str(made.config["algorithm"]["discount"]))
    assert newest_start(path, mended).notes == ()


def test_an_edited_or_damaged_config_is_refused(tmp_path):
    path = tmp_path / "run"
    begun(path)
    file = path / rundir.CONFIG
    whole = file.read_bytes()
    file.write_bytes(whole.replace(b'"discount": 0.9', b'"discount": 0.8'))
    with pytest.raises(UsageError, match="config.json is damaged or was edited .*restore it from a copy"):
        parse(["--resume", str(path)], MACHINE)
    for text in (b'{"a": "\xff"}', b"[" * 100_000, b'{"format": 1, "algorithm_name": []}', b"\x00", b"{}"):
        file.write_bytes(text)
        with pytest.raises(UsageError) as caught:
            parse(["--resume", str(path)], MACHINE)
        assert "\n" not in str(caught.value) and len(str(caught.value)) < 500


def test_a_pipe_as_config_is_refused_at_once(tmp_path):
    begun(tmp_path / "run")
    file = tmp_path / "run" / rundir.CONFIG
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(UsageError, match="cannot read .*config.json: it is no regular file"):
        parse(["--resume", str(tmp_path / "run")], MACHINE)


def test_a_run_of_before_goes_on_with_a_warning_and_is_sealed_then(tmp_path, capsys):
    path = tmp_path / "run"
    config, _ = begun(path)
    text = (path / rundir.CONFIG).read_text()
    (path / rundir.CONFIG).write_text(text[: text.index(',\n  "sha256"')] + "\n}\n")
    assert newest_start(path, resumed(path)).notes == ()
    assert capsys.readouterr().err.count("warning") == 1
    assert rundir.read_config(path / rundir.CONFIG) == (config, True)


@pytest.mark.parametrize("groups", [None, AGENT])
@pytest.mark.parametrize(
    ("theirs", "change", "message"),
    [
        ("ba3c", {}, "is a checkpoint of ba3c, not of a2c"),
        ("a2c", {"environment": {"game": "pong"}}, "has --game pong, now ddrl/Catch-v0 here"),
        ("a2c", {"environment": {"game_options": ("size=6",)}}, r"has --game-options size=6, now \(nothing\) here"),
        ("a2c", {"network": {"network": "a3c"}}, r"has --network a3c, now \w+ here"),
        (
            "a2c",
            {"environment": {"protocol": "stooke"}},
            "has --protocol stooke, now .* no resume recorded that change",
        ),
    ],
)
def test_a_checkpoint_of_another_run_is_refused(tmp_path, theirs, change, message, groups):
    _, foreign = begun(tmp_path / "other", theirs, **change)
    config, _ = begun(tmp_path / "run", "a2c")
    with pytest.raises(UsageError, match=message):
        check_settings(foreign, config, tmp_path / "run", groups)


def test_a_resume_keeps_the_options_of_the_game(tmp_path):
    path = tmp_path / "run"
    config, _ = begun(path, "ppo", environment={"game": "ddrl/DeepSea-v0", "game_options": ("size=6",)})
    with pytest.raises(UsageError, match="--game-options size=7: the run to resume has size=6, .*leave the option"):
        parse(["--resume", str(path), "--game-options", "size=7"], MACHINE)
    assert parse(["--resume", str(path), "--game-options", "size=6"], MACHINE).config.environment == config.environment


def test_a_switch_is_named_as_it_is_typed(tmp_path):
    dense = {"network": "mlp", "hidden_layers": (16,)}
    config, made = begun(tmp_path / "run", "a2c", network=dense)
    with pytest.raises(UsageError, match="^--layer-norm: the run to resume has --no-layer-norm, and its checkpoint"):
        parse(["--resume", str(tmp_path / "run"), "--layer-norm"], MACHINE)
    with pytest.raises(UsageError, match="has --no-layer-norm, now --layer-norm here"):
        check_settings(made, config.changed(network={"layer_norm": True}), tmp_path / "run")


def test_an_evaluation_needs_no_more_than_the_agent(tmp_path):
    config, made = begun(tmp_path / "run")
    check_settings(made, config.changed(optimizer={"learning_rate": 0.5}), tmp_path / "run", AGENT)


def test_a_checkpoint_without_settings_is_refused(tmp_path):
    config, made = begun(tmp_path / "run")
    for content in ({}, {"format": 1, "algorithm_name": "ba3c", "later": {}}):
        with pytest.raises(UsageError, match="the checkpoint of update 5"):
            check_settings(dataclasses.replace(made, config=content), config, tmp_path / "run")


def test_a_checkpoint_and_earlier_settings_import_no_plugin_that_config_json_does_not_name(tmp_path):
    """Both may come from somebody else, and nobody can read in them what would run."""
    path, theirs, moved = tmp_path / "run", tmp_path / "theirs.py", tmp_path / "moved" / "theirs.py"
    text = "from ddrl.plugins import register_network\nregister_network('theirs', print)\n"
    config, _ = begun(path)
    named = config.changed(run={"plugins": (str(theirs),)})
    theirs.write_text(f"open({str(tmp_path / 'imported')!r}, 'w').close()\n{text}")
    saved(path, named, 6)
    rundir.write_json(path / "config-0.json", rundir.config_to_dict(named))
    refusal = r"update 6 names plugin .*theirs\.py, which config\.json does not: check it, then give --plugin "
    with pytest.raises(UsageError, match=refusal):
        newest_start(path, config)
    assert list(rundir.earlier_configs(path)) == [] and not (tmp_path / "imported").exists()
    moved.parent.mkdir()
    moved.write_text(text)
    plugin_modules.load([str(moved)])
    assert newest_start(path, config).notes == ()
    assert list(rundir.earlier_configs(path)) == [("config-0.json", named)]


def test_checkpoints_that_were_left_out_are_told(tmp_path):
    path = tmp_path / "run"
    config, _ = begun(path)
    saved(path, config, 6)
    newest = checkpoints.checkpoint_path(path, 6)
    newest.write_bytes(newest.read_bytes()[:-1])
    start = newest_start(path, config)
    ((name, text),) = start.notes
    assert (start.checkpoint.version, name) == (5, "checkpoint_left_out")
    assert str(newest) in text and "damaged" in text


def test_a_checkpoint_that_was_renamed_is_left_out(tmp_path):
    path = tmp_path / "run"
    config, _ = begun(path)
    checkpoints.checkpoint_path(path, 5).rename(checkpoints.checkpoint_path(path, 50))
    saved(path, config, 4)
    ((_, text),) = newest_start(path, config).notes
    assert "is that of update 5: rename it to update-000000005.npz" in text
