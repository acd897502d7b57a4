"""A user's plugin on several nodes: an algorithm and an exchange of a file that all see, and one that a node lacks."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from ddrl import rundir
from tests.parallel.support import newest, result

pytestmark = pytest.mark.timeout(400)
FILE = Path(__file__).parents[1] / "of_users" / "reinforce.py"
SETTINGS = """\
ALGORITHM=reinforce SERVERS=0 REQUEUE=no RESTARTS=0
OPTIONS=(--plugin {plugin} --preset smoke --no-evaluator --workers 2 --parameter-servers 0 --exchange circle)
OPTIONS+=(--minutes 0 --max-updates 20)
{more}
"""
TWO_NODES = ("--nodes=2", "--ntasks-per-node=1", "--nodelist=n3,n4")
LONE = "/dev/shm/lone_plugin.py"  # each node has a /dev/shm of its own


@pytest.fixture(scope="module")
def jobs(submit):
    """Name -> job. All at once, as each waits more than it works."""
    courier, other = FILE.parents[2] / "examples" / "courier.py", LONE.replace("lone", "other")
    settings = SETTINGS.format(plugin=courier, more="OPTIONS+=(--game courier)")
    settings = settings.replace("reinforce", "ppo").replace("circle", "allreduce")
    here = f"srun --mem-per-cpu=1 cp {FILE} {other}; echo >> {other}"  # differs on the first node alone
    run = functools.partial(submit, "train.sbatch", launcher="srun")
    return {
        "file": run(SETTINGS.format(plugin=FILE, more=""), *TWO_NODES),
        "example": run(settings, *TWO_NODES, light=False),
        "absent": run(SETTINGS.format(plugin=LONE, more=f"cp {FILE} {LONE}"), *TWO_NODES),
        "different": run(SETTINGS.format(plugin=other, more=here), *TWO_NODES),
    }


def test_an_algorithm_and_an_exchange_of_a_file_train_on_two_nodes(jobs):
    job = jobs["file"]
    assert job.wait() == ("COMPLETED", "0:0"), job.output
    assert result(job.run)["status"] == "finished" and newest(job.run).version == 20
    config = rundir.load_config(job.run)
    assert (config.algorithm.name, config.exchange.exchange) == ("reinforce", "circle")
    assert config.run.plugins == (str(FILE),)


def test_an_environment_of_an_example_trains_on_two_nodes(jobs):
    job = jobs["example"]
    assert job.wait() == ("COMPLETED", "0:0"), job.output
    assert result(job.run)["status"] == "finished" and newest(job.run).version == 20
    assert rundir.load_config(job.run).environment.game == "courier"
    assert "learning_curve.png" in job.output and (job.run / "learning_curve.png").exists()
    assert "oneDNN" not in job.output, "what libraries say is in log.txt"


def test_a_node_without_the_file_is_named_in_one_line(jobs):
    job = jobs["absent"]
    assert job.wait() == ("FAILED", "2:0"), job.output
    (said,) = [line for line in job.output.splitlines() if line.startswith("ddrl: ")]
    assert f"rank 1 on n4: plugin {LONE}: there is no such file on this host: every node of a job must" in said


def test_a_node_with_another_content_is_named_in_one_line(jobs):
    job = jobs["different"]
    assert job.wait() == ("FAILED", "2:0"), job.output
    (said,) = [line for line in job.output.splitlines() if line.startswith("ddrl: ")]
    assert f"rank 1 on n4 has a different {LONE.replace('lone', 'other')} than rank 0 on n3" in said
