"""Studies of Stooke and Abbeel 2018, Accelerated Methods for Deep Reinforcement Learning.

Read `sampling` first, which trains nothing, then `simulators`, on which `q_learning` builds, and on that `speed`.
"""
