"""The base of every role: the layout of a job, the loop of a role, the watchdog, and how processes end.

Read `role` first, then `layout`. The roles themselves are in `ddrl.roles` and `ddrl.apex`, and nothing here may import
those; tests/test_imports.py lists the few modules that it may.
"""
