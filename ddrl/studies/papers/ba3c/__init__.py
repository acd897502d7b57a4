"""Studies of BA3C: Adamski et al. 2018, Distributed Deep Reinforcement Learning: learn how to play Atari games in 21
minutes.

Read `communication` first, the shortest study. `ending` and `median_rule` end runs of the study in `epsilon` early.
"""
