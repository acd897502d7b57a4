"""Plugins: what they register, from where they are imported, and what of them is refused."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

import ddrl
from ddrl import algorithms, cli, plugin_modules, plugins, rundir
from ddrl.commands import tune
from ddrl.commands.tune import TuneArguments
from ddrl.config import (
    AlgorithmConfig,
    ExchangeConfig,
    FromDataPoints,
    FromReplay,
    FromRollouts,
    FromUnrolls,
    NetworkConfig,
    SamplingConfig,
    TrainConfig,
)
from ddrl.errors import UsageError
from ddrl.learner import UNUSED_FIELDS
from ddrl.options import train_help, train_options
from ddrl.tuning import plan as plans
from ddrl.types import DataPoints, Machine, Replayed, Transitions, Unroll

FILE = Path(__file__).parent / "of_users" / "reinforce.py"
MACHINE = Machine(2, 16 * 10**9)
REGISTERS = "from ddrl.plugins import register_network\nregister_network({name!r}, print)\n"


def written(directory: Path, name: str, text: str) -> str:
    (directory / name).write_text(text)
    return str(directory / name)


def parse(*words: str) -> train_options.TrainArguments:
    return train_options.parse(words, MACHINE)


def test_an_algorithm_of_a_file_has_its_own_options_and_is_found_again_in_a_run(tmp_path):
    config = parse("reinforce", "--plugin", str(FILE), "--baseline-cost", "0.25", "--exchange", "circle").config
    assert (config.algorithm.name, config.algorithm.baseline_cost) == ("reinforce", 0.25)
    assert config.run.plugins == (str(FILE),) and config.exchange.kind.summary == "as the all-reduce"
    path, config = rundir.create_run_dir(config.changed(run={"run_dir": str(tmp_path / "run")}))
    read = "import sys\nfrom ddrl import rundir\nprint(rundir.load_config(sys.argv[1]).algorithm.baseline_cost)\n"
    done = subprocess.run([sys.executable, "-c", read, str(path)], capture_output=True, text=True, check=True)
    assert done.stdout == "0.25\n"
    resumed = parse("--resume", str(path), "--baseline-cost", "2").config
    assert resumed.algorithm.baseline_cost == 2.0 and resumed.run.plugins == (str(FILE),)


def documented(directory: Path, name: str) -> str:
    """The path of a plugin of docs/extending.md, whose first line has its name."""
    text = (FILE.parents[2] / "docs" / "extending.md").read_text()
    example = next(block for block in text.split("```python\n")[1:] if block.startswith(f"# {name}"))
    return written(directory, name, example.split("```")[0])


def test_the_example_of_the_documentation_has_its_own_options(tmp_path):
    config = parse("mine", "--plugin", documented(tmp_path, "mine.py"), "--baseline-cost", "0.25").config
    assert config.algorithm.baseline_cost == 0.25 and config.title == "mine"


def test_the_page_says_what_a_loss_gets_from_each_kind_of_data():
    text = (FILE.parents[2] / "docs" / "extending.md").read_text()
    rows = re.findall(r"^\| `(From\w+)` \|[^|]+\|([^|]+)\|([^|]+)\|$", text, re.MULTILINE)
    named = {kind: (re.findall(r"`(\w+)`", fields), re.findall(r"`([\w-]+)`", each)) for kind, fields, each in rows}
    records = {FromDataPoints: DataPoints, FromRollouts: Transitions, FromUnrolls: Unroll, FromReplay: Replayed}
    unused = {*UNUSED_FIELDS, "target"}  # targets are asked for by an algorithm's `targets`
    assert named == {
        kind.__name__: ([name for name in record._fields if name not in unused], list(train_help.SCHEDULES[kind]))
        for kind, record in records.items()
    }


@pytest.mark.parametrize("preset", ["default", "laptop", "smoke"])
def test_the_variant_of_the_documentation_has_the_presets_of_its_algorithm_and_an_option_more(preset, tmp_path):
    words = ("--plugin", documented(tmp_path, "kl_ppo.py"), "--preset", preset)
    config, of_ppo = parse("kl-ppo", *words, "--kl-cost", "0.5").config, parse("ppo", "--preset", preset).config
    assert config.title == "kl-ppo"
    assert dataclasses.asdict(config.algorithm) == dataclasses.asdict(of_ppo.algorithm) | {"kl_cost": 0.5}
    assert config.changed(algorithm=of_ppo.algorithm, run={"plugins": ()}) == of_ppo


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_the_variant_of_the_documentation_trains(tmp_path, forked_ranks):
    settings = {"minutes": 0, "max_updates": 40, "log_every_seconds": 0.2, "evaluator": False, "video": False}
    plugin, place = documented(tmp_path, "kl_ppo.py"), tmp_path / "run"
    run = ddrl.train("kl-ppo", preset="smoke", plugin=plugin, progress=False, run_dir=place, **settings)
    kl = run.metrics()["kl"]
    assert run.result["status"] == "finished" and np.nanmax(kl) > 0.0 and np.nanmin(kl) > -1e-6


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


def test_the_command_lists_what_there_is_and_from_where():
    command = [sys.executable, "-m", "ddrl.cli", "plugins", "--plugin", str(FILE)]
    rows = [
        line.split() for line in subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    ]
    assert ["algorithm", "hts-ppo", "ddrl"] in rows and ["network", "impala", "ddrl"] in rows
    assert ["algorithm", "reinforce", "reinforce", f"({FILE})"] in rows
    assert ["exchange", "circle", "reinforce", f"({FILE})"] in rows


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


def test_an_algorithm_whose_option_or_name_is_taken_is_refused():
    ppo = algorithms.ALGORITHMS["ppo"]
    with pytest.raises(UsageError, match="algorithm ppo is registered twice, by ddrl and by tests.test_plugins"):
        plugins.register_algorithm(ppo)

    def settings(name: str, **fields: int) -> type:
        return type(name, (ppo.settings,), {"name": name, "__annotations__": dict.fromkeys(fields, int), **fields})

    for kind, said in (
        (settings("other"), "algorithm other: its name ppo is one of algorithm ppo, which ddrl registered"),
        (settings("third", workers=2), "algorithm third: its setting workers is one of exchange already"),
    ):
        names = {kind.name: ppo.names["ppo"]} | (dict(ppo.names) if kind.name == "other" else {})
        record = dataclasses.replace(ppo, settings=dataclasses.dataclass(frozen=True)(kind), names=names)
        with pytest.raises(UsageError, match=said):
            plugins.register_algorithm(record)


@pytest.mark.parametrize(
    "kind, said",
    [
        (list[int], r"is of type list\[int\]: use bool, a Literal of texts, or X"),
        (Path, "is of type Path: use bool"),
        (int | str, r"is of type int \| str: use bool"),
        (bool | None, "is of type .*bool.*: use bool"),
        (Literal[1, 2], r"is of type typing.Literal\[1, 2\]: use bool"),
        (int, ""),
        (float | None, ""),
        (tuple[str, ...], ""),
        (Literal["a", "b"], ""),
    ],
)
def test_a_setting_of_a_type_that_no_option_can_have_is_refused(kind, said):
    ppo = algorithms.ALGORITHMS["ppo"]
    body = {"name": "other", "__annotations__": {"mine": kind}, "mine": None}
    settings = dataclasses.dataclass(frozen=True)(type("Other", (ppo.settings,), body))
    other = dataclasses.replace(ppo, settings=settings, names={"other": ppo.names["ppo"]})
    if not said:
        plugins.register_algorithm(other)
        return
    with pytest.raises(UsageError, match=f"^algorithm other: its setting mine {said}"):
        plugins.register_algorithm(other)


def test_an_algorithm_whose_settings_are_no_fields_or_whose_context_is_unknown_is_refused():
    ppo = algorithms.ALGORITHMS["ppo"]
    body = {"name": "other", "__annotations__": {"kl_cost": float}, "kl_cost": 1.0}
    settings = type("Other", (ppo.settings,), body)
    other = dataclasses.replace(ppo, settings=settings, names={"other": ppo.names["ppo"]})
    with pytest.raises(UsageError, match="its setting kl_cost is no field: decorate Other with @dataclasses.dataclass"):
        plugins.register_algorithm(other)
    other = dataclasses.replace(of_ppo("other"), context=frozenset({"target", "seed"}))
    with pytest.raises(UsageError, match="algorithm other: its context names seed: there are key and target"):
        plugins.register_algorithm(other)


@pytest.mark.parametrize("of, changes", [("appo", {}), ("rainbow", {"atoms": 51})])
def test_a_variant_of_an_algorithm_has_none_of_its_names(of, changes):
    config = algorithms.preset("default", "pong", MACHINE, of)
    body = {"name": "variant", "__annotations__": {}}
    kind = dataclasses.dataclass(frozen=True)(type("Variant", (type(config.algorithm),), body))
    assert config.title == of and config.changed(algorithm=kind(**changes)).title == "variant"


def of_ppo(name: str, **presets: Callable[..., object]) -> algorithms.Algorithm:
    """PPO under another name, with its own class of settings and these presets."""
    ppo = algorithms.ALGORITHMS["ppo"]
    kind = dataclasses.dataclass(frozen=True)(type(name, (ppo.settings,), {"name": name, "__annotations__": {}}))
    presets = presets or {"default": lambda game, machine: TrainConfig(algorithm=kind())}
    return dataclasses.replace(ppo, settings=kind, names={name: algorithms.Name(name, presets)})


@pytest.mark.parametrize(
    "preset, said",
    [
        ("default", "--preset default of other has settings of ppo: give its TrainConfig `algorithm=other"),
        ("laptop", r"--preset laptop of other fails: KeyError: 'no such size' \(test_plugins.py, line \d+\); fix the"),
        ("smoke", "--preset smoke of other gave None: have it return a ddrl.config.TrainConfig"),
    ],
)
def test_a_preset_that_fails_or_is_of_another_algorithm_is_refused(preset, said):
    of_another = algorithms.ALGORITHMS["ppo"].names["ppo"].presets["default"]
    presets = {"default": of_another, "laptop": lambda game, machine: {}["no such size"], "smoke": lambda *given: None}
    plugins.register_algorithm(of_ppo("other", **presets))
    with pytest.raises(UsageError, match=said) as error:
        parse("other", "--preset", preset)
    assert "\n" not in str(error.value)


def test_a_number_without_an_option_is_refused_as_what_the_algorithm_learns_from():
    class Settings(AlgorithmConfig):
        name = "other"

        @property
        def learns_from(self):
            return FromReplay(n_step=1, steps_per_update=3, target_period=30)

    acting = SamplingConfig(schedule="standard", simulators=8, groups=1)
    said = "^steps_per_update=3 in learns_from of other: 8 simulators step together"
    with pytest.raises(UsageError, match=said):
        TrainConfig(algorithm=Settings(), sampling=acting)


def test_a_notebook_registers_its_algorithm_again(monkeypatch):
    monkeypatch.setattr(plugins, "_caller", lambda: plugins.Origin(plugins.MAIN, ""))
    for _ in range(2):
        algorithm = of_ppo("other")
        plugins.register_algorithm(algorithm)
        assert algorithms.ALGORITHMS["other"] is algorithm
    with pytest.raises(UsageError, match="its name other is one of algorithm other, which __main__ registered"):
        third = of_ppo("third")
        plugins.register_algorithm(dataclasses.replace(third, names=dict(third.names) | dict(algorithm.names)))


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


def test_a_run_whose_plugin_has_lost_its_algorithm_says_so():
    config = rundir.config_to_dict(parse("reinforce", "--plugin", str(FILE)).config)
    data = json.loads(json.dumps(config)) | {"algorithm_name": "sarsa"}
    with pytest.raises(UsageError, match="is of algorithm sarsa, which .*reinforce.py no longer registers"):
        rundir.config_from_dict(data)


def test_names_of_nothing_are_refused_with_what_is_near():
    with pytest.raises(UsageError, match="--network natur: must be one of a3c, .*did you mean nature"):
        NetworkConfig(network="natur")
    with pytest.raises(UsageError, match="--exchange all_reduce: .*did you mean allreduce"):
        ExchangeConfig(exchange="all_reduce")


READ = {"a=-1": -1, "a=1e-3": 1e-3, "a=True": True, "a=None": None, "a=8x8": "8x8", "a=(0.8,2.0)": (0.8, 2.0),
        "a=['SF',[1,2]]": ["SF", [1, 2]], "a=": "", "a=k=v": "k=v", "a={1: 2,3: 4}": "{1: 2,3: 4}"}  # fmt: skip


@pytest.mark.parametrize("text, value", READ.items())
def test_options_of_a_game_and_of_a_name_have_the_same_values(text, value):
    assert plugins.game_arguments([text, "z=x"]) == {"a": value, "z": "x"}
    assert plugins.split_options("wrappers", f"own:{text},z=x") == ("own", {"a": value, "z": "x"})
    assert plugins.split_options("loggers", "own") == ("own", {})


@pytest.mark.parametrize(
    "texts, why",
    [
        (["a"], "a: it is not KEY=VALUE; write "),
        (["b=1", "a-b=2"], "a-b=2: it is not KEY=VALUE; write "),
        (["a=1", "a=2"], "a=2: a is there twice; give it once"),
        (["a=true"], "a=true: the value would be a text; write a=True"),
        (["a=FALSE"], "a=FALSE: the value would be a text; write a=False"),
        (["a=(1,b=2"], "a=(1,b=2: "),
    ],
)
def test_options_of_a_game_and_of_a_name_are_refused_alike(texts, why):
    with pytest.raises(UsageError, match=re.escape(f"--game-options {why}")):
        plugins.game_arguments(texts)
    with pytest.raises(UsageError, match=re.escape(f"--callbacks own:{why}")):
        plugins.split_options("callbacks", f"own:{','.join(texts)}")


def test_options_without_a_name_are_refused():
    """As where a space stands before them, in place of a comma."""
    with pytest.raises(UsageError, match="--wrappers b=2: it has no name; write NAME:KEY=VALUE,KEY=VALUE"):
        plugins.split_options("wrappers", "b=2")
