"""`python -m ddrl.envs`: the names of all games."""

from __future__ import annotations

from ddrl.envs.games import atari_games, football_games, gymnasium_games

print("Atari:", *atari_games())
print("Gymnasium:", *gymnasium_games())
print("Football, with the extra `football`:", *football_games())
