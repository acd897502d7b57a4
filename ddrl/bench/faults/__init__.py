"""`ddrl bench faults`: breaks real runs in every way that is known, and looks at what becomes of them.

    systems, draws --what happens to whom, and when--> injection --> runs, watching --> outcome (judged) --> table

`docs/failures.md` says what must become of a run; `bounds` has the same as numbers.
"""
