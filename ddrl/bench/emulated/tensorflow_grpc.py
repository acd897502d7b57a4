"""`python -m ddrl.bench.emulated.tensorflow_grpc JSON`: the same synchronous step over TensorFlow's own gRPC runtime.

It follows the design of `SyncReplicasOptimizer`: each server holds a flat shard with Adam; a worker pushes its slice
into a conditional accumulator there, the chief takes the average once all workers' slices are in, applies Adam on the
server, and hands out one token per worker; a worker that has its token reads the shards.

TensorFlow's server listens on every interface, without authentication, for as long as the benchmark runs (one
more reason why ddrl does not use it): so it is measured with `--grpc` only, which is not for shared machines.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import socket
import sys
import time
from typing import Any

START_SECONDS = 120.0


def cluster_of(ports: list[int], servers: int) -> dict[str, list[str]]:
    """The addresses of the jobs "ps" and "worker"; the first ports are those of the servers."""
    addresses = [f"127.0.0.1:{port}" for port in ports]
    return {"ps": addresses[:servers], "worker": addresses[servers:]}


def build(tf: Any, options: dict[str, Any], worker: int) -> tuple[Any, Any, Any]:
    """Builds the graph of one worker; returns the worker's step, the chief's step, and the initialization.

    The worker's step is a tuple: a placeholder for its step number, an operation that pushes, waits for a token and
    reads, and the token.
    """
    v1 = tf.compat.v1
    workers, servers, parameters = options["workers"], options["servers"], options["parameters"]
    sizes = [parameters // servers + (s < parameters % servers) for s in range(servers)]
    variables, accumulators = [], []
    for server, size in enumerate(sizes):
        with tf.device(f"/job:ps/task:{server}"):
            variable = v1.get_variable(f"shard{server}", [size], initializer=v1.zeros_initializer(), use_resource=True)
            accumulator = v1.ConditionalAccumulator(tf.float32, [size], shared_name=f"accumulator{server}")
            variables.append(variable)
            accumulators.append(accumulator)
    with tf.device("/job:ps/task:0"):
        tokens = v1.FIFOQueue(-1, tf.int64, shapes=[()], shared_name="tokens")
        step = v1.get_variable("step", [], tf.int64, initializer=v1.zeros_initializer(), use_resource=True)
    optimizer = v1.train.AdamOptimizer(1e-3)
    gradients = [tf.constant(1e-3, shape=[size]) for size in sizes]
    with tf.device(f"/job:worker/task:{worker}"):
        local_step = v1.placeholder(tf.int64, [])
        push = [a.apply_grad(g, local_step) for a, g in zip(accumulators, gradients, strict=True)]
        averages = [a.take_grad(workers) for a in accumulators]
        apply = optimizer.apply_gradients(list(zip(averages, variables, strict=True)), global_step=step)
        with tf.control_dependencies([apply]):
            new_step = step.read_value()
            with tf.control_dependencies([a.set_global_step(new_step) for a in accumulators]):
                chief = tokens.enqueue_many([tf.fill([workers], new_step)])
        with tf.control_dependencies(push):
            token = tokens.dequeue()
            with tf.control_dependencies([token]):
                pulled = tf.group(*[tf.identity(variable.read_value()) for variable in variables])
    return (local_step, tf.group(pulled), token), chief, v1.global_variables_initializer()


def run_process(cluster: dict[str, list[str]], job: str, index: int, options: dict[str, Any], result: Any) -> None:
    """Runs one server or worker; worker 0 is the chief and reports the milliseconds per step."""
    import threading

    import tensorflow as tf

    v1 = tf.compat.v1
    v1.disable_eager_execution()
    config = v1.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=2)
    server = v1.train.Server(cluster, job_name=job, task_index=index, config=config)
    if job == "ps":
        result.get()  # until the benchmark is over
        return
    (local_step, pulled, token), chief, initialize = build(tf, options, index)
    with v1.Session(server.target, config=config) as session:
        if index == 0:
            session.run(initialize)
        else:
            while session.run(v1.report_uninitialized_variables()).size:
                time.sleep(0.05)
        total = options["steps"] + 10
        if index == 0:
            threading.Thread(target=lambda: [session.run(chief) for _ in range(total)], daemon=True).start()
        step, start = 0, 0.0
        for number in range(total):
            if number == 10:
                start = time.perf_counter()
            _, step = session.run([pulled, token], {local_step: step})
        if index == 0:
            result.put(1000 * (time.perf_counter() - start) / options["steps"])


def free_ports(count: int) -> list[int]:
    """Loopback ports that are free now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for loopback in sockets:
            loopback.bind(("127.0.0.1", 0))
        return [loopback.getsockname()[1] for loopback in sockets]


def main() -> None:
    """Starts all processes, prints the result, and ends them."""
    options = json.loads(sys.argv[1])
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    context = multiprocessing.get_context("spawn")
    workers, servers = options["workers"], options["servers"]
    cluster = cluster_of(free_ports(workers + servers), servers)
    result, forever = context.Queue(), context.Queue()
    jobs = [("ps", i, forever) for i in range(servers)] + [("worker", i, result) for i in range(workers)]
    processes = [context.Process(target=run_process, args=(cluster, j, i, options, q), daemon=True) for j, i, q in jobs]
    for process in processes:
        process.start()
    try:
        milliseconds = result.get(timeout=START_SECONDS + options["steps"])
        print("RESULT " + json.dumps({"ms_per_step": milliseconds}), flush=True)
    finally:
        for process in processes:
            process.kill()


if __name__ == "__main__":
    main()
