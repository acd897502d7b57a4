"""Inner loops over vectors, compiled by Numba: each in one pass over memory, without Python's lock.

They round as NumPy does, operation by operation, so that results equal NumPy's to the bit; only sums have an order of
their own. What is compiled is kept on disk beside the package, or in the user's cache where that is read-only.

Read `compiled` first, the only module of ddrl that the others may import: a kernel calls none of another file.
"""
