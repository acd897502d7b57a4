"""Benchmarks with ranks that sleep instead of computing or acting, so that many of them fit on a small machine.

commands (exchange, scaling, stragglers, actors, learner) --mpirun--> rank --> workers, actors or the real learner
"""
