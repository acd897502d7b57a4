"""Looking for good settings of `ddrl train` with Optuna: what is searched, trials as runs, and a report."""
