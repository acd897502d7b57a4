"""More repeats for a study that has begun."""

from __future__ import annotations

from ddrl.errors import read_as
from ddrl.studies.plan import PLAN, REPEATS, Plan, check_names
from ddrl.studies.settings import StudySettings, from_json
from ddrl.studies.study import Study


def extended(study: Study, plan: Plan, settings: StudySettings, command: str) -> Plan:
    """The plan of a begun study with the points that it lacks for more repeats; nothing is written yet.

    Args:
        study: the declaration of the study.
        plan: the plan of the study.
        settings: those of the plan, perhaps with more repeats.
        command: the command that asks for them, as it was typed.

    Returns:
        The plan itself if it has these repeats, or more of them. Otherwise, the new points come after all others.

    Raises:
        UsageError: the points cannot be repeated, since they come from another version of ddrl.
    """
    if settings.repeats <= from_json(type(study.defaults), plan.settings).repeats:
        return plan
    with read_as(str(plan.directory / PLAN), "choose another --dir"):
        points = (*plan.points, *study.more_points(settings, plan.points))
    more = plan._replace(
        settings={**plan.settings, REPEATS: settings.repeats},
        points=points,
        command=f"{plan.command}\n{command}" if plan.command else "",
    )
    check_names(more)
    return more
