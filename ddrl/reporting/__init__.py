"""What a run reports: metrics.jsonl, progress on the terminal, the closing summary, figures, callbacks, and loggers.

Read `metrics` first: it shows the way of a record from a rank to the file. Of the modules here only `machine` may
import `cluster`.
"""
