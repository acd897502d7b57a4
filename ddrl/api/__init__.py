"""The Python interface: what `ddrl.train` and `ddrl.load` give. Loads TensorFlow for agents and evaluations alone."""
