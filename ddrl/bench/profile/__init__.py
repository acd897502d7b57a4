"""`ddrl bench profile`: where the time of an update goes in a real job, by thread and part.

Read `command` first. The ranks that it starts (`rank`) are those of `ddrl.roles`, with a recorder (`spans`) around the
methods that `parts` lists; `report` makes tables and a trace of what was recorded.
"""
