"""Acting: how simulators and policy together make the batches that gradients are taken of.

Read `schedules` first: a schedule is what the trainer asks for batches, and it decides when simulators are stepped and
with which parameters. `rollout_schedules` and `replay_schedules` have more of them, and `actor` steps the simulators.
Nothing here may import `roles`, `job`, `algorithms`, or the messages of `exchange`.
"""
