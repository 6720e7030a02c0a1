"""A service uses the memory again that it has freed, whichever of its threads needs it."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

_FAULTS = """
import resource
from threading import Thread

from monitor.memory import keep_memory

keep_memory()

def allocate():
    return [bytes(100_000) for _ in range(100)]

def faults():
    threads = [Thread(target=allocate) for _ in range(20)]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for thread in threads:
        thread.start()
        thread.join()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

faults()
print(faults())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="what is set is of glibc")
def test_ten_megabytes_are_not_asked_for_again_and_again() -> None:
    """Twenty threads take turns: all together get fewer new pages than one of them needs, which are 2 500."""
    found = subprocess.run([sys.executable, "-c", _FAULTS], check=True, capture_output=True, text=True)
    assert int(found.stdout) < 2_500
