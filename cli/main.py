"""The ``dflash-cache`` command. Heavy imports happen inside the commands."""

import os
import sys
from io import TextIOWrapper
from pathlib import Path

# Before torch is imported: threads that wait give their core away instead of spinning on it.
# Workers and trainer share the cores; spinning made steps up to six times slower (docs/decisions).
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# Bars of the datasets library would stand between our own lines of progress.
os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")

import typer

from dflash_cache.errors import ConfigError, DflashCacheError
from dflash_cache.pipeline import Interrupted, StageStuckError, stop_on_signals

from . import (
    both,
    evaluate,
    export,
    extract,
    init,
    inspect,
    merge,
    plan,
    regenerate,
    report,
    tokenize,
    train,
    verify,
)

_WITHOUT_STATE = [["plan"], ["tokenize"], ["evaluate"], ["report"], ["inspect"], ["export"]]

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,  # flags are shown whole, and can be copied, at 80 columns too
    add_completion=True,
    pretty_exceptions_enable=False,
    help="Extract a target's hidden states once into a Zarr cache; train DFlash drafters from it.",
)
for name, module in (
    ("init", init),
    ("regenerate", regenerate),
    ("tokenize", tokenize),
    ("plan", plan),
    ("extract", extract),
    ("train", train),
    ("both", both),
    ("evaluate", evaluate),
    ("report", report),
    ("inspect", inspect),
    ("export", export),
    ("verify", verify),
    ("merge", merge),
):
    app.command(name, short_help=module.command.__doc__)(module.command)  # else it is cut


def _version(shown: bool) -> None:
    if shown:
        from importlib.metadata import version
        from platform import python_version

        names = ("dflash-cache", "torch", "transformers", "datasets", "numpy", "zarr")
        versions = {name: version(name) for name in names} | {"python": python_version()}
        typer.echo("\n".join(f"{name} {number}" for name, number in versions.items()))
        raise typer.Exit


@app.callback()
def options(
    show_version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Print versions and exit."
    ),
) -> None:
    """Options of every command."""


def _prepare_output() -> None:
    """Refuse at the start what would fail at the end, a report with nowhere to go.

    What the terminal's encoding lacks will be written as an escape.
    """
    if isinstance(sys.stdout, TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")
    if sys.stderr is None:
        # Closed by whoever started the command: nothing is to be told there. Its number must be
        # taken, or the next file that is opened gets it, and with it what libraries write there.
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115  open to the end of the process
    if sys.stdout is None:
        raise ConfigError("standard output is closed; leave out >&-, or give >/dev/null instead")


def main() -> None:
    """Run the command; errors of ours end with their message, not with a trace."""
    again = "begins anew" if sys.argv[1:2] in _WITHOUT_STATE else "continues"
    try:
        _prepare_output()
        with stop_on_signals():
            app()  # leaves by SystemExit, with 0 or with 2 for a usage error
        code = 0
    except (DflashCacheError, OSError) as error:
        remedy, code = f"; mend this, and the same command {again}", 1
        if isinstance(error, DflashCacheError):
            remedy, code = "", error.exit_code  # its message says what to do
        lines = [f"dflash-cache: {error}{remedy}", *getattr(error, "__notes__", ())]
        sys.stderr.write("\n  ".join(lines) + "\n")
    except Interrupted as stop:
        sys.stderr.write(f"dflash-cache: stopped by {stop}; the same command {again}\n")
        code = stop.exit_code
    except StageStuckError as error:
        cause = f"stopped by: {error.__cause__!r}\n" if error.__cause__ else ""
        sys.stderr.write(f"dflash-cache: {error}\n{cause}")
        sys.stderr.flush()
        # Its thread cannot be joined, and would keep the process alive.
        os._exit(getattr(error.__cause__, "exit_code", 1))
    sys.exit(code)
