"""`python -m ddrl.envs`: the names of all games."""

from __future__ import annotations

import sys

from ddrl import programs
from ddrl.envs.envpool_games import envpool_games
from ddrl.envs.game_names import atari_games, football_games, gymnasium_games


def main() -> None:
    """Prints the names of all games, a line for each kind."""
    print("Atari:", *atari_games())
    print("Gymnasium:", *gymnasium_games())
    print("Football, with the extra `football`:", *football_games())
    print("With --backend envpool and the extra `envpool`: Atari,", *envpool_games())


if __name__ == "__main__":
    sys.exit(programs.run(main))
