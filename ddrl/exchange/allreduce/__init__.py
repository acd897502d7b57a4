"""All-reduce: every worker has all parameters, and the workers average among themselves."""
