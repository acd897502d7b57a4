"""Callbacks in their thread: order, failures, a full queue, and an end that waits no longer than it may."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from ddrl import plugins
from ddrl.config import RunConfig
from ddrl.errors import UsageError
from ddrl.reporting.callbacks import Callback, CallbackThread, RunContext
from ddrl.reporting.loggers import check_names, make_callbacks, start_callbacks
from ddrl.reporting.metrics import MetricsWriter
from ddrl.reporting.phases import PHASES
from ddrl.reporting.tensorboard import TensorBoard


class Kept(Callback):
    def __init__(self):
        self.kept = []

    def on_start(self):
        self.kept.append("start")

    def on_metrics(self, record):
        self.kept.append(record["update"])

    def on_checkpoint(self, record):
        self.kept.append(record["path"])

    def on_event(self, record):
        self.kept.append(record["name"])

    def on_evaluation(self, record):
        self.kept.append(record["mean"])

    def on_end(self, result):
        self.kept.append(result["status"])


class Failing(Callback):
    """Fails in the methods that it is given."""

    def __init__(self, *methods):
        self.calls = 0
        for method in methods:
            setattr(self, method, self._fail)

    def _fail(self, *arguments):
        self.calls += 1
        raise SystemExit("gone") if self.calls > 2 else ValueError(f"failure {self.calls}")


class Held(Callback):
    """Takes records only when it is told to; `has` says that the first one is in its hands."""

    def __init__(self):
        self.has, self.go = threading.Event(), threading.Event()
        self.kept = []

    def on_metrics(self, record):
        self.has.set()
        self.go.wait(60.0)
        self.kept.append(record["update"])


class Answering(Callback):
    """Has one answer to all."""

    def __init__(self, answer):
        for method in ("on_start", "on_metrics", "on_evaluation", "on_checkpoint", "on_event", "on_end"):
            setattr(self, method, lambda *arguments: answer)


def train(update):
    return {"kind": "train", "update": update}


def event(name, **fields):
    return {"kind": "event", "name": name, "text": "", **fields}


def test_each_record_has_its_method_and_the_order_stays():
    kept = Kept()
    thread = CallbackThread({"kept": kept})
    evaluation = {"kind": "evaluation", "mean": 1.5}
    for record in (train(1), event("resumed"), event("checkpoint", path="x.npz"), evaluation, train(2)):
        thread.put(record)
    assert thread.close({"status": "stopped"}) == []
    assert kept.kept == ["start", 1, "resumed", "x.npz", 1.5, 2, "stopped"]
    thread.put(train(3))
    assert thread.close({"status": "again"}) == [] and kept.kept[-1] == "stopped", "one end"


def test_what_one_raises_is_told_and_the_others_go_on():
    kept, failing = Kept(), Failing("on_metrics", "on_end")
    thread = CallbackThread({"failing": failing, "kept": kept})
    for update in range(9):
        thread.put(train(update))
    troubles = thread.close({"status": "finished"})
    texts = [trouble.text for trouble in troubles]
    assert texts[0] == "failing.on_metrics: ValueError: failure 1"
    assert [trouble.fields["times"] for trouble in troubles] == [1, 2, 4, 8, 1], "not one for each line"
    assert texts[-1] == "failing.on_end: SystemExit: gone"
    assert "raise SystemExit" in troubles[-1].fields["traceback"]
    assert kept.kept == ["start", *range(9), "finished"]


@pytest.mark.parametrize("answer", [False, np.False_], ids=["False", "NumPy's"])
def test_false_of_any_method_but_the_last_asks_for_a_stop_in_the_name_of_the_callback(answer):
    asked = []
    thread = CallbackThread({"mine": Answering(answer), "kept": Kept()}, asked.append)
    evaluation = {"kind": "evaluation", "mean": 1.5}
    for record in (train(1), evaluation, event("checkpoint", path="x.npz"), event("resumed")):
        thread.put(record)
    assert thread.close({"status": "stopped"}) == []
    methods = ("on_start", "on_metrics", "on_evaluation", "on_checkpoint", "on_event")
    assert asked == [f"mine.{method} returned False" for method in methods]


@pytest.mark.parametrize("answer", [None, True, 0, "", np.True_, np.zeros(2)], ids=repr)
def test_any_other_answer_goes_on(answer):
    asked = []
    thread = CallbackThread({"mine": Answering(answer)}, asked.append)
    thread.put(train(1))
    assert thread.close({"status": "finished"}) == [] and asked == []


def test_a_final_evaluation_is_not_ended_and_a_new_start_trains_again():
    asked = []
    thread = CallbackThread({"mine": Answering(False)}, asked.append)
    for phase in PHASES:
        thread.put(event("phase", phase=phase))
        thread.put(train(1) | {"phase": phase})
    thread.put({"kind": "evaluation", "mean": 1.5})
    before = ["on_start", "on_event", "on_metrics", "on_event", "on_metrics"]
    thread.put(train(2) | {"phase": PHASES[0]})
    assert thread.close({"status": "finished"}) == []
    assert asked == [f"mine.{method} returned False" for method in [*before, "on_metrics"]]


def test_a_stop_that_cannot_be_asked_for_is_told():
    def full(why):
        raise OSError(28, "No space left on device")

    thread = CallbackThread({"mine": Answering(False)}, full)
    (trouble,) = thread.close({"status": "finished"})
    assert trouble.text == "mine.on_start: OSError: [Errno 28] No space left on device"


def test_one_that_does_not_start_is_left_out():
    failing = Failing("on_start", "on_metrics", "on_end")
    thread = CallbackThread({"failing": failing})
    thread.put(train(1))
    assert [trouble.text for trouble in thread.close({"status": "finished"})] == [
        "failing.on_start: ValueError: failure 1"
    ]
    assert failing.calls == 1


def test_they_are_not_told_of_themselves():
    failing = Failing("on_event")
    thread = CallbackThread({"failing": failing})
    for name in ("worker_lost", "callback_failed", "callbacks_behind"):
        thread.put(event(name))
    assert len(thread.close({"status": "finished"})) == failing.calls == 1


def test_a_full_queue_drops_and_counts():
    held = Held()
    thread = CallbackThread({"held": held}, queued=3)
    thread.put(train(0))
    assert held.has.wait(60.0)
    for update in range(1, 6):
        thread.put(train(update))
    assert thread.troubles() == [], "told when there is room again"
    held.go.set()
    troubles = thread.close({"status": "finished"})
    assert held.kept == [0, 1, 2, 3], "one was in its hands, and three waited"
    assert troubles[0].name == "callbacks_behind" and troubles[0].fields["dropped"] == 2


def test_an_end_does_not_wait_for_ever():
    held = Held()
    thread = CallbackThread({"held": held}, queued=1)
    thread.put(train(0))
    assert held.has.wait(60.0)
    for update in range(1, 3):
        thread.put(train(update))
    (trouble, *_) = [each for each in thread.close({"status": "finished"}, 0.2) if each.name == "callback_failed"]
    assert trouble.text == "callbacks did not end within 0.2 s and were abandoned"
    held.go.set()


def test_none_is_no_thread():
    before = set(threading.enumerate())  # not their number: one of another test may end meanwhile
    thread = CallbackThread({})
    thread.put(train(1))
    assert set(threading.enumerate()) <= before and thread.close({"status": "finished"}) == []


@pytest.fixture
def mine(monkeypatch):
    """A callback of a plugin."""
    monkeypatch.setattr(plugins, "callbacks", plugins.Registry("callback"))
    plugins.register_callback("mine", lambda context: Kept())


def test_names_are_made_into_callbacks(mine, tmp_path):
    config = type("Config", (), {"run": RunConfig(loggers=("tensorboard",), callbacks=("mine",))})
    made = make_callbacks(RunContext(config, tmp_path))
    assert [type(each) for each in made.values()] == [TensorBoard, Kept]


def test_options_of_callbacks_and_loggers_are_arguments_of_their_functions(mine, tmp_path):
    given = []
    for register in (plugins.register_callback, plugins.register_logger):
        register("own", lambda context, **options: given.append(options) or Kept())
    run = RunConfig(loggers=("own:name=a-b",), callbacks=("own:patience=5,least=-0.5,greedy=True", "mine"))
    made = make_callbacks(RunContext(type("Config", (), {"run": run}), tmp_path))
    assert given == [{"name": "a-b"}, {"patience": 5, "least": -0.5, "greedy": True}]
    assert list(made) == ["own:name=a-b", "callback own:patience=5,least=-0.5,greedy=True", "callback mine"]
    with pytest.raises(UsageError, match="--callbacks own:5: it is not KEY=VALUE; write own:KEY=VALUE,KEY=VALUE"):
        check_names([], ["own:5"])
    with pytest.raises(UsageError, match="--loggers own:name=b: name is there twice; give it once"):
        check_names(["own:name=a,name=b"], [])


class Checks(Callback):
    def check(self):
        """A user's own method, which nobody calls."""
        raise AssertionError

    def __init__(self, context):
        self.context = context


