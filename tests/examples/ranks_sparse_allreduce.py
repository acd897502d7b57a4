"""tests/parallel/ranks_exchange.py with the exchange of examples/sparse_allreduce.py."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from tests.parallel import ranks_exchange

if __name__ == "__main__":
    sys.path.append(str(Path(__file__).parents[2] / "examples"))
    importlib.import_module("sparse_allreduce")  # which registers it
    ranks_exchange.main()
