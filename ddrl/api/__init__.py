"""The Python interface: what `ddrl.train` and `ddrl.load` give.

Read `training` first, then `run`. Both must load without TensorFlow, which only agents and evaluations need.
"""
