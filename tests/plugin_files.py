"""What tests of plugins share."""

from __future__ import annotations

from pathlib import Path

from ddrl.options import train_options
from ddrl.types import Machine

FILE = Path(__file__).parent / "of_users" / "reinforce.py"
MACHINE = Machine(2, 16 * 10**9)
REGISTERS = "from ddrl.plugins import register_network\nregister_network({name!r}, print)\n"


def written(directory: Path, name: str, text: str) -> str:
    (directory / name).write_text(text)
    return str(directory / name)


def parse(*words: str) -> train_options.TrainArguments:
    return train_options.parse(words, MACHINE)
