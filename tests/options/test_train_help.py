"""`ddrl train ALGORITHM --help`: what the algorithm can use, in lines that flow, and what its presets make of it."""

from __future__ import annotations

import dataclasses
import itertools
import re
from pathlib import Path
from typing import Any

import pytest

from ddrl import algorithms, rundir
from ddrl.config import RunConfig
from ddrl.docstrings import field_texts, first_sentence
from ddrl.errors import UsageError
from ddrl.options import train_help, train_options
from ddrl.options.command_line import options_of
from ddrl.options.help_page import COLUMN
from ddrl.types import Machine

MACHINE = Machine(2, 16 * 10**9)
NAMES = list(algorithms.names())
EXAMPLES = Path(__file__).parents[2] / "examples"
REINFORCE = str(Path(__file__).parent.parent / "of_users" / "reinforce.py")


@pytest.fixture
def page(capsys, monkeypatch):
    """What `ddrl train` with these words prints for help, in lines of 100 columns."""
    monkeypatch.setenv("COLUMNS", "100")

    def printed(*words: str) -> str:
        with pytest.raises(SystemExit) as end:
            train_options.parse(words, MACHINE)
        assert end.value.code == 0
        return capsys.readouterr().out

    return printed


def flows(text: str) -> bool:
    """Whether no line ends before the next one's first word would fit."""
    pairs = itertools.pairwise(text.splitlines())
    goes_on = ((one, other) for one, other in pairs if other.startswith(" " * COLUMN) and len(one) > COLUMN)
    return all(len(one) + 1 + len(other.split()[0]) > 100 for one, other in goes_on)


@pytest.mark.parametrize("name", NAMES)
def test_help_of_an_algorithm_is_short_and_flows(name, page):
    text = page(name, "--help")
    assert text.count("\n") <= train_help.MOST_LINES and max(map(len, text.splitlines())) <= 100
    assert flows(text) and flows(page(name, "--help-all"))


def test_text_that_does_not_flow_is_seen():
    assert not flows("  --x N" + " " * 19 + "Some text that ends\n" + " " * COLUMN + "early.")


@pytest.mark.parametrize("name", NAMES)
def test_what_help_leaves_out_is_refused(name):
    start = train_options.parse([name], MACHINE)
    left_out = [option for option in options_of(type(start), start) if train_help._unmet(option, start.config)]
    assert len(left_out) > 5
    for option in left_out:
        with pytest.raises(UsageError):
            start.config.changed(**{option.group: {option.field: other_than(option.value(start.config))}})
    schedule = next(option for option in options_of(type(start), start) if option.name == "schedule")
    for choice in set(schedule.choices) - set(train_help.choices(schedule, start.config)):
        with pytest.raises(UsageError):
            start.config.changed(sampling={"schedule": choice})


def other_than(value: Any) -> Any:
    if isinstance(value, str):
        return {"map": "pixels", "trains": "dedicated", "synchronous": "asynchronous", "greedy": "drawn"}[value]
    if isinstance(value, tuple):
        return (*value, 7)
    return (not value) if isinstance(value, bool) else 0.5 if isinstance(value, float) else (value or 0) + 3


def test_help_shows_what_ppo_can_use_and_the_values_of_its_presets(page):
    text = page("ppo", "--help")
    assert "--clip-range X          Clip the ratio pi/mu to 1 - x .. 1 + x. [0.1; stooke, mujoco 0.2]" in text
    assert "default                 Schulman et al. 2017, table 5." in text
    assert "--schedule {synchronized,double-buffered}" in text
    foreign = ("--replay-capacity", "--actors", "--epsilon-start", "--noise", "--football-view", "--c-clip")
    assert not any(option in text for option in foreign)
    whole = page("ppo", "--help-all")
    assert re.search(r"Ape-X \(apex-dqn, apex-dpg\)  --actors,", whole)
    assert "  --init-from RUN         Begin with the parameters of an earlier run, named as" in whole
    assert "--replay-capacity N" in page("dqn", "--help") and "--actors N" in page("apex-dqn", "--help")
    assert "[0.2; default, laptop 0.1; mujoco" not in page("ppo", "--preset", "stooke", "--help")
    assert "1 + x. [0.2; default, laptop 0.1]" in page("ppo", "--preset", "stooke", "--help")


def test_help_without_an_algorithm_names_all_and_fits(page):
    text = page("--help")
    assert text.count("\n") <= train_help.MOST_LINES
    assert all(
        re.search(rf"^  {name} +{known.printed}\b", text, re.MULTILINE) for name, known in algorithms.names().items()
    )


