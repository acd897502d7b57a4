"""Files of a replay shard: a few for parts of its pool, written only if these have changed, and one for the rest."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ddrl.apex.transition_pool import TransitionPool
from ddrl.replay import storage
from ddrl.replay.replay import KEPT_SAVES

FORMAT = 1


class ShardFiles:
    """Saves and loads a replay shard; remembers what the last saves wrote, and where."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Forgets the last saves, so that the next one writes everything."""
        self._directory: Path | None = None
        self._saves: list[dict[str, Any]] = []

    def save(
        self,
        directory: Path,
        facts: dict[str, Any],
        pool: TransitionPool,
        rest: Sequence[np.ndarray],
        named: storage.Named,
        working: Callable[[], object] = lambda: None,
    ) -> dict[str, np.ndarray]:
        """Writes the changed parts of the pool and clears their marks; returns the manifest.

        Args:
            directory: made if it is not there.
            facts: facts for the manifest, as types that JSON has.
            pool: of the transitions.
            rest: arrays that are written as a whole.
            named: gives the names of the files that checkpoints on disk need.
            working: called again and again while files are written.

        Raises:
            UsageError: the files cannot be written; those of earlier saves are as they were.
        """
        earlier = self._saves if self._directory == directory else []
        previous = {entry["part"]: entry for entry in earlier[-1]["parts"]} if earlier else {}
        with storage.new_save(directory) as number:
            entries = [
                _write_part(directory, number, pool, part, previous, working) for part in range(len(pool.changed))
            ]
            facts = {**facts, "version": FORMAT, "parts": [entry for entry in entries if entry["bytes"]]}
            facts["rest"] = storage.write(directory, f"replay-{number:06d}-weights.bin", rest, working)
            saves = [*earlier, facts][-KEPT_SAVES:]
            needed = {entry["name"] for save in saves for entry in storage.entries_of(save)}
            storage.finish(directory, needed, named)
        self._directory, self._saves = directory, saves
        pool.changed[:] = False
        return {"replay": np.frombuffer(json.dumps(facts).encode(), np.uint8)}

    def facts(self, manifest: dict[str, np.ndarray], kind: dict[str, Any]) -> dict[str, Any]:
        """The facts of a manifest, once it is checked that their `kind` is that of this replay.

        Args:
            manifest: what `save` returned.
            kind: facts in which a saved replay must agree with this one.

        Raises:
            UsageError: the saved replay is of another kind.
        """
        facts = storage.facts_in(manifest["replay"])
        storage.check_same({"version": facts.get("version")} | facts.get("kind", {}), {"version": FORMAT} | kind)
        return facts

    def load(self, directory: Path, facts: dict[str, Any], pool: TransitionPool, rest: Sequence[np.ndarray]) -> None:
        """Fills the pool and the arrays of the rest.

        Args:
            directory: the one to which `save` wrote.
            facts: those of the manifest.
            pool: the pool to fill; its `used` must be as it was at the save.
            rest: C-contiguous arrays to fill.

        Raises:
            UsageError: a file is missing or damaged.
            ValueError: the manifest does not have a file for each part.
        """
        filled = [part for part in range(len(pool.changed)) if any(array.size for array in pool.part(part))]
        if [entry["part"] for entry in facts["parts"]] != filled:
            raise ValueError(f"files of parts {[entry['part'] for entry in facts['parts']]!s:.40}, not {filled}")
        storage.read(directory, facts["rest"], rest)
        for entry in facts["parts"]:
            storage.read(directory, entry, pool.part(entry["part"]))
        self._directory, self._saves = directory, [facts]


def _write_part(
    directory: Path,
    number: int,
    pool: TransitionPool,
    part: int,
    previous: dict[int, dict[str, Any]],
    working: Callable[[], object],
) -> dict[str, Any]:
    """The entry of a part, which is written unless it is empty (0 bytes) or as it was at the last save."""
    if not pool.changed[part] and part in previous and storage.is_there(directory, previous[part]):
        return previous[part]
    arrays = pool.part(part)
    if not any(array.size for array in arrays):
        return {"bytes": 0}
    return {"part": part, **storage.write(directory, f"replay-{number:06d}-rows-{part:02d}.bin", arrays, working)}
