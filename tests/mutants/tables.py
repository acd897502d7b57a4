"""All mutants."""

from __future__ import annotations

from tests.mutants import (
    table_acting,
    table_board,
    table_exchange,
    table_exploration,
    table_extending,
    table_losses,
    table_ops,
    table_optimizers,
    table_presets,
    table_refusals,
    table_replay,
    table_schedules,
    table_shards,
    table_slurm,
    table_state,
    table_studies,
)
from tests.mutants.mutant import Mutant

_TABLES = (
    table_ops,
    table_losses,
    table_acting,
    table_exploration,
    table_replay,
    table_shards,
    table_slurm,
    table_exchange,
    table_refusals,
    table_optimizers,
    table_schedules,
    table_state,
    table_presets,
    table_extending,
    table_board,
    table_studies,
)

MUTANTS: tuple[Mutant, ...] = tuple(mutant for table in _TABLES for mutant in table.MUTANTS)
