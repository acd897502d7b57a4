from __future__ import annotations

import pytest

from cluster.roles import Assignment, assign_roles


def test_the_laptop():
    assert assign_roles(workers=2, parameter_servers=1, evaluator=True) == (
        Assignment(0, "worker", 0, is_chief=True),
        Assignment(1, "worker", 1),
        Assignment(2, "parameter_server", 0),
        Assignment(3, "evaluator", 0),
    )


def test_a_dedicated_chief_comes_first_and_has_no_worker_id():
    assert assign_roles(workers=2, parameter_servers=2, dedicated_chief=True) == (
        Assignment(0, "chief", 0, is_chief=True),
        Assignment(1, "worker", 0),
        Assignment(2, "worker", 1),
        Assignment(3, "parameter_server", 0),
        Assignment(4, "parameter_server", 1),
    )


def test_the_paper_has_70_ranks_and_one_chief():
    roles = assign_roles(workers=64, parameter_servers=4, dedicated_chief=True, evaluator=True)
    assert len(roles) == 70
    assert [assignment.rank for assignment in roles] == list(range(70))
    assert [assignment.rank for assignment in roles if assignment.is_chief] == [0]


@pytest.mark.parametrize("evaluator", [False, True])
def test_a_single_process_evaluates_in_line(evaluator):
    assert assign_roles(1, 0, evaluator=evaluator) == (Assignment(0, "worker", 0, is_chief=True),)


@pytest.mark.parametrize("sizes", [(0, 1), (2, 0), (1, -1)])
def test_sizes_that_make_no_job(sizes):
    with pytest.raises(ValueError):
        assign_roles(*sizes)


def test_no_server_and_a_dedicated_chief_make_no_job():
    with pytest.raises(ValueError):
        assign_roles(1, 0, dedicated_chief=True)
