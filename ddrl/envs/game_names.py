"""The names of all games, and the Atari ROM that a user means by a name."""

from __future__ import annotations

from ddrl import checks, plugins
from ddrl.errors import UsageError
from ddrl.rom_names import SPELLING, of_game

# ROMs without a single-player mode: ALE registers no environment for them.
_TWO_PLAYERS_ONLY = {"combat", "joust", "maze_craze", "warlords"}
FOOTBALL = "football/"
_ACADEMY = (
    "3_vs_1_with_keeper",
    "corner",
    "counterattack_easy",
    "counterattack_hard",
    "empty_goal",
    "empty_goal_close",
    "pass_and_shoot_with_keeper",
    "run_pass_and_shoot_with_keeper",
    "run_to_score",
    "run_to_score_with_keeper",
    "single_goal_versus_lazy",
)
_WHOLE_GAMES = ("11_vs_11_easy_stochastic", "11_vs_11_stochastic", "11_vs_11_hard_stochastic")
_SCENARIOS = (*(f"academy_{name}" for name in _ACADEMY), *_WHOLE_GAMES)


def atari_games() -> list[str]:
    """ROM names in snake case, sorted."""
    from ale_py import ALEInterface, LoggerMode, roms

    ALEInterface.setLoggerMode(LoggerMode.Error)  # it prints a greeting on standard error in every process
    return sorted(set(roms.get_all_rom_ids()) - _TWO_PLAYERS_ONLY)


def gymnasium_games() -> list[str]:
    """Ids of the registered Gymnasium environments that are not Atari games, sorted."""
    import gymnasium

    import ddrl.envs.catch  # registers ddrl/Catch-v0 and ddrl/CatchPicture-v0
    import ddrl.envs.deep_sea  # noqa: F401  (registers ddrl/DeepSea-v0)

    atari = ("ale_py.env:", "ale_py.vector_env:", "shimmy.")
    specs = gymnasium.registry.values()
    return sorted(s.id for s in specs if not str(s.entry_point).startswith(atari) and s.namespace != "ALE")


def football_games() -> list[str]:
    """All academy scenarios of Google Research Football and the whole game at its three difficulties, sorted."""
    return sorted(FOOTBALL + name for name in _SCENARIOS)


def atari_rom(game: str) -> str | None:
    """The ROM that `game` means (breakout, Breakout, SpaceInvaders, ALE/Breakout-v5), or None.

    A name under which a plugin has registered an environment means that environment, and no ROM.
    """
    return of_game({rom: rom for rom in atari_games()}, game)


def unknown_game(game: str) -> UsageError:
    """The error for a game that is no ROM, no Gymnasium id, no scenario, and no plugin's, with the closest names."""
    match = SPELLING.match(game)
    close = checks.closest(game, [*atari_games(), *gymnasium_games(), *football_games(), *plugins.environments.names()])
    close = close or checks.closest(match.group(1) if match else game, atari_games())
    hint = f"did you mean {' or '.join(close)}? " if close else ""
    # The processes of a run do not import what the user's own program has imported.
    own = f"; your own needs its module, too (--game my_package:{game}), or the --plugin that registers it"
    of_user = ":" not in game and ("-v" in game or not close)
    return UsageError(f"unknown game {game!r}; {hint}`python -m ddrl.envs` lists them all{own if of_user else ''}")
