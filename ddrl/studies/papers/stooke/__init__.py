"""Studies of Stooke and Abbeel 2018, Accelerated Methods for Deep Reinforcement Learning.

Read `sampling` first, which trains nothing, then `simulators`; `q_learning` builds on it, and `speed` on `q_learning`.
"""
