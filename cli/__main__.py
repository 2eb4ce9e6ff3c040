"""``python -m dflash_cache.cli``."""

from .main import main

main()