def test_a_callback_may_have_a_method_of_any_other_name_and_one_that_cannot_be_made_is_named(mine, tmp_path):
    plugins.register_callback("checks", Checks)
    plugins.register_callback("fails", lambda context: context.nothing)
    config = lambda *names: type("Config", (), {"run": RunConfig(loggers=(), callbacks=names)})
    (made,) = make_callbacks(RunContext(config("checks"), tmp_path)).values()
    assert type(made) is Checks
    with pytest.raises(UsageError, match="^--callbacks fails cannot be made: AttributeError: .*nothing.*fix it$"):
        make_callbacks(RunContext(config("fails"), tmp_path))


class Recorded(Callback):
    def on_start(self, record):
        """What begins has no record."""


class Bare:
    def on_start(self):
        """The only method."""


@pytest.mark.parametrize(
    "made, message",
    [
        (Bare(), "Bare has no method on_metrics: derive its class from ddrl.Callback"),
        (None, "NoneType has no method on_start: derive its class from ddrl.Callback"),
        (Recorded(), r"Recorded.on_start is called with \(\): missing a required argument: 'record'"),
    ],
)
def test_what_cannot_be_called_as_a_callback_is_refused(mine, tmp_path, made, message):
    plugins.register_callback("made", lambda context: made)
    config = type("Config", (), {"run": RunConfig(loggers=(), callbacks=("made",))})
    with pytest.raises(UsageError, match=f"^--callbacks made: {message}$"):
        make_callbacks(RunContext(config, tmp_path))


