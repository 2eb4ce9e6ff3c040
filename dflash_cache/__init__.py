"""Extract a target's hidden states once, train DFlash drafters from them often.

The Python API is ``dflash_cache.api``; its names are here too and are imported when first used.
"""

import sys
from importlib import import_module
from importlib.metadata import version
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .api import HiddenSequence, HiddenStateCache, HiddenStateDataset, extract, train

__version__ = version("dflash-cache")

__all__ = [
    "HiddenSequence",
    "HiddenStateCache",
    "HiddenStateDataset",
    "__version__",
    "extract",
    "train",
]


def _lazily(name: str) -> property:
    """A name of the API. An import of the package ``train`` does not take its place."""
    return property(
        lambda _module: getattr(import_module("dflash_cache.api"), name),
        lambda _module, _package: None,
    )


class _Package(ModuleType):
    """A module whose public names are properties."""


for _name in set(__all__) - {"__version__"}:
    setattr(_Package, _name, _lazily(_name))
sys.modules[__name__].__class__ = _Package
