"""A model of the exchange between workers and parameter servers, for sizes that are not here. NumPy and SciPy alone."""
