"""Experience replay: transitions of the simulators, each frame once, drawn uniformly or by priority.

Read `replay` first, then `history`, which keeps the steps, and `sum_tree`, which draws by priority. Of ddrl's packages
only `kernels` may be imported here, and nothing heavy, such as TensorFlow or MPI.
"""
