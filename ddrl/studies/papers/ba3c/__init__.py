"""Studies of BA3C: Adamski et al. 2018, Distributed Deep Reinforcement Learning: learn how to play Atari games in 21
minutes."""
