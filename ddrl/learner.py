"""Compiled gradient and compiled inference over one network, traced once per batch size."""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import Collection
from typing import Any

import numpy as np

from ddrl.algorithms.record import Loss
from ddrl.config import AlgorithmConfig, FromReplay, OptimizerConfig
from ddrl.errors import UsageError, in_one_line, raised_at, says_what_to_do
from ddrl.exchange.vectors import lasting_memory
from ddrl.graph import Graph, computes_on_gpu
from ddrl.lazy import tf
from ddrl.networks.network import Network
from ddrl.networks.normalization import scaled_rewards
from ddrl.ops.clipping import clip_by_average_norm
from ddrl.structured import spec_of, tensors_of
from ddrl.types import LossContext, LossOutput, Replayed

NO_CONTEXT = LossContext()
UNUSED_FIELDS = ("behaviour_version", "key")  # of batches: for the lag and for the replay, not for the loss


def configure_tensorflow(
    intra_op_threads: int, inter_op_threads: int = 1, gpu: str = "", deterministic: bool = False
) -> None:
    """Threads and GPU of TensorFlow; call it before the first tensor of the process.

    Args:
        intra_op_threads: threads of one operation.
        inter_op_threads: operations at once, over all threads that call. With 1, a policy query that
            comes during a gradient waits for its end, so the gradient never waits for acting: right for one
            core per process. With more, both share the cores, at 5% of the speed (docs/results/speed-tried.md).
        gpu: name of the GPU that CUDA_VISIBLE_DEVICES shows to this process, or empty to use none. Its memory is
            taken as it is needed, so that processes may share it.
        deterministic: equal inputs give equal bits on a GPU, too, which costs speed there.

    Raises:
        RuntimeError: TensorFlow has started already.
    """
    devices = tf.config.list_physical_devices("GPU") if gpu else []
    if gpu and not devices:
        print(
            f"warning: GPU {gpu} is there, but TensorFlow sees none, so this rank computes on its cores: "
            'pip install "tensorflow[and-cuda]", or load the site\'s CUDA',
            flush=True,
        )
    tf.config.set_visible_devices(devices, "GPU")
    for device in devices:
        tf.config.experimental.set_memory_growth(device, True)
    if devices and deterministic:
        tf.config.experimental.enable_op_determinism()
    tf.config.threading.set_intra_op_parallelism_threads(intra_op_threads)
    tf.config.threading.set_inter_op_parallelism_threads(inter_op_threads)


def as_device_vector(parameters: np.ndarray) -> tf.Tensor:
    """An immutable tensor <float32>[N] of `parameters`, to be made once per version.

    It is a copy, unless the vector comes from `empty_vector` and is read-only, and TensorFlow computes on the CPU.
    """
    if isinstance(parameters, tf.Tensor):
        return parameters
    memory = None if computes_on_gpu() else lasting_memory(parameters)
    if memory is None:
        return tf.constant(parameters, tf.float32)
    return tf.experimental.dlpack.from_dlpack(memory.__dlpack__())


def check_vector(vector: np.ndarray | tf.Tensor, network: Network) -> None:
    """Raises ValueError if a vector is not as long as the network's parameters."""
    if tuple(vector.shape) != (network.size,):
        raise ValueError(
            f"a vector {tuple(vector.shape)} for the {network.size:,} parameters of network {network.name}"
        )


def with_scaled_rewards(network: Network, prepared: Any, batch: Replayed, settings: AlgorithmConfig) -> Replayed:
    """Transitions with their rewards scaled as a version normalizes them.

    A replay has rewards as they were. All rewards of a batch are divided by the deviation of the version that learns,
    not by that of the time at which each was earned, which would give equal rewards many values.

    Args:
        network: the network, which may or may not normalize rewards.
        prepared: the version, as `network.prepare` makes it.
        batch: tensors, with rewards unless targets are there in their place.
        settings: settings of the algorithm, which learns from a replay.
    """
    if not network.normalization.rewards or batch.reward is None:
        return batch
    data = settings.learns_from
    assert isinstance(data, FromReplay)  # whose transitions these are
    return batch._replace(reward=scaled_rewards(prepared, batch.reward, data.n_step))


