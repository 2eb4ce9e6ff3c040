"""``init``: a commented settings file to start from."""

import shlex
from importlib.resources import files
from typing import Any

from dflash_cache.config import InitConfig
from dflash_cache.errors import ConfigError


def init(config: InitConfig) -> dict[str, Any]:
    """Write the template that ``config.for_`` names; ``ConfigError`` if the file exists.

    Returns the report: file, command (which runs both phases with it).
    """
    named = f"--config {shlex.quote(str(config.out))}"
    text = template(config.for_).replace("--config FILE", named)
    if config.out.exists():
        raise ConfigError(f"--out {config.out} exists; name another file, or remove it first")
    config.out.parent.mkdir(parents=True, exist_ok=True)
    config.out.write_text(text, encoding="utf-8")
    return {"file": str(config.out), "command": f"dflash-cache both {named}"}


def template(name: str) -> str:
    """One of the files in ``dflash_cache/templates``."""
    return (files("dflash_cache") / "templates" / f"{name}.toml").read_text(encoding="utf-8")
