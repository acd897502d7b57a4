"""Where the ranks of a job are, what each of them does, and how mpirun starts them.

Read `topology` first (who is where), then `roles` (who does what). Nothing here may import ddrl or a third-party
package, not even NumPy or mpi4py.
"""
