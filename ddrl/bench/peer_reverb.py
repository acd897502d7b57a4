"""DeepMind's Reverb as a prioritized replay: inserts/s and samples/s. Run as a file by a Python that has it.

It imports nothing of this package. The last line of its output is `RESULT` and one JSON object.

This process runs the server, a thread that inserts, and one that samples batches and sets their priorities. Each goes
as fast as it can, but inserts are held to a ratio to the samples while both run. An item is one n-step transition:
stack + n frames, which neighboring items share.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from importlib.metadata import version
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


def main() -> None:
    """Measures, and prints what was measured or what is missing."""
    try:
        result = Reverb(argparse.Namespace(**json.loads(sys.argv[1]))).rates()
    except ImportError as error:
        result = {"missing": str(error)}
    print("RESULT " + json.dumps(result), flush=True)


class Reverb:
    """A Reverb server with one table, and a client that inserts and samples.

    Args:
        options: frames (.npy with [games, frames, ...]), capacity, seconds, batch_size, inserts_per_sample, stack,
            n_step, and actions (components of a continuous action; 0: discrete).
    """

    def __init__(self, options: argparse.Namespace):
        import numpy as np
        import reverb
        import tensorflow as tf

        self.options, self.np, self.random = options, np, np.random.default_rng(0)
        self.frames, self.length = np.load(options.frames), options.stack + options.n_step
        action = ((), tf.int32) if not options.actions else ((options.actions,), tf.float32)
        signature = {
            "observation": tf.TensorSpec([self.length, *self.frames.shape[2:]], self.frames.dtype),
            "action": tf.TensorSpec([1, *action[0]], action[1]),
            "reward": tf.TensorSpec([options.n_step], tf.float32),
        }
        table = reverb.Table(
            "replay",
            reverb.selectors.Prioritized(0.6),
            reverb.selectors.Fifo(),
            options.capacity,
            reverb.rate_limiters.MinSize(1),
            signature=signature,
        )
        self.server = reverb.Server([table])
        self.client = reverb.Client(f"localhost:{self.server.port}")
        self.dataset = reverb.TrajectoryDataset.from_table_signature(
            f"localhost:{self.server.port}", "replay", max_in_flight_samples_per_worker=2 * options.batch_size
        ).batch(options.batch_size)
        self.inserted = self.sampled = 0
        self.action = np.zeros(options.actions, np.float32) if options.actions else np.int32(1)

    def rates(self) -> dict[str, Any]:
        """Fills the table, then measures inserts and samples at once, and then each alone."""
        writer, step, options = self.client.trajectory_writer(2 * self.length), 0, self.options
        while self.inserted < options.capacity:
            step = self._insert(writer, step)
        inserts, samples, cores = self._both(writer, step)
        alone = self._alone(lambda step: self._insert(writer, step))
        batches = iter(self.dataset)
        drawn = self._alone(lambda step: self._draw(next(batches)))
        return {
            "name": "reverb",
            "version": version("dm-reverb"),
            "inserts_per_s": round(inserts),
            "samples_per_s": round(samples),
            "inserts_per_s_alone": round(alone[0]),
            "samples_per_s_alone": round(drawn[1]),
            "cores": len(os.sched_getaffinity(0)),
            "cores_used": round(cores, 2),
        }

    def _both(self, writer: Any, step: int) -> tuple[float, float, float]:
        ended = threading.Event()

        def insert() -> None:
            at, first_inserted, first_sampled = step, self.inserted, self.sampled
            while not ended.is_set():
                behind = (self.sampled - first_sampled) * self.options.inserts_per_sample
                if self.inserted - first_inserted > behind + 2000:
                    time.sleep(0.001)  # inserts keep the ratio, as ours do
                    continue
                at = self._insert(writer, at)

        thread, batches = threading.Thread(target=insert, daemon=True), iter(self.dataset)
        self._draw(next(batches))
        thread.start()
        began, cpu, first = time.perf_counter(), time.process_time(), (self.inserted, self.sampled)
        while time.perf_counter() - began < self.options.seconds:
            self._draw(next(batches))
        elapsed, cpu = time.perf_counter() - began, time.process_time() - cpu
        counts = self.inserted - first[0], self.sampled - first[1]
        ended.set()
        thread.join()
        return counts[0] / elapsed, counts[1] / elapsed, cpu / elapsed

    def _alone(self, work: Any) -> tuple[float, float]:
        began, first, step = time.perf_counter(), (self.inserted, self.sampled), 0
        while time.perf_counter() - began < self.options.seconds / 2:
            step = work(step) or 0
        elapsed = time.perf_counter() - began
        return (self.inserted - first[0]) / elapsed, (self.sampled - first[1]) / elapsed

    def _insert(self, writer: Any, step: int) -> int:
        """Appends 50 steps of a game, and inserts an item for each once it has enough frames; returns the next step."""
        games, count = self.frames.shape[:2]
        for at in range(step, step + 50):
            frame = self.frames[at // count % games, at % count]
            writer.append({"observation": frame, "action": self.action, "reward": self.np.float32(0.5)})
            if writer.episode_steps >= self.length:
                history, n = writer.history, self.options.n_step
                item = {
                    "observation": history["observation"][-self.length :],
                    "action": history["action"][-n - 1 : -n],
                    "reward": history["reward"][-n - 1 : -1],
                }
                writer.create_item("replay", float(self.random.random()), item)
                self.inserted += 1
        writer.flush(block_until_num_items=200)
        return step + 50

    def _draw(self, batch: Any) -> None:
        keys = batch.info.key.numpy()
        self.sampled += len(keys)
        priorities = self.random.random(len(keys))
        self.client.mutate_priorities("replay", dict(zip(keys.tolist(), priorities.tolist())))


if __name__ == "__main__":
    main()
