"""The bundled tiny target and data, so that the whole path runs on a laptop's CPU."""

from pathlib import Path

TARGET = Path(__file__).parent / "target"
DATA = Path(__file__).parent / "data"
