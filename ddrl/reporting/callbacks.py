"""Callbacks: code that is told what happens in a run, in a thread of its own, and never holds training up.

    chief: MetricsWriter.write --> CallbackThread.put --queue--> thread: Callback.on_metrics, on_evaluation, ...

`ddrl.train(callbacks=[...])` does the same in the process that called it, from the lines of metrics.jsonl.
"""

from __future__ import annotations

import inspect
import queue
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ddrl.config import TrainConfig
from ddrl.errors import UsageError, in_one_line
from ddrl.reporting.phases import STARTING, TRAINING
from ddrl.wording import counted

QUEUED = 1000
"""Most records that wait for the callbacks; further ones are dropped and counted."""
END_SECONDS = 30.0
"""Seconds that the callbacks have for waiting records and `on_end` when the run is over."""
OWN_EVENTS = ("callback_failed", "callbacks_behind")
"""Events about the callbacks, which are not passed to them."""

Record = Mapping[str, Any]


class RunContext(NamedTuple):
    """The run that a callback is made for.

    Attributes:
        config: all settings of the run.
        run_dir: the directory of the run.
        resumed: the run has begun before, and goes on from its newest checkpoint if there is one.
        lines: number of lines in its metrics.jsonl so far.
    """

    config: TrainConfig
    run_dir: Path
    resumed: bool = False
    lines: int = 0


class Callback:
    """Base class of callbacks: override the methods for what you want to hear of.

    Records are those of metrics.jsonl, and must not be changed.

    All methods run in one thread, one after the other, beside the training of the chief's process: long computations
    belong in a process of their own. An exception in a method becomes an event of the run (`callback_failed`), and
    training goes on.

    A method that returns False stops training, as the file RUN/stop does: a checkpoint is saved, and the run ends as
    "stopped", with a message that names the callback. After any other value, including None, training goes on. Training
    that is over cannot be stopped: during the final evaluation, False changes nothing.
    """

    def on_start(self) -> bool | None:
        """The run begins, or goes on. A callback that raises here is left out."""

    def on_metrics(self, record: Record) -> bool | None:
        """A line of training, every --log-every-seconds."""

    def on_evaluation(self, record: Record) -> bool | None:
        """An evaluation: mean, maximum, games, version, agent_steps, ..."""

    def on_checkpoint(self, record: Record) -> bool | None:
        """A checkpoint was written: update, path."""

    def on_event(self, record: Record) -> bool | None:
        """Anything else that happened: name, text, wall_seconds and what belongs to it."""

    def on_end(self, result: Record) -> None:
        """The run, or this part of it, is over: status, message, update, agent_steps, wall_seconds."""


CALLED_WITH = {
    name: list(inspect.signature(method).parameters)[1:]
    for name, method in vars(Callback).items()
    if name.startswith("on_")
}
"""The methods of a callback, and what each is called with."""


def check_callback(of: str, callback: Any) -> None:
    """Refuses an object that cannot be called as a callback is.

    Args:
        of: where it comes from, for errors.
        callback: any object; of a class, only the names of its methods are looked at.

    Raises:
        UsageError: it lacks a method, or a method does not take what it is called with.
    """
    kind = (callback if isinstance(callback, type) else type(callback)).__name__
    for name, arguments in CALLED_WITH.items():
        method = getattr(callback, name, None)
        if not callable(method):
            raise UsageError(f"{of}: {kind} has no method {name}: derive its class from ddrl.Callback")
        if isinstance(callback, type):
            continue
        try:
            inspect.signature(method).bind(*arguments)
        except TypeError as error:
            raise UsageError(f"{of}: {kind}.{name} is called with ({', '.join(arguments)}): {error}") from error
        except ValueError:  # a method of a library in C has no signature to look at
            pass


class Trouble(NamedTuple):
    """An event about callbacks."""

    name: str
    text: str
    fields: dict[str, Any]


