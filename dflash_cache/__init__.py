"""Extract a target's hidden states once, train DFlash drafters from them often."""

from importlib.metadata import version

__version__ = version("dflash-cache")
