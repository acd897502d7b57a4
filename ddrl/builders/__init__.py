"""What acts and what learns, built from the configuration: environments, network, learner, replay, schedule."""
