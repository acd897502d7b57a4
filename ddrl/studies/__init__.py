"""Experiments of the papers: many runs that differ in a few settings, a table and a figure of them all.

Read `study` first (what a study consists of), then `engine`, which runs its points; the studies of each paper are in
`papers`. Nothing here may import `cluster` or `ddrl.roles`: the launcher starts the runs.
"""
