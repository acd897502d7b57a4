"""Hypothesis measures no times here: a shared machine may pause any example for most of a second."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
