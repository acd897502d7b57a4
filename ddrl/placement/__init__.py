"""Which rank has which role, with how many threads, on which device, and whether it fits.

Read `ranks` first, which has the pure functions of `cluster.roles` place the ranks of a configuration. `ranks` and
`resources` must load without TensorFlow and MPI, since they are needed before any rank starts.
"""
