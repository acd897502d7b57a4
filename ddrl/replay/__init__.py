"""Experience replay: transitions of the simulators, drawn uniformly or by priority; each frame is stored once.

Read `replay` first, then `history`, which keeps the steps, and `sum_tree`, which draws by priority. Of ddrl's packages
only `kernels` may be imported here, and nothing heavy, such as TensorFlow or MPI.
"""
