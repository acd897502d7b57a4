"""The role of a server that others die beside while the job begins."""

from __future__ import annotations

from cluster.roles import Sizes, assign_roles
from ddrl.exchange.transport import PeerLost
from ddrl.job.layout import JobContext, JobLayout
from ddrl.job.role import Topic, json_blob
from ddrl.roles.server import ServerRole
from tests.roles.chief_play import Sent
from tests.test_combinations import config_of


def test_a_worker_that_dies_before_the_first_word_is_not_waited_for(tmp_path):
    """Or the server never has the gradients of all, and blames the dead one whoever else hangs."""
    config = config_of("ba3c", "smoke", workers=2, exchange="parameter_server", parameter_servers=1)
    layout = JobLayout.from_assignments(assign_roles(Sizes(2, 1, evaluator=False)))
    role = ServerRole(JobContext(config, tmp_path, layout), Sent(), 0)
    role.handle(PeerLost(layout.workers[1]))
    setup = json_blob(layout.chief, Topic.SETUP, {"parameters": 4, "tensors": [["x", [4]]]})
    role.handle(setup)
    assert role.server.workers == {0: layout.workers[0]}
    assert role.server.waits().peers == (layout.workers[0],)
