"""The studies of each paper, a module or a package for each; ddrl/commands/study.py lists them by name.

Read `ba3c.communication` first, a short one; `ddrl.studies.study` says what a study consists of.
"""
