"""`python -m ddrl.roles` whose metrics also say how often functions were traced in this rank."""

from __future__ import annotations

import sys

from ddrl.reporting.rank_metrics import RankMetrics
from ddrl.roles import __main__ as ranks
from ddrl.roles import main

TRACED: list = []


def count_traces() -> None:
    """Notes everything that traces, and adds a gauge to this rank's reports once there is something."""

    def noting(original):
        def init(self, *arguments, **options):
            original(self, *arguments, **options)
            TRACED.append(self)

        return init

    from ddrl.learner import Learner, Policy

    Learner.__init__, Policy.__init__ = noting(Learner.__init__), noting(Policy.__init__)
    original = RankMetrics.report

    def report(self):
        if TRACED:
            self.gauge(f"traces_{self.role}_{self.index}", sum(x.trace_count for x in TRACED))
        return original(self)

    RankMetrics.report = report


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
