"""Processes that a library started."""

import os
import subprocess
import sys

from dflash_cache.pipeline import descendants, ending
from tests.support.processes import title_of

WAIT = "import sys; sys.stdin.read()"
PARENT = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {WAIT!r}], stdin=subprocess.PIPE)
print(child.pid, flush=True)
child.wait()
"""


def test_children_and_theirs_are_found_and_end_with_the_block_though_their_parent_is_gone():
    before = descendants(os.getpid())
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        started = descendants(os.getpid()) - before
        assert started == {parent.pid, child}
        with ending(started):
            parent.kill()
            parent.wait()
        assert title_of(child) == ""
