"""A service uses the memory again that it has freed, whichever of its threads needs it."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import pytest

from monitor import arenas

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


_OBJECTS = """
import random
from monitor.memory import keep_memory

def megabytes():
    with open("/proc/self/smaps_rollup") as told:
        fields = dict(line.split(":") for line in told if ":" in line and "kB" in line)
    return [int(fields[name].split()[0]) // 1024 for name in ("AnonHugePages", "Rss")]

before = [bytes(100) for _ in range(20_000)]
keep_memory()
keep_memory()
chance, kept = random.Random(1), [b""] * 600_000
for _ in range(1_800_000):
    place = chance.randrange(len(kept))
    kept[place] = b"%d " % place * chance.randrange(10, 30)
assert all(set(each.split()) <= {b"%d" % place} for place, each in enumerate(kept))
most = megabytes()
kept.clear()
before.clear()
print(*most, *megabytes())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="Linux alone says what memory a process has, and in which pages")
def test_objects_are_in_huge_pages_where_the_kernel_gives_any_and_are_given_back() -> None:
    """What was there before included; on other machines they are where Python puts them."""
    found = subprocess.run([sys.executable, "-c", _OBJECTS], check=True, capture_output=True, text=True)
    huge, most, _, left = map(int, found.stdout.split())
    kernel = Path("/sys/kernel/mm/transparent_hugepage")
    offered = kernel.exists() and "[never]" not in (kernel / "enabled").read_text()
    fits = offered and int((kernel / "hpage_pmd_size").read_text()) == 2 << 20
    asked = fits and not arenas.__file__.endswith(".py")
    assert (huge > most / 2) == asked
    assert left < most / 2


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="what is set is of glibc")
def test_ten_megabytes_are_not_asked_for_again_and_again() -> None:
    """Twenty threads take turns: all together get fewer new pages than one of them needs, which are 2 500."""
    found = subprocess.run([sys.executable, "-c", _FAULTS], check=True, capture_output=True, text=True)
    assert int(found.stdout) < 2_500
