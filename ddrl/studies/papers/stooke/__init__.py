"""Studies of Stooke and Abbeel 2018, Accelerated Methods for Deep Reinforcement Learning."""
