"""`ddrl bench faults`: breaks real runs in every way that is known, and looks at what becomes of them.

    draws --what happens to whom, and when--> conduct: processes, runs --> outcome (judged by bounds)

Read `conduct` first. `docs/failures.md` says what must become of a run; `bounds` has the same as numbers.
"""
