"""Run the bundled demo in a temporary folder, as a reader would, and check its figures."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

LEAST_ACCEPTANCE_LENGTH = 1.6
COMMAND = ("both", "--overlap", "--json")


def faults(report: Mapping[str, Any]) -> list[str]:
    """What is wrong with the report of a whole demo; empty if nothing is."""
    evaluation = report["evaluate"]
    reached = evaluation["acceptance_length"]
    lookup = evaluation["prompt_lookup"]["acceptance_length"]
    checks = {
        f"lossless {evaluation['lossless']}, expected 1.0": evaluation["lossless"] == 1.0,
        f"acceptance length {reached}, expected at least {LEAST_ACCEPTANCE_LENGTH}": (
            reached >= LEAST_ACCEPTANCE_LENGTH
        ),
        f"acceptance length {reached}, expected above prompt lookup's {lookup}": reached > lookup,
    }
    return [message for message, holds in checks.items() if not holds]


def main() -> int:
    program = Path(sys.executable).with_name("dflash-cache")
    with tempfile.TemporaryDirectory() as folder:
        run = subprocess.run(
            [program, *COMMAND], cwd=folder, stdout=subprocess.PIPE, text=True, check=False
        )
    if run.returncode:
        print(f"the demo ended with exit code {run.returncode}")
        return 1
    report = json.loads(run.stdout.splitlines()[-1])
    del report["evaluate"]["examples"]  # token by token, they would hide the figures
    print(json.dumps(report, indent=1))
    found = faults(report)
    for message in found:
        print(f"the demo's figures are wrong: {message}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
