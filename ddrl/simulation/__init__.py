"""A model of the exchange between workers and parameter servers, for more of them than there are machines for.

Read `system` first (what is simulated), then `synchronous`. Nothing here may import another package of ddrl, or a
heavy library: NumPy and SciPy are enough.
"""
