"""Threads joined by bounded channels, and processes: the only package that touches either."""

from .arrivals import Arrivals
from .channel import Cancelled, Channel, ChannelClosed
from .descendants import descendants, ending
from .heartbeat import repeating
from .interrupt import Interrupted, keeping_handlers, stop_on_signals
from .monitor import Monitor
from .ordered import ordered_map
from .pause import Pause
from .pipeline import Pipeline, StageStuckError
from .processes import process_map
from .stage import StageStatistics, counted_as

__all__ = [
    "Arrivals",
    "Cancelled",
    "Channel",
    "ChannelClosed",
    "Interrupted",
    "Monitor",
    "Pause",
    "Pipeline",
    "StageStatistics",
    "StageStuckError",
    "counted_as",
    "descendants",
    "ending",
    "keeping_handlers",
    "ordered_map",
    "process_map",
    "repeating",
    "stop_on_signals",
]
