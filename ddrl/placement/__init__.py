"""Which rank has which role, with how many threads, on which device, and whether it fits."""