class CallbackThread:
    """Calls callbacks one after the other. Used by one thread; only `close` waits.

    Args:
        callbacks: by name.
        stop: called in the thread, with the reason, whenever one of them returns False while the run trains.
        queued: most records that wait.
    """

    def __init__(
        self, callbacks: Mapping[str, Callback], stop: Callable[[str], None] = lambda why: None, queued: int = QUEUED
    ) -> None:
        self._callbacks, self._stop = dict(callbacks), stop
        self._trains = True  # as far as the callbacks have been told
        self._records: queue.Queue[tuple[str, tuple[Any, ...]]] = queue.Queue(queued)
        self._troubles: queue.SimpleQueue[Trouble] = queue.SimpleQueue()
        self._failures: dict[str, int] = {}
        self._dropped, self._told, self._closed = 0, 0, False
        self._thread = threading.Thread(target=self._run, name="callbacks", daemon=True)
        self._any = bool(callbacks)
        if callbacks:
            self._thread.start()

    def put(self, record: Record) -> None:
        """Hands a record to the callbacks, if there is room for it."""
        if not self._any or self._closed or record.get("name") in OWN_EVENTS:
            return
        try:
            self._records.put_nowait((_method(record), (record,)))
        except queue.Full:
            self._dropped += 1

    def troubles(self) -> list[Trouble]:
        """What went wrong since the last call: what callbacks raised, and how many records were dropped."""
        found = []
        while not self._troubles.empty():
            found.append(self._troubles.get())
        if self._dropped > self._told and not self._records.full():
            missed = counted(self._dropped - self._told, "record")
            text = f"callbacks could not keep up with training and missed {missed}"
            found.append(Trouble("callbacks_behind", text, {"dropped": self._dropped}))
            self._told = self._dropped
        return found

    def close(self, result: Record, seconds: float = END_SECONDS) -> list[Trouble]:
        """Has `on_end` called after all waiting records; returns what went wrong. Slower callbacks are abandoned.

        Args:
            result: how the run ended.
            seconds: to wait at most.
        """
        if not self._any or self._closed:
            return self.troubles()
        self._closed = True
        end = time.monotonic() + seconds
        try:
            self._records.put(("on_end", (result,)), timeout=seconds)
            self._thread.join(max(0.0, end - time.monotonic()))
        except queue.Full:
            pass
        late = [Trouble("callback_failed", f"callbacks did not end within {seconds:g} s and were abandoned", {})]
        return self.troubles() + (late if self._thread.is_alive() else [])

    def _run(self) -> None:
        for name, callback in list(self._callbacks.items()):
            if not self._call(name, callback, "on_start", ()):
                del self._callbacks[name]  # what has not begun cannot go on
        method = ""
        while method != "on_end":
            method, arguments = self._records.get()
            if phase := arguments[0].get("phase"):  # a new start of the run trains again
                self._trains = phase in (STARTING, TRAINING)
            self._trains = self._trains and method != "on_end"
            for name, callback in self._callbacks.items():
                self._call(name, callback, method, arguments)

    def _call(self, name: str, callback: Callback, method: str, arguments: tuple[Any, ...]) -> bool:
        """Calls a method of a callback; returns False if it raised."""
        try:
            answer = getattr(callback, method)(*arguments)
            if self._trains and isinstance(answer, (bool, np.bool_)) and not answer:  # NumPy compares to its own bools
                self._stop(f"{name}.{method} returned False")
        except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever a callback raises is not the run's end
            self._note(name, method, error)
            return False
        return True

    def _note(self, name: str, method: str, error: BaseException) -> None:
        """Reports the first, second, fourth, eighth, ... failure of a method, which may fail at every record."""
        place = f"{name}.{method}"
        count = self._failures[place] = self._failures.get(place, 0) + 1
        if count & (count - 1) == 0:
            text = f"{place}: {in_one_line(error)}" + (f" ({count} times)" if count > 1 else "")
            fields = {"callback": name, "times": count, "traceback": traceback.format_exc()}
            self._troubles.put(Trouble("callback_failed", text, fields))


def _method(record: Record) -> str:
    if record["kind"] == "event":
        return "on_checkpoint" if record["name"] == "checkpoint" else "on_event"
    return {"train": "on_metrics", "evaluation": "on_evaluation"}[record["kind"]]