class Learner:
    """The gradient of the loss over batches of one fixed shape.

    Args:
        network: the network of the algorithm.
        loss: the loss of the algorithm.
        settings: the settings of the algorithm.
        optimizer: settings, of which only `clip_tensor_average_norm` is used here.
        template: a batch of the shapes and types to come; the loss does not use a field that is None.
        scale: factor on the gradient of the mean loss: the effective batch, if a paper sums gradients.
        context: fields of LossContext that the loss reads beside `anneal`.

    Attributes:
        batch_size: data-points per gradient.

    Raises:
        UsageError: the function fails or gives no LossOutput, the loss or one of its metrics is no scalar, or the loss
            does not depend on the parameters.
    """

    def __init__(
        self,
        network: Network,
        loss: Loss,
        settings: AlgorithmConfig,
        optimizer: OptimizerConfig,
        template: Any,
        scale: float = 1.0,
        context: Collection[str] = (),
    ) -> None:
        self._network, self._loss, self._settings, self._optimizer = network, loss, settings, optimizer
        self._scale, self.context = scale, tuple(sorted(context))
        self._template = template
        self.batch_size = template.action.size // math.prod(network.action_space.action_shape)
        self._metric_names: list[str] = []
        self._fields = [
            name for name, array in template._asdict().items() if name not in UNUSED_FIELDS and array is not None
        ]
        specs = [tf.TensorSpec([network.size], tf.float32), tf.TensorSpec([], tf.float32)]
        of_context = {"target": specs[0], "key": tf.TensorSpec([2], tf.int32)}
        specs += [of_context[name] for name in self.context]
        for name in self._fields:
            array = getattr(template, name)
            specs.append(spec_of(array.shape, array.dtype))
        self._graph = Graph(self._trace, specs)
        self._shapes = [(getattr(template, name).shape, getattr(template, name).dtype) for name in self._fields]

    def gradient(
        self, parameters: np.ndarray | tf.Tensor, batch: Any, context: LossContext = NO_CONTEXT
    ) -> tuple[np.ndarray, dict[str, float], np.ndarray | None]:
        """Gradient of the mean loss times `scale`, clipped per tensor; the metrics of the loss; the rows' priorities.

        Args:
            parameters: <float32>[N].
            batch: a batch with the template's shapes.
            context: what the loss may read: host arrays or tensors.

        Returns:
            <float32>[N] gradient, read-only; the loss's metrics with `gradient_norm`, the global norm before clipping,
            and, unless the loss has one of that name, `loss`; and <float32>[M] new priorities, None if it has none.

        Raises:
            UsageError: the batch has another size than the template.
            ValueError: its arrays, or the vectors, have other shapes or types.
        """
        if batch.action.shape != self._template.action.shape:
            raise UsageError(
                f"batch of actions {batch.action.shape} for a learner of {self._template.action.shape}: "
                "every gradient takes exactly --batch-size data-points"
            )
        check_vector(parameters, self._network)
        if "target" in self.context:
            check_vector(context.target, self._network)
        arrays = [getattr(batch, name) for name in self._fields]
        for name, array, known in zip(self._fields, arrays, self._shapes, strict=True):
            if (array.shape, array.dtype) != known:
                raise ValueError(f"{name} is {array.dtype}{list(array.shape)}, not {known[1]}{list(known[0])}")
        anneal = tf.constant(np.array(context.anneal, np.float32))  # TensorFlow would keep a Python number forever
        read_by_loss = [as_device_vector(context.target) if name == "target" else context.key for name in self.context]
        tensors = [*map(tf.convert_to_tensor, read_by_loss), *(x for array in arrays for x in tensors_of(array))]
        gradient, metrics, *priorities = self._graph(as_device_vector(parameters), anneal, *tensors)
        values = dict(zip(self._metric_names, np.asarray(metrics).tolist()))
        return np.asarray(gradient), values, np.asarray(priorities[0]) if priorities else None

    def _trace(self, parameters: Any, anneal: Any, *tensors: Any) -> tuple[Any, ...]:
        context = LossContext(anneal, **dict(zip(self.context, tensors)))
        tensors = tensors[len(self.context) :]
        unused = dict.fromkeys(self._template._fields)
        batch = type(self._template)(**unused | dict(zip(self._fields, tensors)))
        if isinstance(batch, Replayed) and self._network.normalization.rewards:
            batch = with_scaled_rewards(self._network, self._network.prepare(parameters), batch, self._settings)
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(parameters)
            output = self._checked(self._called(parameters, batch, context))
            loss = output.loss if self._scale == 1.0 else output.loss * self._scale
        gradient = tape.gradient(loss, parameters)
        if gradient is None:
            raise UsageError(
                f"the loss of {self._settings.name} has no gradient with respect to `parameters`: compute it from "
                "network(parameters, ...), with operations of TensorFlow, and not all of it within tf.stop_gradient"
            )
        gradient = tf.convert_to_tensor(gradient)  # of a loss that only gathers from `parameters`, it is sparse
        metrics = {"loss": output.loss, **output.metrics, "gradient_norm": tf.sqrt(2.0 * tf.nn.l2_loss(gradient))}
        self._metric_names = list(metrics)
        limit = self._optimizer.clip_tensor_average_norm
        gradient = clip_by_average_norm(gradient, self._network.parameter_shapes, limit)
        priorities = [] if output.priorities is None else [output.priorities]
        return gradient, tf.stack([tf.cast(value, tf.float32) for value in metrics.values()]), *priorities

    def _called(self, parameters: Any, batch: Any, context: LossContext) -> Any:
        """What the loss gives. Raises UsageError if it fails, with the line and, if it met None, with what is None."""
        try:
            return self._loss(self._network, parameters, batch, self._settings, context)
        except Exception as error:
            if says_what_to_do(error):
                raise
            why = f"{in_one_line(error)}{raised_at(error)}"
            if "None" in why:
                given = {f"{name}.{field}": value for name, record in (("context", context), ("batch", batch))
                         for field, value in record._asdict().items()}  # fmt: skip
                missing = [name for name, value in given.items() if value is None]
                why += f"; what is None in this loss: {', '.join(missing)}"
            raise UsageError(f"the loss of {self._settings.name} fails: {why}") from error

    def _checked(self, output: Any) -> LossOutput:
        """`output` with its loss as a tensor. Raises UsageError if it is no LossOutput, or if the loss or a metric is
        known to be no scalar.

        TensorFlow would silently take the gradient of the sum of the loss's elements.
        """
        if not isinstance(output, LossOutput):
            raise UsageError(
                f"the loss of {self._settings.name} gave a {type(output).__name__}: have it return a "
                "ddrl.types.LossOutput(loss, metrics)"
            )
        loss = tf.convert_to_tensor(output.loss)
        metrics = {f"metric {name}": tf.convert_to_tensor(value) for name, value in output.metrics.items()}
        for what, value in {"loss": loss, **metrics}.items():
            if value.shape.rank:  # None if it is unknown
                raise UsageError(
                    f"the {what} of {self._settings.name} has shape {value.shape.as_list()}, and must be a scalar: "
                    "take its mean"
                )
        return output._replace(loss=loss)


