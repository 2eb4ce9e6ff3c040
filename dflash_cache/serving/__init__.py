"""A target that a server runs: the only package that imports httpx2."""

from .client import Client
from .target import ServedTarget

__all__ = ["Client", "ServedTarget"]
