"""Plugins: what they register, the options that they have, and what of them is refused."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

import ddrl
from ddrl import algorithms, plugins, rundir
from ddrl.config import (
    AlgorithmConfig,
    ExchangeConfig,
    FromDataPoints,
    FromReplay,
    FromRollouts,
    FromUnrolls,
    NetworkConfig,
    OptimizerConfig,
    SamplingConfig,
    TrainConfig,
)
from ddrl.errors import UsageError
from ddrl.learner import UNUSED_FIELDS
from ddrl.options import command_line, train_help
from ddrl.options.train_options import TrainArguments
from ddrl.types import DataPoints, Replayed, Transitions, Unroll
from tests.plugin_files import FILE, MACHINE, parse, written


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


def test_the_command_lists_what_there_is_and_from_where():
    command = [sys.executable, "-m", "ddrl.cli", "plugins", "--plugin", str(FILE)]
    rows = [
        line.split() for line in subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    ]
    assert ["algorithm", "hts-ppo", "ddrl"] in rows and ["network", "impala", "ddrl"] in rows
    assert ["algorithm", "reinforce", "reinforce", f"({FILE})"] in rows
    assert ["exchange", "circle", "reinforce", f"({FILE})"] in rows


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


MISTAKES = {
    "no name on the command line": ({"names": "other"}, r"its names are 'other': give a dict, as in \{'mine': Name"),
    "presets without a name": ({"names": {"other": {}}}, r"its names are \{'other': \{\}\}: give a dict"),
    "no presets": ({"names": {"other": algorithms.Name("Other", None)}}, "its names are .*: give a dict, as in"),
    "no context": ({"context": None}, "its context is None: give a set, as in"),
    "no loss": ({"loss": None}, "its loss is None: give a function of .network, parameters, batch, settings, context"),
    "a loss of two": ({"loss": lambda network, batch: 0}, r"its loss takes \(network, batch\): give a function of"),
    "a context that is a text": ({"context": "target"}, r"its context is 'target': give a set, as in \{'target'\}"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_record_of_other_types_is_refused_before_any_rank_starts(name):
    changes, said = MISTAKES[name]
    with pytest.raises(UsageError, match=f"^algorithm other: {said}"):
        plugins.register_algorithm(dataclasses.replace(of_ppo("other"), **changes))


def test_settings_without_a_name_are_refused():
    with pytest.raises(UsageError, match="^register_algorithm: its settings have no name; write `name: ClassVar"):
        plugins.register_algorithm(of_ppo(""))


def with_setting(hint: object, value: object, **members: object) -> type[AlgorithmConfig]:
    """Settings of an algorithm, called other, that learns from rollouts, with one more setting and other members."""
    learns = {"learns_from": property(lambda self: FromRollouts(unroll_length=10, gae_lambda=1.0))}
    body = {"name": "other", "__annotations__": {"mine": hint}, "mine": value, **learns, **members}
    return dataclasses.dataclass(frozen=True)(type("Other", (AlgorithmConfig,), body))


@pytest.mark.parametrize(
    "hint, value, said",
    [
        (float, "half", "has mine='half', which is no float; fix the plugin"),
        (int, 0.5, "has mine=0.5, which is no int"),
        (bool, 1, "has mine=1, which is no bool"),
        (float, True, "has mine=True, which is no float"),
        (tuple[int, ...], (1, "2"), r"has mine=\(1, '2'\), which is no tuple"),
        (float, 1, ""),
        (float, np.float64(1.5), ""),
        (float | None, None, ""),
        (tuple[str, ...], (), ""),
    ],
)
def test_a_setting_whose_value_is_not_of_its_type_is_refused(hint, value, said):
    kind = with_setting(hint, value)
    acting = SamplingConfig(schedule="synchronized", simulators=8, groups=1)
    whole = OptimizerConfig(batch_size=0)
    presets = {"default": lambda game, machine: TrainConfig(algorithm=kind(), sampling=acting, optimizer=whole)}
    names = {"other": algorithms.Name("Other", presets)}
    plugins.register_algorithm(algorithms.Algorithm(settings=kind, loss=algorithms.ALGORITHMS["ppo"].loss, names=names))
    if not said:
        assert algorithms.preset("default", None, MACHINE, "other").algorithm.mine == value
        return
    with pytest.raises(UsageError, match=f"^--preset default of other {said}"):
        algorithms.preset("default", None, MACHINE, "other")


DATA = {
    "nothing": (property(lambda self: None), "learns_from of other is None: have it, as a property, return FromData"),
    "a method": (lambda self: None, "learns_from of other is a method: have it, as a property, return FromDataPoints"),
    "no steps": (property(lambda self: FromUnrolls(0)), "unroll_length=0 in learns_from of other: must be a whole n"),
    "half steps": (property(lambda self: FromUnrolls(0.5)), "unroll_length=0.5 in learns_from of other: must be a"),
    "no epochs": (property(lambda self: FromDataPoints(5, 0)), "epochs=0 in learns_from of other: must be a whole"),
    "no period": (property(lambda self: FromReplay(1, 4, 0)), "target_period=0 in learns_from of other: must be a"),
    "a typo": (property(lambda self: self.typo), "learns_from of other: AttributeError: .*'typo' .test_plugins.py"),
    "not defined": (AlgorithmConfig.learns_from, "other: its settings say nothing of the data that it learns from; gi"),
}


@pytest.mark.parametrize("name", DATA)
def test_what_is_no_data_to_learn_from_is_refused(name):
    learns_from, said = DATA[name]
    with pytest.raises(UsageError, match=f"^{said}"):
        TrainConfig(algorithm=with_setting(float, 1.0, learns_from=learns_from)())


def test_what_settings_of_a_user_raise_is_one_line_and_what_is_not_finite_is_refused():
    def positive(self: AlgorithmConfig) -> None:
        AlgorithmConfig.__post_init__(self)
        if self.mine < 0:
            raise ValueError(f"mine must be\n0 or more, not {self.mine}")

    kind = with_setting(float, 1.0, __post_init__=positive)
    with pytest.raises(UsageError, match=r"^settings of other: ValueError: mine must be / 0 or more, not -1.0 \(tes"):
        kind(mine=-1.0)
    with pytest.raises(UsageError, match="^--discount 2.0: must be between"):
        kind(discount=2.0)
    for value in (np.nan, np.inf):
        with pytest.raises(UsageError, match=f"^--mine {value}: must be a finite number"):
            TrainConfig(algorithm=kind(mine=value))


def test_a_setting_that_would_be_another_option_of_training_is_refused():
    options = command_line.options_of(TrainArguments, parse("ppo"))
    names = [option.name for option in options if not option.group] + [word[2:] for word in train_help.ASKED[1:]]
    assert {name.replace("-", "_") for name in names} == algorithms.OF_TRAIN
    bases = (of_ppo("other").settings,)
    settings = dataclasses.make_dataclass("Other", [("preset", float, 1.0)], bases=bases, frozen=True)
    record = dataclasses.replace(of_ppo("other"), settings=settings)
    with pytest.raises(UsageError, match="^algorithm other: its setting preset would be --preset of `ddrl train`; ch"):
        plugins.register_algorithm(record)


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
