"""Placement: which role, threads and GPU each rank gets, whether the run fits the machine, and how a rank starts.

Read `ranks` first, which places the ranks of a configuration with the pure functions of `cluster.roles`. `ranks` and
`resources` must load without TensorFlow and MPI, since they are needed before any rank starts.
"""
