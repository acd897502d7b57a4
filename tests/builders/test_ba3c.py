"""BA3C as it is built from its settings, in this process, on Catch, with data-points that are used several times."""

from __future__ import annotations

import pytest

from ddrl.sampling.pool import slots_of
from tests.builders.test_replay import Worker
from tests.test_combinations import config_of

ALONE = {"workers": 1, "parameter_servers": 0}
FOUR_USES = {"epochs": 4, "clip_range": 0.2, "normalize_advantages": True}


class Asynchronous(Worker):
    """A worker whose predictors act with the newest parameters, whenever those come."""

    def train(self, updates):
        for _ in range(updates):
            self.schedule.update(self.snapshot())
            super().train(1)
        return self


def test_each_data_point_goes_into_so_many_gradients():
    config, acted = config_of("ba3c", "smoke", **FOUR_USES, **ALONE), []
    with Asynchronous(config) as worker:
        pool = worker.schedule.actors[0].batcher
        assert all(actor.batcher is pool for actor in worker.schedule.actors)
        add = pool.add
        pool.add = lambda points: (acted.append(len(points.action)), add(points))[1]
        worker.train(400)
    slack = slots_of(config.batch_size, 4, 8) + 4 * config.batch_size  # what waits in the pool and in the queue
    assert 0 <= 4 * sum(acted) - 400 * config.batch_size <= 4 * slack
    assert config.agent_steps_per_update == config.batch_size / 4


@pytest.mark.slow
def test_it_learns_from_them():
    def score(seed):
        config = config_of("ba3c", "smoke", seed=seed, learning_rate=1e-3, entropy_cost=0.1, **FOUR_USES, **ALONE)
        with Asynchronous(config) as worker:
            return worker.train(2_500).score()

    # Of 30 runs with other seeds, 28 had 1.0, and two were stuck at 0.2 and 0.56: one that gets stuck may try again.
    assert any(score(seed) >= 0.5 for seed in (1, 2))  # chance: -0.6