def test_a_class_that_is_no_callback_is_refused_before_it_makes_anything(mine):
    plugins.register_callback("bare", Bare)
    with pytest.raises(UsageError, match="^--callbacks bare: Bare has no method on_metrics: derive its class from"):
        check_names([], ["bare"])


def test_new_starts_that_no_chief_could_tell_of_are_told_first(monkeypatch, tmp_path):
    kept = Kept()
    monkeypatch.setattr(plugins, "callbacks", plugins.Registry("callback"))
    plugins.register_callback("mine", lambda context: kept)
    writer = MetricsWriter(tmp_path)
    for name in ("restarted", "worker_lost", "restarted", "restarted"):
        writer.event(name, "...", 1.0)
    writer.close()
    config = type("Config", (), {"run": RunConfig(loggers=(), callbacks=("mine",))})
    thread = start_callbacks(RunContext(config, tmp_path))
    thread.put(event("resumed"))
    thread.close({"status": "finished"})
    assert kept.kept == ["start", "restarted", "restarted", "resumed", "finished"]


def test_names_that_nobody_has_registered_are_refused(mine):
    with pytest.raises(UsageError, match="--loggers aim is not registered; choose one of tensorboard, wandb, mlf"):
        check_names(["aim"], [])
    with pytest.raises(UsageError, match="--callbacks other is not registered; choose one of mine"):
        check_names([], ["mine", "other"])
