"""`python -m ddrl.doctor.gpus`: prints how many GPUs TensorFlow can use, in a process that may crash."""

from __future__ import annotations

if __name__ == "__main__":
    import tensorflow as tf

    print("GPUS", len(tf.config.list_physical_devices("GPU")))
