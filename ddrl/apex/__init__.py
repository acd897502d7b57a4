"""Ape-X (Horgan et al. 2018): actors and a replay in ranks of their own, and one learner.

child of an actor --segments--> actor --MPI--> replay shard <--draws, priorities--> sampler of the learner

Read `actor`, `replay_shard`, and `sampler`, in this order. Nothing here may import `ddrl.roles`, which runs them.
"""
