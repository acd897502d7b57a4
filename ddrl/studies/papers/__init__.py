"""The studies of the papers, in a module or a package for each paper; ddrl/commands/study.py lists them by name.

Read `ba3c.communication` first, a short one; `ddrl.studies.study` says what a study consists of.
"""
