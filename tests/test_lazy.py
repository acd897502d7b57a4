"""TensorFlow comes without Keras, which comes when it is used, and with oneDNN; garbage is collected again then."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

PROGRAM = """
import gc, sys
import ddrl.learner
assert "tensorflow" not in sys.modules
ddrl.learner.tf.constant(1.0)
print("keras" in sys.modules, "matplotlib" in sys.modules, gc.isenabled())
print(ddrl.learner.tf.keras.layers.Dense(3)(ddrl.learner.tf.ones((1, 2))).shape)
"""


@pytest.mark.slow
def test_tensorflow_comes_without_keras_which_is_there_when_it_is_used():
    command = [sys.executable, "-c", PROGRAM]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120.0, check=False)
    assert (result.returncode, result.stdout.splitlines()) == (0, ["False False True", "(1, 3)"]), result.stderr


THREADS = """
import threading
from ddrl.lazy import tf
wrong = []

def use():
    try:
        tf.constant(1.0)
    except BaseException as error:
        wrong.append(error)

threads = [threading.Thread(target=use) for _ in range(4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(wrong)
"""


@pytest.mark.slow
def test_threads_that_come_at_once_wait_for_the_whole_of_it():
    command = [sys.executable, "-c", THREADS]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120.0, check=False)
    assert (result.returncode, result.stdout) == (0, "[]\n"), result.stderr


ONEDNN = """
from ddrl.lazy import tf
tf.constant(1.0)
from tensorflow.python.util._pywrap_util_port import IsMklEnabled
print(IsMklEnabled())
"""


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() != "x86_64", reason="left as TensorFlow has it")
@pytest.mark.parametrize("said, on", [(None, "True"), ("0", "False")])
def test_onednn_is_on_unless_the_environment_says_otherwise(said, on):
    environment = {name: value for name, value in os.environ.items() if name != "TF_ENABLE_ONEDNN_OPTS"}
    environment |= {} if said is None else {"TF_ENABLE_ONEDNN_OPTS": said}
    command = [sys.executable, "-c", ONEDNN]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120.0, check=False, env=environment)
    assert (result.returncode, result.stdout) == (0, f"{on}\n"), result.stderr
