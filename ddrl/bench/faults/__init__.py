"""`ddrl bench faults`: breaks real runs in every known way, and checks what becomes of them.

    draws --what happens to whom, and when--> conduct: processes, runs --> outcome (judged by bounds)

Read `conduct` first. `docs/failures.md` says what must become of a run; `bounds` says the same in numbers.
"""
