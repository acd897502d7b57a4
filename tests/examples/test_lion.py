"""Lion and a cosine as a plugin: its options and refusals, its rates, and whole runs on one server and on two."""

from __future__ import annotations

import numpy as np
import pytest

from ddrl.errors import UsageError
from ddrl.exchange.learning_rates import rate_of
from ddrl.exchange.optimizers import make_optimizer
from ddrl.exchange.settings import OptimizerConfig
from ddrl.options import train_help, train_options, unread
from ddrl.resumable import check_resumable
from ddrl.types import Machine
from tests.documents import pages
from tests.examples.conftest import EXAMPLES
from tests.parallel.support import EXACT, differences, events, finish, forked_light_train, needs_mpirun, newest

FILE = EXAMPLES / "lion.py"
LION = ("--plugin", str(FILE), "--optimizer", "lion:weight_decay=0.01", "--learning-rate-schedule", "cosine")


def parse(*words):
    return train_options.parse(["ppo", "--preset", "smoke", *words], Machine(2, 16 * 10**9))


def test_the_page_shows_the_whole_file():
    assert FILE.read_text() in pages.blocks(pages.ROOT / "docs/extending.md", "python")


def test_options_of_its_own_are_read_from_the_command_line_and_others_do_nothing():
    arguments = parse(*LION, "--beta1", "0.5", "--learning-rate-end", "1e-4", "--learning-rate-updates", "50")
    config = arguments.config.optimizer
    optimizer, theta = make_optimizer(config, 2), np.float32([1.0, -2.0])
    optimizer.apply(theta, np.float32([3.0, 0.0]), 0.5)
    np.testing.assert_allclose(theta, [1.0 - 0.5 * 1.01, -2.0 + 0.5 * 0.02], rtol=1e-6)
    np.testing.assert_allclose(optimizer.slots["momentum"], [0.03, 0.0], rtol=1e-6)
    told = unread.unread(arguments.config, arguments.chosen)
    assert told == ["--beta1 0.5 does nothing in this run: only --optimizer adam uses it"]


def test_the_rate_follows_the_cosine_after_a_warm_up(example):
    example("lion")
    config = OptimizerConfig(
        learning_rate=1.0,
        learning_rate_schedule="cosine",
        learning_rate_end=0.2,
        learning_rate_updates=100,
        warmup_updates=10,
    )
    rates = [rate_of(config, 32)(version) for version in (0, 50, 100, 500)]
    assert rates == pytest.approx([0.1, 0.6, 0.2, 0.2])


def test_a_resumed_run_keeps_the_optimizer_and_may_have_another_schedule():
    before = parse(*LION).config
    check_resumable(before, parse(*LION[:4], "--learning-rate-schedule", "linear").config)
    with pytest.raises(UsageError, match="--optimizer adam: the run to resume has lion:weight_decay=0.01"):
        check_resumable(before, parse(*LION[:2], "--optimizer", "adam").config)


def test_help_says_how_to_name_them():
    start = parse(*LION)
    page = " ".join(train_help.text("ppo", start, Machine(2, 16 * 10**9), whole=False).split())
    assert "sgd, or one that a --plugin registers" in page and "constant, linear, or as a --plugin says" in page
    assert "[lion:weight_decay=0.01" in page and "[cosine" in page


@needs_mpirun
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_two_servers_and_a_resume_equal_one_server_to_the_bit(tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    finish(whole, *EXACT, *LION, "--parameter-servers", "1", start=forked_light_train)
    two = ("--parameter-servers", "2", "--max-updates", "20")
    finish(parts, *EXACT, *LION, *two, start=forked_light_train)
    finish(parts, "--resume", str(parts), "--max-updates", "40", start=forked_light_train)
    assert events(parts, "resumed")[0]["update"] == 20 and newest(whole).version == 40
    assert set(newest(whole).slots) == {"momentum"}
    assert list(differences(newest(parts), newest(whole))) == []