def padded(array: np.ndarray, rows: int) -> np.ndarray:
    """`array` [b, ...] padded with rows of zeros to [rows, ...]."""
    if len(array) == rows:
        return array
    return np.concatenate([array, np.zeros((rows - len(array), *array.shape[1:]), array.dtype)])


class Preparation:
    """The compiled `network.prepare`, whose result for a vector is kept for as long as the vector exists.

    A tensor from `as_device_vector` is prepared once; a NumPy vector may change in place, so it is prepared at every
    call. Several threads may call it at once, also with different versions.

    Attributes:
        specs: specs of what it returns.
    """

    def __init__(self, network: Network) -> None:
        self._network = network
        self._graph = Graph(network.prepare, [tf.TensorSpec([network.size], tf.float32)])
        self.specs = self._graph.specs
        self._kept: dict[int, tuple[weakref.ref[Any], Any]] = {}  # by the vector's id
        self._lock = threading.Lock()

    def __call__(self, parameters: np.ndarray | tf.Tensor) -> list[Any]:
        """The tensors of `network.prepare(parameters)`, in the order of `tf.nest.flatten`."""
        check_vector(parameters, self._network)
        if not isinstance(parameters, tf.Tensor):
            return self._graph(as_device_vector(parameters))
        key, kept = id(parameters), self._kept
        if key not in kept:
            with self._lock:  # several predictor threads meet a new version at once: prepare it once
                if key not in kept:
                    prepared = self._graph(parameters)
                    kept[key] = weakref.ref(parameters, lambda _: kept.pop(key, None)), prepared
        return kept[key][1]


