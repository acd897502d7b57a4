"""What acts and what learns, built from the configuration: environments, network, learner, replay, schedule.

Read `agent` first; `replay` has what only algorithms with a replay need. Nothing here may import `cluster`, `job`,
`roles`, or `apex`.
"""
