"""`python -m ddrl.roles` whose metrics also say how many functions were traced in this rank."""

from __future__ import annotations

import sys

from ddrl.reporting.rank_metrics import RankMetrics
from ddrl.roles import __main__ as ranks
from ddrl.roles import main

TRACED: list = []


def count_traces() -> None:
    """Notes everything that is traced, and adds a gauge to this rank's reports once there is something."""
    from ddrl.graph import Graph

    original_init, original_report = Graph.__init__, RankMetrics.report

    def init(self, *arguments):
        original_init(self, *arguments)
        TRACED.append(self)

    def report(self):
        if TRACED:
            self.gauge(f"traces_{self.role}_{self.index}", len(TRACED))
        return original_report(self)

    Graph.__init__, RankMetrics.report = init, report


def count_where_tensorflow_is(original):
    """Wraps what makes the roles of a rank: a server has no TensorFlow, and gets none from here."""

    def counted(context, transport, assignments, *arguments):
        if assignments[transport.rank].role != "parameter_server":
            count_traces()
        return original(context, transport, assignments, *arguments)

    return counted


if __name__ == "__main__":
    main._roles_of_rank = count_where_tensorflow_is(main._roles_of_rank)
    sys.exit(ranks.main())
