"""What is done with frozen parameters: evaluation games, agents for other programs, exports, and videos.

Read `games` first, which plays the games. `newest` is what `ddrl evaluate` runs, and `agent` what `Run.agent()` gives.
Nothing here may import `cluster` or `ddrl.roles`.
"""
