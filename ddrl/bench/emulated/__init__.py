"""Benchmarks with ranks that sleep instead of computing or acting, so that many of them fit on a small machine.

exchange (also scaling, stragglers), apex (actors, learner) --mpirun--> rank --> workers, actors or the real learner

Read `exchange` first, then `workers`.
"""
