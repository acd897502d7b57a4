"""Experiments of the papers: each makes many runs that differ in a few settings, and tables and figures of all of them.

Read `study` first (what a study consists of), then `engine`, which runs its points; the studies of each paper are in
`papers`. Nothing here may import `cluster` or `ddrl.roles`: the launcher starts the runs.
"""
