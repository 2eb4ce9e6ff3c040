"""Actors that fail where a test wants it, which a Ray worker imports from here."""

import os

from dflash_cache.runs.actor import SegmentActor
from tests.support.processes import titles


class PlannedFaultError(Exception):
    """Raised where a test wants a failure."""


class FailingActor(SegmentActor):
    def _open_segment(self, plan):
        raise PlannedFaultError(f"segment {plan.index}")


def actors_at_work() -> list[int]:
    """The processes of actors that this process started and that have a segment under way."""
    return [pid for pid, title in titles(os.getpid()).items() if "SegmentActor.extract" in title]