class Policy:
    """Inference for any number of observations; several threads may call it at once.

    A batch is padded to the next of `batch_sizes`; a larger one is cut into pieces of the largest. What the
    network prepares from a version is kept as long as its vector. A row's last bits can depend on the padded size and,
    on some processors, on its place, so a schedule that promises equal bits gives one size, and each row its place.

    Args:
        network: gives policy and value, or values of actions.
        observation_shape: shape of one observation.
        observation_dtype: type of one observation.
        batch_sizes: padded sizes, all of which are traced here.
    """

    def __init__(
        self, network: Network, observation_shape: tuple[int, ...], observation_dtype: Any, batch_sizes: tuple[int, ...]
    ) -> None:
        if not batch_sizes or min(batch_sizes) < 1:
            raise UsageError(f"batch sizes {batch_sizes} of a policy: give at least one size of 1 or more")
        self._network = network
        self._batch_sizes = sorted(set(batch_sizes))
        self._prepared = Preparation(network)
        self._observation = (tuple(observation_shape), np.dtype(observation_dtype))
        self._graphs = {}
        for size in self._batch_sizes:
            observation_spec = spec_of([size, *observation_shape], observation_dtype)
            self._graphs[size] = Graph(self._trace_apply, [self._prepared.specs, observation_spec])

    def __call__(self, parameters: np.ndarray | tf.Tensor, observations: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Policy <float32>[b, P] and value <float32>[b].

        Args:
            parameters: <float32>[N]. A tensor from `as_device_vector` is prepared once.
            observations: <observation dtype>[b, ...].
        """
        if (observations.shape[1:], observations.dtype) != self._observation:
            shape, dtype = self._observation
            raise ValueError(f"observations {observations.dtype}{list(observations.shape)}, not {dtype}[b, *{shape}]")
        prepared = self._prepared(parameters)
        largest = self._batch_sizes[-1]
        pieces = [
            self._infer(prepared, observations[start : start + largest])
            for start in range(0, len(observations), largest)
        ]
        if len(pieces) == 1:
            return pieces[0]
        policies, values = zip(*pieces)
        return np.concatenate(policies), np.concatenate(values)

    def _infer(self, prepared: Any, observations: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        count = len(observations)
        size = next(size for size in self._batch_sizes if size >= count)
        policy, value = self._graphs[size](*prepared, *tensors_of(padded(observations, size)))
        return np.asarray(policy)[:count], np.asarray(value)[:count]

    def _trace_apply(self, prepared: Any, observations: Any) -> tuple[Any, Any]:
        output = self._network.apply(prepared, observations)
        return output.policy, output.value
