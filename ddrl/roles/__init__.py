"""The roles that the ranks of a job have: worker, chief, server, and evaluator; `ddrl.apex` has those of Ape-X.

`python -m ddrl.roles RUN_DIR` is one rank. Read `main` first, which gives a process its roles and runs them, then
`worker` and `chief`. Of the rest of ddrl, only `ddrl.launch.job` and the benchmarks may import this package.
"""
