"""Studies of Ape-X: Horgan et al. 2018, Distributed Prioritized Experience Replay.

Read `settings` first, on which both studies build, then `replay`, the shorter one.
"""
