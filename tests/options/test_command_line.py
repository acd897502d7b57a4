"""Words of a command line: what is mistyped is told in one line, with what may be meant."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Literal

import pytest
import tyro

from ddrl import algorithms, checks, cli, option_values
from ddrl.commands.plan import PlanArguments
from ddrl.config import EnvironmentConfig
from ddrl.errors import UsageError
from ddrl.options import command_line, other_libraries, train_options
from ddrl.types import Machine

MACHINE = Machine(2, 16 * 10**9)


@dataclasses.dataclass(frozen=True)
class Inner:
    """Options of a group."""

    learning_rate: float = 1e-3
    sizes: tuple[int, ...] = (3,)


@dataclasses.dataclass(frozen=True)
class Arguments:
    """Options of every kind."""

    what: tyro.conf.Positional[Literal["first", "second"]]
    count: int | None = 5
    loud: bool = True
    text: str = ""
    inner: Inner = Inner()


def read(*words: str) -> Arguments:
    return command_line.read(Arguments, words, "ddrl test", config=(tyro.conf.OmitArgPrefixes,))


@pytest.mark.parametrize(
    "words, wanted",
    [
        (["first"], Arguments("first")),
        (["second", "--count", "1e6"], Arguments("second", 10**6)),
        (["--count=2.5e3", "first"], Arguments("first", 2500)),
        (["first", "--count", "None", "--no-loud"], Arguments("first", None, False)),
        (
            ["first", "--sizes", "1e2", "7", "--text=--odd"],
            Arguments("first", text="--odd", inner=Inner(sizes=(100, 7))),
        ),
        (["--learning_rate", "-3", "first"], Arguments("first", inner=Inner(-3.0))),
        (["first", "--text", "1e6"], Arguments("first", text="1e6")),
        (["first", "--text", "-p long"], Arguments("first", text="-p long")),
    ],
)
def test_values(words, wanted):
    assert read(*words) == wanted


@pytest.mark.parametrize(
    "words, message",
    [
        (["frist"], r"frist: must be one of first, second; did you mean first\?"),
        (["first", "more"], "more belongs to no option"),
        (["first", "--lr", "1"], r"--lr: there is no such option; did you mean --learning-rate\?"),
        (["first", "--Cuont", "1"], r"--Cuont: there is no such option; did you mean --count\?"),
        (["--what", "first"], "--what: there is no such option; it stands without a name, as in `ddrl test WHAT`"),
        (["first", "--qqqq"], r"--qqqq: there is no such option \(ddrl test --help"),
        (["first", "--count", "many"], "--count many: must be a whole number, such as 1000000 or 1e6"),
        (["first", "--count", "1.5"], "--count 1.5: must be a whole number"),
        (["first", "--count", "1e999999999"], "--count 1e999999999: must be a whole number"),
        (["first", "--sizes", "3", "x"], "--sizes x: must be a whole number"),
        (["first", "--sizes", "3,4"], "--sizes 3,4: a comma does not separate values; write --sizes 3 4"),
        (["first", "--sizes=3,4"], "--sizes 3,4: a comma does not separate values; write --sizes 3 4"),
        (["first", "--learning-rate=fast"], "--learning-rate fast: must be a number"),
        (["first", "--text", "--loud"], "--text: it needs a value, not --loud; or write --text=--loud"),
        (["first", "--text", "--a b"], "not --a b; or write --text='--a b'"),
        (["first", "--count"], "--count: it needs a value"),
        (["first", "--loud=false"], "--loud=false: it takes no value; write --loud or --no-loud"),
        (["first", "--no-loud=1"], "--no-loud=1: it takes no value; write --loud or --no-loud"),
    ],
)
def test_mistakes(words, message):
    with pytest.raises(UsageError, match=message):
        read(*words)


@pytest.mark.parametrize(
    "value, text",
    [
        (1_000_000.0, "1e6"), (200_000, "2e5"), (50_000, "50000"), (2_500_000, "2.5e6"), (1_234_567, "1234567"),
        (1e-8, "1e-8"), (2.5e-4, "0.00025"), (6.25e-5, "6.25e-5"), (0.99, "0.99"), (10.0, "10"), (0, "0"),
        (-10.0, "-10"), (2**64 - 1, "18446744073709551615"), (0.1 + 0.2, "0.30000000000000004"), (True, "on"),
        (None, "None"), ((3, 400_000), "3 4e5"), ("", ""),
    ],
)  # fmt: skip
def test_values_are_shown_as_they_would_be_typed(value, text):
    assert option_values.shown(value) == text
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        assert option_values.value_of(type(value), text) == value


@dataclasses.dataclass(frozen=True)
class Many:
    """A list without a name."""

    runs: tyro.conf.Positional[tuple[int, ...]]
    loud: bool = False


def test_a_list_without_a_name():
    assert command_line.read(Many, ["1", "1e3", "--loud"], "ddrl test") == Many((1, 1000), True)
    with pytest.raises(UsageError, match="7 belongs to no option"):
        command_line.read(Many, ["1", "--loud", "7"], "ddrl test")


def test_help_is_not_taken_for_a_mistake(capsys):
    with pytest.raises(SystemExit) as end:
        read("--help")
    assert end.value.code == 0
    assert "--learning-rate" in capsys.readouterr().out


def test_reading_the_options_of_train_parses_no_source(monkeypatch):
    """tyro would, for a help of its own, and take two fifths of the time for it."""
    monkeypatch.setattr(inspect, "getsource", lambda searched: pytest.fail(f"the source of {searched} was parsed"))
    assert train_options.parse(["ppo", "--preset", "smoke"], MACHINE).algorithm == "ppo"


def test_every_value_goes_there_and_back_as_words():
    wanted = Arguments("second", None, False, "--a b", Inner(1e-8, (1, 2)))
    words = []
    for option in command_line.options_of(Arguments):
        if not option.positional:
            holder = getattr(wanted, option.group) if option.group else wanted
            words += command_line.words_of(option, getattr(holder, option.field))
    assert read("second", *words) == wanted


@pytest.mark.parametrize(
    "line, message",
    [
        ("PPO", r"PPO: there is no such algorithm; did you mean ppo\? Or give the --plugin that has it$"),
        ("sarsa", "sarsa: there is no such algorithm; choose one of ba3c, "),
        ("--minutes 5 pppo", r"pppo: must be one of ba3c, .*; did you mean ppo\?"),
        ("ppo --lr 1", r"did you mean --learning-rate\?"),
        ("ppo --total-timesteps 1e6", r"did you mean --agent-steps\?"),
        ("ppo --track", r"--track: there is no such option; did you mean --loggers\?"),
        ("ppo --device cuda", "--device: there is no such option; each worker takes a GPU by itself"),
        ("a2c --clip-range 1", "--clip-range: there is no such option for a2c; ba3c, ppo, appo, hts-ppo have it"),
        ("ppo --loggers wandb,mlflow", "--loggers wandb,mlflow: a comma does not .*; write --loggers wandb mlflow"),
        ("ppo --plugin a,b.py", "--plugin a,b.py: a comma does not separate modules; write --plugin a --plugin b.py"),
        ("ppo --preset latop", r"--preset latop: there is none of that name; did you mean laptop\?"),
        ("ppo --network natur", r"--network natur: must be one of .*; did you mean nature\?"),
        ("ppo --network=", r"--network \(nothing\): must be one of "),
        ("ppo --simulators 100000000", "--simulators 100000000: must be between 1 and 65536"),
        ("ppo --unroll-length 100000000", "--unroll-length 100000000: must be between 1 and 1000000"),
        ("impala --unroll-length 100000000", "--unroll-length 100000000: must be between 1 and 1000000"),
        ("ppo --seed 18446744073709551616", "--seed 18446744073709551616: must be a whole number between 0 and 1844"),
        ("ppo --seed=-1", "--seed -1: must be"),
        ("ppo --workers 1e9", "--workers 1000000000: must be between 1 and"),
        ("apex-dqn --actors 1e9", "--actors 1000000000: must be between 0 and"),
        ("apex-dqn --prefetch 1e12", "--prefetch 1000000000000: must be between 1 and 4096"),
        (
            "ppo --network mlp --hidden-layers 1e9",
            "--hidden-layers 1000000000: a hidden layer has at most 65536 neurons",
        ),
        ("sac --policy-layers 1e9", "--policy-layers .*: a hidden layer has at most 65536 neurons"),
        ("ppo --random-start-steps 1e15", "--random-start-steps 1000000000000000: must be between 0 and 1000000"),
        ("rainbow --atoms 1e9", "--atoms 1000000000: must be between 0 and 10000"),
        ("ppo --stall-seconds 1e300", "--stall-seconds 1e.300: must be between 0 and 100000000"),
        ("--algorithm ppo", "--algorithm: there is no such option; it stands without a name, as in `ddrl train ALGO"),
        ("--algo ppo --env pong", "--algo: there is no such option; it stands without a name"),
        ("ppo --hlep", r"--hlep: there is no such option; did you mean --help\?"),
    ],
)
def test_refusals_of_ddrl_train(line, message):
    with pytest.raises(UsageError, match=message):
        train_options.parse(line.split(), MACHINE)


def test_names_of_other_libraries_stand_for_options_that_are_there():
    kinds = {name: train_options.parse([name], MACHINE) for name in algorithms.names()}
    ours = {option.name for start in kinds.values() for option in command_line.options_of(type(start), start)}
    ours |= {option.name for option in command_line.options_of(PlanArguments)}
    assert set(other_libraries.OPTIONS.values()) <= ours
    assert not ours & set(other_libraries.OPTIONS), "a name of ours would be refused"


def test_the_largest_seed_is_taken():
    assert train_options.parse(["ppo", "--seed", str(checks.LARGEST_SEED)], MACHINE).config.run.seed == 2**64 - 1


@pytest.mark.parametrize(
    "line, message",
    [
        ("trian", "trian: no such command; did you mean train?"),
        ("bench rofline", "bench rofline: no such benchmark; did you mean roofline?"),
        ("study scalng", "study scalng: there is no study of that name; did you mean scaling?"),
        ("study scaling --qick", "--qick: there is no such option; did you mean --quick?"),
        ("evaluate run --gmes 3", "--gmes: there is no such option; did you mean --games?"),
        ("bench train --secnds 3", "--secnds: there is no such option; did you mean --seconds"),
        ("bench train ppo --lr 3", "--lr: there is no such option; did you mean --learning-rate?"),
        ("bench roofline --network natur", "--network natur: must be one of a3c, nature, ba3c, impala, mlp"),
        ("bench roofline --network natur", "or what a --plugin registers; did you mean nature?"),
        ("bench roofline --jsn -", "--jsn: there is no such option; did you mean --json"),
        ("bench networks --networks", "--networks (nothing): name one or more"),
        ("bench scaling --step-ms 20 nan", "--step-ms 20.0 nan: give one or more finite numbers above 0"),
        ("bench scaling --step-ms inf", "--step-ms inf: give one or more finite numbers above 0"),
        ("diff one", "ddrl: SECOND is missing (ddrl diff --help explains what to give)"),
        ("evaluate", "ddrl: RUN is missing (ddrl evaluate --help"),
        ("resume runs/pong", "resume: no such command; use `ddrl train --resume RUN` (see ddrl --help)"),
        ("plan --gpus 2", "--gpus: there is no such option; did you mean --gpus-per-node?"),
        ("evaluat", "evaluat: no such command; did you mean evaluate?"),
        ("--hlep", "--hlep: no such command; did you mean --help?"),
        ("export run --otput x", "--otput: there is no such option; did you mean --output?"),
        ("plan --nods 3", "--nods: there is no such option; did you mean --nodes? (ddrl plan --help"),
        ("plan ppo --lr 1", "--lr: there is no such option; did you mean --learning-rate? (ddrl plan --help"),
        ("plan ppo --print-config", "--print-config: only `ddrl train` prints settings; leave it out of `ddrl plan`"),
        ("logs run --no-follow", "--no-follow: there is no such option; did you mean --follow?"),
        ("plan --nodes 1e9", "--nodes 1000000000: must be between 1 and 100000"),
        ("doctor --timeut 3", "--timeut: there is no such option; did you mean --timeout? (ddrl doctor --help"),
        ("tune ppo --spce x", "--spce: there is no such option; did you mean --space? (ddrl tune --help"),
        ("plugins --plgin x", "--plgin: there is no such option; did you mean --plugin?"),
        ("study epsilon --quick --repeats 1e9 --list", "--repeats 1000000000: must be between 1 and 1000"),
    ],
)
def test_refusals_of_other_commands(line, message, capsys):
    try:
        assert cli.main(line.split()) == 2
    except SystemExit as end:
        assert end.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.slow
def test_names_of_games_that_are_nearly_right():
    from ddrl.envs import make_environment
    from ddrl.envs.game_names import unknown_game

    assert "did you mean CartPole-v" in str(unknown_game("CartPole"))
    assert "did you mean breakout?" in str(unknown_game("brakeout"))
    assert "did you mean pong?" in str(unknown_game("ALE/Pnog-v5"))
    assert "did you mean" not in str(unknown_game("xyzzyxyz"))
    with pytest.raises(UsageError, match="unknown game 'CartPole'; did you mean CartPole-v"):
        make_environment(EnvironmentConfig(game="CartPole"), 1)
