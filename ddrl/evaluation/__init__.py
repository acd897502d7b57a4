"""Playing games with frozen parameters: scores, the policy of a run, and its video."""
