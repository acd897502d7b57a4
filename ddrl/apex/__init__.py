"""Ape-X (Horgan et al. 2018): actors and a replay in ranks of their own, and one learner.

child of an actor --segments--> actor --MPI--> replay shard <--draws, priorities--> sampler of the learner
"""
