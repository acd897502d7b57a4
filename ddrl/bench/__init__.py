"""The measurements of `ddrl bench`; ddrl/commands/bench.py lists them by name.

Read `benchmark` first, which has what all of them share, then `idle`, a short one. Three are packages: `emulated` has
ranks that sleep instead of computing, `faults` breaks runs, and `profile` shows where the time goes. The Python of
another library's environment runs the files peer_*.py, so they import nothing of ddrl.
"""
