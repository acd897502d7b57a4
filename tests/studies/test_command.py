"""`ddrl study`: settings are kept in the directory, help answers at once, bad input is one line."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import subprocess
import sys

import pytest

from ddrl import cli, plugin_modules, rundir
from ddrl.commands import study as command
from ddrl.errors import UsageError
from ddrl.studies import settings as studies_settings
from ddrl.studies.plan import PLAN, load
from ddrl.studies.points import POINTS
from ddrl.studies.variants import VARIANTS
from tests.studies import support
from tests.studies.support import fake

HEAVY = ("tensorflow", "mpi4py", "ale_py", "gymnasium", "matplotlib", "cv2")


def test_a_study_from_one_command_to_its_report(tmp_path, runner, capsys):
    assert fake("--dir", tmp_path / "s", "--sizes", 1, 3) == 0
    assert runner.ran == ["size1-seed1", "size1-seed2", "size3-seed1", "size3-seed2"]
    assert "|    3 | 15.0; 30.0 |" in capsys.readouterr().out
    assert json.loads((tmp_path / "s" / PLAN).read_text())["settings"]["sizes"] == [1, 3]


def test_a_second_call_takes_the_settings_of_the_first(tmp_path, runner, capsys):
    fake("--dir", tmp_path, "--sizes", 5, "--repeats", 1)
    runner.ran.clear()
    assert fake("--dir", tmp_path) == 0
    assert fake("--dir", tmp_path, "--sizes", 5, "--collect") == 0
    assert runner.ran == []
    with pytest.raises(UsageError, match="--seed 3: the study in .* was begun with 1"):
        fake("--dir", tmp_path, "--seed", 3)
    with pytest.raises(UsageError, match="--sizes 1 2: the study in .* was begun with 5"):
        fake("--dir", tmp_path, "--sizes", 1, 2)
    with pytest.raises(UsageError, match="--quick: the study in .* was begun with --no-quick, and its points"):
        fake("--dir", tmp_path, "--quick")


def test_a_setting_that_the_study_was_begun_without_cannot_be_changed_either(tmp_path, runner):
    """A later version has settings that an earlier one had not."""
    fake("--dir", tmp_path, "--sizes", 5, "--repeats", 1)
    begun = json.loads((tmp_path / PLAN).read_text())
    del begun["settings"]["minutes"]
    rundir.write_json(tmp_path / PLAN, begun)
    with pytest.raises(UsageError, match="--minutes 7: the study in .* was begun with "):
        fake("--dir", tmp_path, "--minutes", 7)
    assert fake("--dir", tmp_path, "--collect") == 0


def test_a_second_study_is_refused_while_one_runs_in_the_directory(tmp_path, runner, capsys, monkeypatch):
    """What reads, and what runs one point, goes on beside it."""
    directory, packed = tmp_path / "s", tmp_path / "packed"
    wanted = {"": 2, "--submit": 2, "--list": 0, "--collect": 0, "--point size2-seed2": 0}
    wanted |= {f"--pack {packed}": 0, f"--from-data {packed} --dir {tmp_path / 'other'}": 0}
    run, statuses = support.Runner.__call__, {}

    def run_and_give_others(self, point, path):
        run(self, point, path)
        if statuses:
            return
        for words in wanted:
            place = [] if "--dir" in words else ["--dir", str(directory)]
            statuses[words] = cli.main(["study", "fake", *place, *words.split()])

    monkeypatch.setattr(support.Runner, "__call__", run_and_give_others)
    assert fake("--dir", directory) == 0
    assert statuses == wanted
    remedy = "wait until it ends or stop it, or choose another"
    refusal = f"ddrl: --dir {directory}: another `ddrl study` is running in it; {remedy}\n"
    assert capsys.readouterr().err.count(refusal) == 2
    assert runner.ran == ["size1-seed1", "size2-seed2", "size1-seed2", "size2-seed1"]
    assert fake("--dir", directory) == 0


def test_a_study_that_was_killed_keeps_nobody_out(tmp_path, runner):
    program = (
        "import sys, time\nfrom pathlib import Path\nfrom ddrl.studies import plan\n"
        "with plan.held(Path(sys.argv[1])):\n    print('held', flush=True)\n    time.sleep(600)\n"
    )
    command_line = [sys.executable, "-c", program, str(tmp_path)]
    with subprocess.Popen(command_line, stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout.readline() == "held\n"
            with pytest.raises(UsageError, match="another `ddrl study` is running in it"):
                fake("--dir", tmp_path)
            assert not (tmp_path / PLAN).exists() and runner.ran == []
        finally:
            holder.kill()
    assert fake("--dir", tmp_path) == 0


def test_a_study_that_another_call_has_just_begun_is_not_begun_anew(tmp_path, runner):
    """Both looked before either of them wrote."""
    fake("--dir", tmp_path, "--sizes", 5, "--repeats", 1)
    first = load(tmp_path, "fake")
    settings, line = support.FakeSettings(sizes=(5,), repeats=1), "ddrl study fake, later"
    late, study = first._replace(command=line), support.study(runner)
    assert command.begin(study, late, settings, line, alone=True) == first
    with pytest.raises(UsageError, match="--sizes 7: the study in .* was begun with 5"):
        command.begin(study, late._replace(settings={**first.settings, "sizes": [7]}), settings, line, alone=True)
    assert load(tmp_path, "fake") == first


@pytest.mark.parametrize("sizes, refused", [((5,), False), ((5, 7), True)])
def test_of_two_that_begin_a_study_at_once_the_second_takes_the_plan(tmp_path, runner, monkeypatch, sizes, refused):
    """Tasks of a script may each run one point. Both have looked once more before either of them writes."""
    begin, plans = command.plans.begin, []

    def meanwhile(plan):
        monkeypatch.setattr(command.plans, "begin", begin)
        assert fake("--dir", tmp_path, "--sizes", 5, "--point", "size5-seed1") == 0
        plans.append((tmp_path / PLAN).read_bytes())
        begin(plan)

    monkeypatch.setattr(command.plans, "begin", meanwhile)
    different = pytest.raises(UsageError, match="--sizes 5 7: the study in .* was begun with 5")
    with different if refused else contextlib.nullcontext():
        assert fake("--dir", tmp_path, "--sizes", *sizes, "--point", "size5-seed2") == 0
    assert [(tmp_path / PLAN).read_bytes()] == plans
    assert runner.ran == ["size5-seed1"] + ["size5-seed2"] * (not refused)


def test_a_study_that_was_just_begun_and_is_not_seen_yet_is_refused(tmp_path, runner, monkeypatch):
    monkeypatch.setattr(command.plans, "load", lambda *arguments, **options: None)
    monkeypatch.setattr(command.plans, "begin", lambda plan: (_ for _ in ()).throw(FileExistsError))
    with pytest.raises(UsageError, match="another call has just begun a study there; try again$"):
        fake("--dir", tmp_path, "--sizes", 5, "--point", "size5-seed1")
    assert runner.ran == []


def test_a_link_in_place_of_a_plan_is_left_alone(tmp_path, runner):
    (tmp_path / PLAN).symlink_to(tmp_path / "missing")
    with pytest.raises(UsageError, match="study.json is damaged, was edited, .*: choose another --dir"):
        fake("--dir", tmp_path)
    assert runner.ran == [] and (tmp_path / PLAN).is_symlink()


def test_a_plugin_that_has_moved_is_named_anew(tmp_path, runner, capsys):
    """The points that are left run with it, and a report of all is careful about nothing."""
    directory, first, second = tmp_path / "s", tmp_path / "a" / "mine.py", tmp_path / "b" / "mine.py"
    another = tmp_path / "c" / "another.py"
    for path in (first, second, another):
        path.parent.mkdir()
        path.write_text(f"from ddrl.plugins import register_network\nregister_network('{path.stem}', print)\n")
    assert fake("--dir", directory, "--plugin", first, "--point", "size1-seed1") == 0
    plugin_modules._forget(plugin_modules._registered() - {(1, "mine")})
    plugin_modules._loaded.clear()
    del sys.modules["mine"]
    first.unlink()
    with pytest.raises(UsageError, match="there is no such file on this host"):
        fake("--dir", directory, "--list")
    with pytest.raises(UsageError, match=r"--plugin .*another\.py: the study in .* was begun without it"):
        fake("--dir", directory, "--plugin", second, "--plugin", another)
    capsys.readouterr()
    assert fake("--dir", directory, "--plugin", second) == 0
    assert runner.ran == ["size1-seed1", "size1-seed2", "size2-seed1", "size2-seed2"]
    places = [rundir.load_config(directory / POINTS / name).run.plugins for name in runner.ran]
    assert places == [(str(first),)] + [(str(second),)] * 3
    assert "ran with other settings than planned" not in capsys.readouterr().out
    assert fake("--dir", directory, "--plugin", second, "--repeats", 3) == 0
    assert rundir.load_config(directory / POINTS / "size2-seed3").run.plugins == (str(second),)


def test_a_study_of_two_points_of_one_name_leaves_no_directory(tmp_path, runner):
    """The names of the points of this one do not tell its games."""
    with pytest.raises(UsageError, match="two points are called size1-seed1: give each value once"):
        fake("--dir", tmp_path / "s", "--games", "breakout", "pong")
    assert not (tmp_path / "s").exists() and runner.ran == []


def test_list_shows_the_points_and_begins_nothing(tmp_path, runner, capsys):
    assert fake("--dir", tmp_path / "s", "--list") == 0
    assert "  2  size2-seed1" in capsys.readouterr().out
    assert not (tmp_path / "s").exists() and runner.ran == []


def test_one_point_alone(tmp_path, runner, capsys):
    assert fake("--dir", tmp_path, "--point", "size2-seed2") == 0
    assert runner.ran == ["size2-seed2"]
    assert "scores" not in capsys.readouterr().out
    fake("--dir", tmp_path, "--list")
    assert "size2-seed2" in (line := capsys.readouterr().out.splitlines()[3]) and "finished" in line


def test_texts_of_a_study_give_a_terminal_no_commands(tmp_path, runner, capsys):
    runner.acts["size1_seed1"] = "fail"
    assert fake("--dir", tmp_path) == 1
    result = tmp_path / POINTS / "size1-seed1" / rundir.RESULT
    rundir.write_json(result, {"status": "failed", "message": "broke\x1b[2J\x9bK"})
    for action in ("--list", "--collect"):
        capsys.readouterr()
        assert fake("--dir", tmp_path, action) == 0
        told = capsys.readouterr().out
        assert "broke?[2J?K" in told and not {"\x1b", "\x9b"} & set(told)


def test_a_failure_is_the_exit_status_and_the_rest_is_reported(tmp_path, runner, capsys):
    runner.acts["size1_seed1"] = "fail"
    assert fake("--dir", tmp_path) == 1
    assert "failed: size1-seed1: broke" in capsys.readouterr().out
    runner.acts.clear()
    assert fake("--dir", tmp_path) == 0


def test_nothing_is_reported_when_everything_failed(tmp_path, runner):
    runner.acts |= {f"size{n}_seed{s}": "refuse" for n in (1, 2) for s in (1, 2)}
    assert fake("--dir", tmp_path) == 1


def test_quick_has_settings_and_a_directory_of_its_own(tmp_path, runner, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert fake("--quick") == 0
    assert runner.ran == ["size1-seed1", "size1-seed2"]
    assert (tmp_path / "studies" / "fake-quick" / PLAN).exists()
    assert fake("--dir", "studies/fake-quick") == 0  # --quick is kept, too


@pytest.mark.parametrize(
    "arguments, message",
    [
        ([], "name one of scaling"),
        (["nix"], "study nix: there is no study of that name"),
        (["fake", "--list", "--collect"], "--list with --collect"),
        (["fake", "--collect"], "--collect: .* holds no study that has begun"),
        (["fake", "--pack", "packed"], "--pack: .* holds no study that has begun"),
        (["fake", "--point", "nix"], "--point nix: .* has none of that name"),
        (["fake", "--repeats", "0"], "--repeats 0"),
        (["fake", "--games"], "--games .nothing.: give one or more"),
        (["speed", "--workers", "1", "--games", "no_such_module:Walker-v0"], "--game no_such_module:Walker-v0: "),
        (["fake", "--dir", "/proc/none"], "choose one that can be written"),
    ],
)
def test_bad_input_is_one_line(tmp_path, monkeypatch, runner, arguments, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=message) as refusal:
        command.main(arguments)
    assert "\n" not in str(refusal.value) and not (tmp_path / "studies").exists()


def test_settings_of_another_version_are_refused():
    with pytest.raises(UsageError, match="'novelty' comes from another version"):
        studies_settings.from_json(support.FakeSettings, {"novelty": 1})


def test_settings_survive_json():
    settings = support.FakeSettings(minutes=2.0, sizes=(3,), games=("pong", "breakout"))
    data = json.loads(json.dumps(studies_settings.to_json(settings)))
    assert studies_settings.from_json(support.FakeSettings, data) == settings


def test_train_options_that_are_no_words_are_refused():
    settings = support.FakeSettings(train_options='--network "nature')
    with pytest.raises(UsageError, match="--train-options"):
        studies_settings.base_config(settings, "a2c", "breakout", support.MACHINE)


def test_train_options_reach_every_point():
    settings = support.FakeSettings(train_options="--network nature --learning-rate 0.5")
    config = studies_settings.base_config(settings, "a2c", "pong", support.MACHINE)
    assert (config.network.network, config.optimizer.learning_rate) == ("nature", 0.5)
    assert config.environment.game == "pong" and not config.evaluation.evaluator and not config.run.video


@pytest.mark.parametrize(
    ("study", "options", "refused"),
    [
        ("scaling", "--workers 3", "--workers"),
        ("scaling", "--workers 2", ""),
        ("scaling", "--network=nature --minutes 7", "--minutes"),
        ("hts", "--simulators 32", ""),
        ("epsilon", "--no-pin-simulators --log-every-seconds 2", ""),
    ],
)
def test_an_option_that_a_study_sets_itself_is_refused(tmp_path, monkeypatch, study, options, refused):
    monkeypatch.setattr(command, "this_machine", lambda: support.MACHINE)  # one core has a preset without servers
    words = [study, "--list", "--dir", str(tmp_path / "study"), f"--train-options={options}"]
    if not refused:
        assert command.main(words) == 0
        return
    with pytest.raises(UsageError, match=f"--train-options {refused}: the study sets {refused} itself"):
        command.main(words)


@pytest.mark.parametrize(("study", "times"), [("scaling", 1), ("hts", 0)])
def test_an_option_that_no_point_reads_is_told_of_once(tmp_path, monkeypatch, capsys, study, times):
    """In hts, A2C reads it, and PPO does not."""
    monkeypatch.setattr(command, "this_machine", lambda: support.MACHINE)
    words = [study, "--list", "--dir", str(tmp_path / "study"), "--train-options=--rmsprop-decay 0.5"]
    assert command.main(words) == 0
    only = "only --optimizer rmsprop or rmsprop-centered uses it"
    line = f"ddrl: warning: --rmsprop-decay 0.5 does nothing in this run: {only}\n"
    assert capsys.readouterr().err.count(line) == times


@pytest.mark.parametrize(
    ("options", "minutes", "seconds"), [("", 10.0, 5.0), ("", 1.0, 1.0), ("--log-every-seconds 0.2", 1.0, 0.2)]
)
def test_a_study_reports_as_often_as_its_train_options_say(options, minutes, seconds):
    settings = dataclasses.replace(VARIANTS.defaults, minutes=minutes, train_options=options)
    assert {point.config.run.log_every_seconds for point in VARIANTS.points(settings, support.MACHINE)} == {seconds}


@pytest.mark.parametrize("name", [None, *command.STUDIES])
def test_help_explains_and_imports_nothing_heavy(name):
    arguments = ["study", *([name] if name else []), "--help"]
    program = (
        "import sys\nfrom ddrl import cli\n"
        f"try:\n    status = cli.main({arguments!r})\nexcept SystemExit as end:\n    status = end.code\n"
        f"heavy = [name for name in {HEAVY!r} if name in sys.modules]\n"
        "sys.exit(f'imported {heavy}' if heavy else status)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=os.environ | {"COLUMNS": "90"},
    )
    assert done.returncode == 0, done.stderr
    words = ("--submit", "--collect", "--point", "--list", "--quick")
    assert all(word in done.stdout for word in words)
    if name is None:
        assert all(f"  {study} " in done.stdout for study in command.STUDIES)
