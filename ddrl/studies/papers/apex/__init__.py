"""Studies of Ape-X: Horgan et al. 2018, Distributed Prioritized Experience Replay."""