def test_help_of_a_run_to_go_on_with_has_its_values(page, tmp_path):
    config = train_options.parse(["ppo", "--minutes", "7", "--run-dir", str(tmp_path / "run")], MACHINE).config
    rundir.create_run_dir(config)
    text = page("--resume", str(tmp_path / "run"), "ppo", "--help")
    assert "(0: no such budget).\n                          [7]" in text and "presets (" not in text
    assert f"those of the run in {tmp_path / 'run'}" in " ".join(text.split())


def test_an_algorithm_of_a_plugin_has_such_a_page(page):
    text = page("reinforce", "--plugin", REINFORCE, "--help")
    assert text.startswith("usage: ddrl train reinforce") and text.count("\n") <= train_help.MOST_LINES
    assert "--unroll-length" in text or "--batch-size" in text
    assert "--replay-capacity" not in text


def test_the_options_that_a_variant_adds_come_first(page):
    """DQN has more options than fit, and a variant's own were behind them."""
    text = page("m-dqn", "--plugin", str(EXAMPLES / "m_dqn.py"), "--help")
    own = re.findall(r"^  --([\w-]+)", text.partition("\nM-DQN:\n")[2], re.MULTILINE)
    assert own[:4] == ["munchausen", "temperature", "log-policy-min", "discount"]


TWO = """
import dataclasses
from typing import ClassVar

from ddrl.algorithms import Name, ppo
from ddrl.plugins import register_algorithm


@dataclasses.dataclass(frozen=True)
class First(ppo.PPOConfig):
    \"\"\"What the first is for.\"\"\"

    name: ClassVar[str] = "first"


@dataclasses.dataclass(frozen=True)
class Second(ppo.PPOConfig):
    name: ClassVar[str] = "second"


for each in (First, Second):
    presets = {"default": lambda game, machine, each=each: ppo.ALGORITHM.names["ppo"].presets["default"](
        game, machine).changed(algorithm=each())}
    names = {each.name: Name(each.name, presets)}
    register_algorithm(dataclasses.replace(ppo.ALGORITHM, settings=each, names=names))
"""


@pytest.mark.parametrize("about", ["", '"""What the file is for."""'])
def test_each_of_several_algorithms_in_a_file_has_the_text_of_its_own_settings(about, page, tmp_path):
    plugin = tmp_path / "two.py"
    plugin.write_text(about + TWO)
    assert page("first", "--plugin", str(plugin), "--help").splitlines()[2] == "What the first is for."
    text = page("--plugin", str(plugin), "--help")
    assert re.search(r"^  first +What the first is for\.\n  second *$", text, re.MULTILINE)


def test_an_algorithm_alone_in_a_file_without_a_text_has_that_of_its_settings(page, tmp_path):
    plugin = tmp_path / "one.py"
    plugin.write_text(TWO.replace("(First, Second)", "(First,)"))
    assert page("first", "--plugin", str(plugin), "--help").splitlines()[2] == "What the first is for."


def test_more_options_than_fit_are_named(page, monkeypatch):
    monkeypatch.setattr(train_help, "MOST_LINES", 64)
    text = page("ppo", "--help")
    assert text.count("\n") <= 64
    assert "--value-clip-range X" not in text and re.search(r"--help-all shows .*--value-clip-range", text, re.DOTALL)


def test_every_common_option_is_there_for_an_algorithm():
    start = train_options.parse(["apex-dqn"], MACHINE)
    names = {option.name for option in options_of(type(start), start)}
    assert {name for section in train_help.COMMON.values() for name in section} <= names


@pytest.mark.parametrize("name", NAMES)
def test_every_setting_has_a_text_that_ends(name):
    config = train_options.parse([name], MACHINE).config
    for group in dataclasses.fields(config):
        kind = type(getattr(config, group.name))
        for field in dataclasses.fields(kind):
            assert field_texts(kind).get(field.name, "").endswith("."), (kind.__name__, field.name)


def test_texts_of_settings_are_in_one_line_and_of_those_above():
    texts = field_texts(RunConfig)
    assert texts["video"] == (
        "Record a video of the agent at the end of the run: the best of several games, at most a minute."
    )
    assert field_texts(algorithms.ALGORITHMS["dpg"].settings)["discount"] == "Discount per agent step (gamma)."


@pytest.mark.parametrize(
    "text, first",
    [
        ("One. Two.", "One."),
        ("Loss (Ba et al. 2016). More.", "Loss (Ba et al. 2016)."),
        ("As Ba et al. say. off: none.", "As Ba et al. say."),
        ("Rate 2.5e-4. linear: it falls.", "Rate 2.5e-4."),
    ],
)
def test_first_sentences(text, first):
    assert first_sentence(text) == first
