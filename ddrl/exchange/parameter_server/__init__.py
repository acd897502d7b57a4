"""Parameter servers: ranks of their own that average gradients, each on its slice of the parameters."""
