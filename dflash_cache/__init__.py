"""dflash-cache: extract a target's hidden states once, train DFlash drafters as often as you like."""

from importlib.metadata import version

__version__ = version("dflash-cache")
