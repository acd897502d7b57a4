"""Expressions of what is searched: what they mean, and what is refused in one line."""

from __future__ import annotations

import pytest

from ddrl.config import TrainConfig
from ddrl.errors import UsageError
from ddrl.options.command_line import options_of
from ddrl.options.train_options import parse
from ddrl.tuning.space import check, read_space, settings_of
from ddrl.types import Machine

MACHINE = Machine(2, 16 * 10**9)


def base(*words: str) -> TrainConfig:
    return parse(list(words or ("ppo", "--preset", "smoke")), MACHINE).config


def space(*texts: str, config: TrainConfig | None = None):
    return read_space(texts, list(options_of(TrainConfig, config or base())))


def test_values():
    epsilon, batch, clip = space(
        "adam-epsilon=log(1e-9, 1e-2)", "batch_size=choice(1e2,32)", "clip-range=uniform(0.1,1)"
    )
    assert (epsilon.kind, epsilon.values(), epsilon.whole) == ("log", (1e-9, 1e-2), False)
    assert (batch.name, batch.values(), batch.value("1e2")) == ("batch-size", (100, 32), 100)
    assert (clip.values(), clip.value(0.5)) == ((0.1, 1.0), 0.5)
    assert space("epochs=log(1,8)")[0].whole and space("epochs=uniform(1,1e1)")[0].values() == (1, 10)


def test_choices_of_every_type():
    config = base("dpg", "--preset", "smoke")
    texts = (
        "policy-layers=choice(64 64, 32)",
        "compute-dtype=choice(float32,bfloat16)",
        "eviction-exponent=choice(None)",
    )
    layers, dtype, exponent = space(*texts, config=config)
    assert layers.values() == ((64, 64), (32,)) and dtype.values() == ("float32", "bfloat16")
    assert exponent.values() == (None,)
    assert space("normalize-advantages=choice(true,false)")[0].values() == (True, False)
    (options,) = space("game-options=choice(size=6 max_episode_steps=4, size=7)")
    assert options.values() == (("size=6", "max_episode_steps=4"), ("size=7",))


def test_settings_of_a_trial():
    dimensions = space("adam-epsilon=log(1e-9,1e-2)", "batch-size=choice(16,32)")
    config = settings_of(base(), dimensions, {"adam-epsilon": 1e-5, "batch-size": "16"})
    assert config == base().changed(optimizer={"adam_epsilon": 1e-5, "batch_size": 16})


@pytest.mark.parametrize(
    "texts, message",
    [
        (("adam-epsilon",), "--space adam-epsilon: write it as"),
        (("adam-epsilon=log(1e-9,1e-2",), "write it as"),
        (("adam-epsilon=lg(1e-9,1e-2)",), r"lg is none of log, uniform, choice; did you mean log\?"),
        (("adam-epsilom=log(1e-9,1e-2)",), r"--space adam-epsilom: .*; did you mean adam-epsilon\?"),
        (("lr=log(1e-9,1e-2)",), r"--space lr: .*; did you mean learning-rate\?"),
        (("seed=choice(1,2)",), "--space seed: there is no such setting of learning"),
        (("adam-epsilon=log(0,1)",), "log takes no number of 0 or below"),
        (("adam-epsilon=log(1,0.1)",), "the first number must be below the second"),
        (("adam-epsilon=log(1,2,3)",), "log takes two numbers"),
        (("adam-epsilon=log(1,inf)",), "log takes two numbers"),
        (("adam-epsilon=log(a,b)",), "must be a number"),
        (("network=log(a3c,nature)",), "log takes two numbers; for other values, use choice"),
        (("compute-dtype=choice(float32,bfloat1)",), r"did you mean bfloat16\?"),
        (("batch-size=choice(16,1.6e1)",), "give every choice once"),
        (("batch-size=choice(16)", "batch_size=choice(32)"), "--space batch-size: it is given twice"),
        (("adam-epsilon=log(__import__('os').getpid(),1)",), "log takes two numbers|must be a number|write it as"),
    ],
)
def test_refusals(texts, message):
    with pytest.raises(UsageError, match=message):
        space(*texts)


def test_a_value_that_goes_with_no_other_is_refused_before_the_first_trial():
    config = base()
    check(config, space("batch-size=choice(32,64)"))
    with pytest.raises(UsageError, match=r"--space batch-size=7: --batch-size 7: does not divide"):
        check(config, space("batch-size=choice(32,7)"))
    with pytest.raises(UsageError, match=r"--space beta1=1.5: --beta1 1.5"):
        check(config, space("beta1=uniform(0.5,1.5)"))


def test_a_setting_that_no_trial_reads_is_refused():
    decay, optimizer = "rmsprop-decay=uniform(0.5,0.9)", "optimizer=choice(adam,rmsprop,sgd)"
    with pytest.raises(UsageError, match="--space rmsprop-decay: no trial would use it; only --optimizer rmsprop or"):
        check(base(), space(decay))
    with pytest.raises(UsageError, match="--space fc-neurons: no trial would use it; only --network ba3c does"):
        check(base(), space("fc-neurons=choice(64,256)"))
    assert check(base(), space(decay, optimizer)), "some trials do"
