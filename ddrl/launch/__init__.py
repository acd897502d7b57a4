"""Starting a run and seeing it through: on this machine under mpirun, or as one rank of a cluster's job.

Read `local` first, for a run on this machine, with `supervisor`; `job` is for a rank of a cluster's job. Only `job` may
import `ddrl.roles`, and both `local` and `job` must load without TensorFlow and MPI.
"""
