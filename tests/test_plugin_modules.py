"""Modules of plugins: from where they are imported, where they are named anew, and which are refused."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import ddrl
from ddrl import cli, plugin_modules, plugins, rundir
from ddrl.commands import tune
from ddrl.commands.tune import TuneArguments
from ddrl.errors import UsageError
from ddrl.options import train_options
from ddrl.tuning import plan as plans
from tests.plugin_files import FILE, MACHINE, REGISTERS, parse, written


@pytest.fixture
def moved(tmp_path):
    """A run whose plugin has moved, in a process that has not imported it: its directory, and where the plugin is."""
    first, second = tmp_path / "a" / "mine.py", tmp_path / "b" / "mine.py"
    for path in (first, second):
        path.parent.mkdir()
        path.write_text(REGISTERS.format(name="mine"))
    words = ("--plugin", str(first), "--network", "mine")
    config = parse("ppo", *words, "--run-dir", str(tmp_path / "run")).config
    path, _ = rundir.create_run_dir(config)
    space = ("learning-rate=log(1e-4,1e-2)",)
    search = tmp_path / "search"
    plans.begin(plans.Plan(search, "s", "ppo", "default", ("ppo", *words), config, space, "online", 3, False, "tune"))
    plugin_modules._forget(plugin_modules._registered() - {(1, "mine")})
    plugin_modules._loaded.clear()
    del sys.modules["mine"]
    first.unlink()
    return str(path), str(second)


def test_a_plugin_that_has_moved_is_named_anew_at_a_resume(moved):
    run, place = moved
    with pytest.raises(UsageError, match="there is no such file on this host"):
        parse("--resume", run)
    assert parse("--resume", run, "--plugin", place).config.run.plugins == (place,)


@pytest.mark.parametrize(
    "words, status, said",
    [
        (["diff", "RUN", "RUN"], 0, "have the same settings"),
        (["compare", "RUN"], 2, "no records in metrics.jsonl yet"),
        (["bench", "agent", "--run", "RUN"], 2, "there is no checkpoint in"),
    ],
    ids=["diff", "compare", "bench-agent"],
)
def test_a_plugin_that_has_moved_is_named_anew_where_runs_are_read(moved, words, status, said, capsys):
    run, place = moved
    command = [run if word == "RUN" else word for word in words]
    assert cli.main(command) == 2
    assert "there is no such file on this host" in capsys.readouterr().err
    assert cli.main([*command, "--plugin", place]) == status
    output = capsys.readouterr()
    assert said in (output.err if status else output.out)


def test_a_plugin_that_has_moved_is_named_anew_where_a_search_goes_on(moved, tmp_path, capsys):
    run, place = moved
    command = ["tune", "--dir", str(tmp_path / "search"), "--collect"]
    assert cli.main(command) == 2
    assert "there is no such file on this host" in capsys.readouterr().err
    assert cli.main(["tune", "ppo", *command[1:], "--network", "mine", "--plugin", place]) == 2
    assert "no trial" in capsys.readouterr().err
    begun = plans.load(tmp_path / "search")
    assert begun.base.run.plugins != (place,), "another host may collect what an array here has done"
    tune.go_on(begun, TuneArguments(begun.texts, begun.trials), (), [place])
    assert plans.load(tmp_path / "search").base.run.plugins == (place,), "of later calls, and of an array's tasks, too"
    other = written(tmp_path, "other.py", REGISTERS.format(name="other"))
    assert cli.main([*command, "--plugin", other]) == 2
    assert "was begun without it, and its trials keep that; leave the option out" in capsys.readouterr().err
    assert cli.main([*command, "--network", "mlp"]) == 2
    assert "options of ddrl train --network mlp: the search in" in capsys.readouterr().err


@pytest.mark.parametrize("plugin", [str, Path, lambda place: [place]], ids=["text", "path", "list"])
def test_a_plugin_that_has_moved_is_named_anew_from_python(moved, plugin):
    run, place = moved
    with pytest.raises(UsageError, match="there is no such file on this host"):
        ddrl.load(run)
    assert ddrl.load(run, plugin=plugin(place)).config.network.network == "mine"
    assert ddrl.load(run).config.run.plugins == (str(Path(place).parents[1] / "a" / "mine.py"),), "it is found now"


def forget_mine() -> None:
    """This process has imported no mine.py, as a new one."""
    plugin_modules._forget(plugin_modules._registered() - {(1, "mine")})
    plugin_modules._loaded.clear()
    plugin_modules._named.clear()
    del sys.modules["mine"]


@pytest.fixture
def two_runs(tmp_path):
    """Makes two runs, each with a mine.py beside it, which ends with a text of its own; returns their directories."""

    def make(*texts: str) -> list[Path]:
        places = [tmp_path / str(number) for number in range(len(texts))]
        for place, text in zip(places, texts, strict=True):
            place.mkdir()
            plugin = written(place, "mine.py", REGISTERS.format(name="mine") + text)
            words = ("--plugin", plugin, "--network", "mine", "--run-dir", str(place / "run"))
            rundir.create_run_dir(parse("ppo", *words).config)
            forget_mine()
        return places

    return make


def test_recorded_plugins_of_one_name_and_equal_contents_are_one(two_runs):
    places = two_runs("", "")
    read = [rundir.load_config(place / "run").run.plugins for place in places]
    assert read == [(str(place / "mine.py"),) for place in places]
    assert plugin_modules.loaded() == read[0]


def test_plugins_of_one_name_and_other_contents_are_refused_with_a_remedy(two_runs):
    first, second = two_runs("", "# edited\n")
    rundir.load_config(first / "run")
    for load in (lambda: rundir.load_config(second / "run"), lambda: plugin_modules.load_named(second / "mine.py")):
        with pytest.raises(UsageError, match=r"another plugin mine is imported .*name the one to use with --plugin"):
            load()


def test_a_plugin_that_is_named_replaces_the_recorded_one_of_that_name(two_runs):
    first, second = two_runs("", "# edited\n")
    run, place = first / "run", str(second / "mine.py")
    config = parse("--resume", str(run), "--plugin", place).config
    assert config.run.plugins == (place,)
    rundir.update_run_dir(run, config)
    forget_mine()
    assert rundir.load_config(run).run.plugins == (place,), "in a rank, which is told no more than that"
    assert [old.run.plugins for _, old in rundir.earlier_configs(run)] == [(str(first / "mine.py"),)]
    assert plugin_modules.loaded() == (place,)


def test_a_plugin_that_is_named_for_one_run_does_not_count_for_the_next_in_python(two_runs):
    first, second = two_runs("", "# edited\n")
    place = second / "mine.py"
    run = ddrl.load(first / "run", plugin=place)
    assert run.config.run.plugins == (str(first / "mine.py"),)
    with pytest.raises(UsageError, match="it has other contents"):
        ddrl.load(first / "run")
    assert run.config.run.plugins == (str(first / "mine.py"),), "it still counts for the run that was loaded with it"
    for use in (run.agent, run.evaluate):
        with pytest.raises(UsageError, match="it has other contents"):
            ddrl.load(first / "run")
        with pytest.raises(UsageError, match="there is no checkpoint in"):
            use()


def test_a_relative_file_is_recorded_by_its_absolute_path(tmp_path, monkeypatch):
    written(tmp_path, "mine.py", REGISTERS.format(name="mine"))
    monkeypatch.chdir(tmp_path)
    assert parse("ppo", "--plugin", "./mine.py", "--network", "mine").config.run.plugins == (str(tmp_path / "mine.py"),)
    assert plugins.networks.origin("mine") == ("mine", str(tmp_path / "mine.py"))


def test_a_module_on_the_path_and_an_installed_plugin_are_found_by_name(tmp_path, monkeypatch):
    written(tmp_path, "one_module.py", REGISTERS.format(name="one"))
    text = "def register():\n    from ddrl.plugins import register_network\n    register_network('two', print)\n"
    written(tmp_path, "two_module.py", text)
    package = tmp_path / "two-1.5.dist-info"
    package.mkdir()
    written(package, "METADATA", "Metadata-Version: 2.1\nName: two\nVersion: 1.5\n")
    written(package, "entry_points.txt", "[ddrl.plugins]\ntwo-plugin = two_module:register\n")
    monkeypatch.syspath_prepend(tmp_path)
    plugin_modules.load(["one_module", "two-plugin"])
    assert plugins.networks.names()[-2:] == ["one", "two"] and plugin_modules.loaded() == ("one_module", "two-plugin")
    listed = {entry.name: plugin_modules.package_of(entry) for entry in plugin_modules.installed()}
    assert listed["two-plugin"] == "two 1.5"


ODD = {
    "nothing.py": ("x = 1\n", "plugin .*nothing.py registers nothing: have it call ddrl.register_algorithm"),
    "broken.py": ("def f(:\n", r"plugin .*broken.py cannot be imported: SyntaxError: .*broken.py, line 1"),
    "mutable.py": (
        "import dataclasses\n\n@dataclasses.dataclass\nclass Settings:\n    layers: list = []\n",
        r"cannot be imported: ValueError: mutable default .* \(mutable.py, line [34]\)",
    ),
    "fails.py": ("\n\n1 / 0\n", r"cannot be imported: ZeroDivisionError: division by zero \(fails.py, line 3\)"),
    "leaves.py": ("raise SystemExit(3)\n", "cannot be imported: SystemExit: 3"),
    "needs.py": ("import no_such_thing\n", "cannot be imported: ModuleNotFoundError: No module named 'no_such_thing'"),
    "json.py": (REGISTERS.format(name="a"), "there is another module json .*: give the file a name of its own"),
    "a-b.py": (REGISTERS.format(name="a"), "a plugin's file is a module; its name may have only letters"),
    "taken.py": (REGISTERS.format(name="nature"), r"nature is registered twice, by ddrl and by taken \(.*taken.py"),
    "odd.py": (REGISTERS.format(name="a:b"), "network 'a:b': a name may have only letters, digits"),
    "unnamed.py": (
        "from ddrl.plugins import register_network\nregister_network(5, lambda spaces, settings: None)\n",
        "network 5: a name must be a string$",
    ),
    "wrong.py": ("from ddrl.plugins import register_algorithm\nregister_algorithm(3)\n", "takes a ddrl.algorithms"),
    "number.py": ("from ddrl.plugins import register_network\nregister_network('x', 3)\n", "takes a function, not 3"),
    "trains.py": (
        REGISTERS.format(name="a") + "import ddrl\nddrl.train('no-such-algorithm')\n",
        r"plugin .*trains.py: ddrl.train was called while it was imported.* below `if __name__ == \"__main__\":`$",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ODD)
def test_what_is_no_plugin_is_refused_in_one_line(name, tmp_path):
    text, said = ODD[name]
    before = plugin_modules._registered()
    with pytest.raises(UsageError, match=said) as error:
        plugin_modules.load([written(tmp_path, name, text)])
    assert "\n" not in str(error.value) and name in str(error.value) and plugin_modules._registered() == before


def test_a_plugin_that_imports_a_file_beside_it_is_told_of_the_path(tmp_path):
    written(tmp_path, "helpers_beside.py", "")
    said = rf"No module named 'helpers_beside' \(imports.py, line 1\); .* name it in PYTHONPATH \({tmp_path}\)$"
    with pytest.raises(UsageError, match=said):
        plugin_modules.load([written(tmp_path, "imports.py", "import helpers_beside\n")])


def test_a_module_that_registers_with_gymnasium_alone_is_told_of_another_way(tmp_path, monkeypatch):
    written(tmp_path, "of_gymnasium.py", "")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UsageError, match="registers nothing: .*with Gymnasium needs .*, but --game of_gymnasium:ID$"):
        plugin_modules.load(["of_gymnasium"])


def test_what_is_not_there_is_refused_with_a_remedy(tmp_path, monkeypatch):
    with pytest.raises(UsageError, match="there is no such file on this host: every node of a job must have it"):
        plugin_modules.load([str(tmp_path / "gone.py")])
    mine = written(tmp_path, "there.py", "")
    with pytest.raises(UsageError, match=rf"there is no such file; did you mean {re.escape(mine)}\?$"):
        plugin_modules.load([mine.removesuffix(".py")])
    with pytest.raises(UsageError, match="no module gone_module on Python's path; install it, or add its directory"):
        plugin_modules.load(["gone_module"])
    written(tmp_path, "gone_module.py", "")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"; --plugin \./gone_module\.py"):
        plugin_modules.load(["gone_module"])


def test_two_plugins_with_one_name_are_refused_with_both(tmp_path):
    first, second = (written(tmp_path, f"{name}.py", REGISTERS.format(name="same")) for name in ("one", "two"))
    with pytest.raises(UsageError, match=r"plugin .*two.py: network same is registered twice, by one \(.*one.py\) and"):
        plugin_modules.load([first, second])


def test_a_program_may_be_its_own_plugin(tmp_path):
    text = (
        "from ddrl import plugin_modules, plugins\n"
        "plugins.register_network('own', print)\n"
        "if __name__ == '__main__':\n"
        "    plugin_modules.load([plugin_modules.recorded(__file__)])\n"
        "    print(plugins.networks.origin('own').module)\n"
    )
    command = [sys.executable, written(tmp_path, "own_program.py", text)]
    environment = {**os.environ, "PYTHONPATH": str(FILE.parents[2])}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert done.stdout == "own_program\n"


def test_a_plugin_that_registered_nothing_may_be_mended_and_loaded_again(tmp_path):
    path = written(tmp_path, "mended.py", "x = 1\n")
    with pytest.raises(UsageError, match="registers nothing"):
        plugin_modules.load([path])
    written(tmp_path, "mended.py", REGISTERS.format(name="mended"))
    plugin_modules.load([path])
    assert plugins.networks.origin("mended") == ("mended", path)


def test_a_plugin_that_was_edited_since_this_process_imported_it_is_refused(tmp_path):
    text = REGISTERS.format(name="mine")
    path = written(tmp_path, "mine.py", text)
    asked = {"plugin": path, "network": "mine"}
    begun = train_options.settings_of("ppo", None, MACHINE, run_dir=tmp_path / "run", **asked)
    run, _ = rundir.create_run_dir(begun.config)
    written(tmp_path, "mine.py", f"{text}# edited\n")
    for algorithm, more in (("ppo", asked), (None, {"resume": run})):
        with pytest.raises(UsageError, match="mine.py has changed since this process imported it.*restart the kernel"):
            train_options.settings_of(algorithm, None, MACHINE, **more)
    assert train_options.settings_of("ppo", None, MACHINE).config.run.plugins == (), "of which the plugin is no part"
    written(tmp_path, "mine.py", text)
    assert train_options.settings_of("ppo", None, MACHINE, **asked).config.network.network == "mine"
