"""`ddrl tune`: a search for good settings of `ddrl train` with Optuna.

Read `plan` first (what is searched, and how), then `engine`, which runs the trials; `report` shows what was found.
Nothing here may import `cluster` or `ddrl.roles`.
"""
