"""Options that nothing in a run reads: one line for each that was chosen, and none for what presets set."""

from __future__ import annotations

import pytest

from ddrl import algorithms
from ddrl.options import train_options
from ddrl.options.named_settings import as_yaml
from ddrl.options.unread import READ_BY, unread
from ddrl.types import Continuous, Discrete, Machine

MACHINE = Machine(2, 16 * 10**9)
ROWS = [  # a run that does not read it, the option, a run that reads it
    ("ppo --preset smoke", "--protocol machado18", "ppo"),
    ("ppo --preset smoke --game football/academy_corner --football-view pixels", "--simulator-processes 2",
     "ppo --preset smoke --game football/academy_corner"),
    ("ppo", "--fc-neurons 64", "ppo --network ba3c"),
    ("ppo --preset smoke", "--compute-dtype bfloat16", "ppo"),
    ("ba3c --schedule synchronized --batch-size 160", "--groups 4", "ba3c"),
    ("appo", "--refresh-every-steps 300", "appo --unroll-length 512"),
    ("ppo --preset smoke", "--simulator-threads 3", "ppo"),
    ("apex-dqn", "--queue-batches 4", "ba3c"),
    ("ppo", "--discount-start-share 0.2", "ppo --discount-start 0.9"),
    ("ppo", "--entropy-cost-start-share 0.2", "ppo --entropy-cost-start 0.1"),
    ("ppo --entropy-cost 0", "--entropy-cost-schedule linear", "ppo"),
    ("ba3c --clip-range 0.1", "--log-epsilon 1e-5", "ba3c"),
    ("ba3c", "--pool-batches 4", "ba3c --epochs 2"),
    ("dqn", "--value-min -5", "categorical-dqn"),
    ("categorical-dqn", "--loss squared", "dqn"),
    ("dqn --preset laptop", "--epsilon-start 0.5", "dqn"),
    ("dqn --simulators 1", "--epsilon-ladder 2", "dqn"),
    ("dqn", "--importance-exponent 0.5", "rainbow"),
    ("dqn", "--importance-agent-steps 1e6", "rainbow"),
    ("rainbow", "--importance-updates 1e5", "rainbow --importance-agent-steps 0"),
    ("a2c", "--adam-epsilon 1e-8", "ppo"),  # which is the preset's, too
    ("ppo", "--rmsprop-decay 0.9", "a2c"),
    ("a2c", "--learning-rate-end 1e-5", "ppo"),
    ("a2c", "--learning-rate-agent-steps 1e6", "a2c --entropy-cost-schedule linear"),
    ("ppo", "--learning-rate-updates 1000", "ppo --learning-rate-agent-steps 0"),
    ("a3c", "--updates synchronous", "ba3c"),
    ("ba3c", "--store-chunks 5", "a3c"),
    ("ppo", "--quorum 1", "ba3c"),
    ("ppo", "--on-worker-loss restart", "ba3c"),
    ("ppo --no-evaluator", "--eval-games 5", "ppo"),
    ("ppo --eval-time-share 0", "--eval-every-updates 7", "ppo"),
    ("ppo --reset-at-checkpoint --checkpoint-every-updates 5", "--checkpoint-every-minutes 1", "ppo"),
]  # fmt: skip


def told(line: str) -> list[str]:
    arguments = train_options.parse(line.split(), MACHINE)
    return unread(arguments.config, arguments.chosen)


@pytest.mark.parametrize("vain, option, heeded", ROWS)
def test_an_option_that_nothing_reads_is_told_of(vain, option, heeded):
    (line,) = told(f"{vain} {option}")
    assert line.startswith(f"{option.split()[0]} ") and " does nothing in this run: only " in line and "\n" not in line
    assert told(f"{heeded} {option}") == []


def test_every_row_of_the_table_is_tried():
    tried = {option.split()[0].removeprefix("--").replace("-", "_") for _, option, _ in ROWS}
    assert [names for names, _, _ in READ_BY if not tried & set(names.split())] == []


@pytest.mark.parametrize("name", list(algorithms.names()))
def test_presets_and_their_files_are_told_of_only_where_they_were_changed(name, tmp_path):
    file = tmp_path / "settings.yaml"
    for preset in algorithms.names()[name].presets:
        config = train_options.parse([name, "--preset", preset], MACHINE).config
        file.write_text(as_yaml(config, name, preset, []))
        assert train_options.parse(["--config", str(file)], MACHINE).chosen == ()
        changed = config.changed(optimizer={"adam_epsilon": 0.5, "rmsprop_epsilon": 0.5})
        file.write_text(as_yaml(changed, name, preset, []))
        assert len(told(f"--config {file}")) == 1, "one of the two is read"


def test_settings_from_python_are_chosen():
    arguments = train_options.settings_of("a2c", None, MACHINE, adam_epsilon=1e-8)
    assert unread(arguments.config, arguments.chosen) == [
        "--adam-epsilon 1e-8 does nothing in this run: only --optimizer adam uses it"
    ]


def test_a_switch_is_told_of_as_it_is_typed():
    (line,) = told("ppo --rmsprop-epsilon-inside")
    assert line.startswith("--rmsprop-epsilon-inside does nothing in this run: only ")


def test_continuous_actions_are_never_random_in_evaluations():
    config = train_options.parse(["ppo", "--preset", "smoke", "--eval-epsilon", "0.1"], MACHINE).config
    (line,) = unread(config, ["eval_epsilon"], Continuous((-1.0,), (1.0,)))
    assert line == "--eval-epsilon 0.1 does nothing in this run: only a game with discrete actions uses it"
    assert unread(config, ["eval_epsilon"], Discrete(2)) == []
