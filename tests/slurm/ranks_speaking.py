"""A rank that speaks to the others at once."""

from ddrl.placement.world import settled_world

settled_world().allgather(1)
