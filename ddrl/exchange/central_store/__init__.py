"""A central store: the workers of one host update parameters in shared memory, each on its own."""
