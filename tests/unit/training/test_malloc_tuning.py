"""What is freed is kept while much is moved, and given back when asked for."""

from __future__ import annotations

import platform
import resource
import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys
from psyche_core.training.malloc_tuning import give_back_memory, keep_freed_memory

def resident():
    with open("/proc/self/statm") as figures:
        return int(figures.read().split()[1]) * resource.getpagesize()

if sys.argv[1] == "keep":
    assert keep_freed_memory()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(50):
    bytearray(b"x") * (4 << 20)
faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
held = resident()
give_back_memory()
print(faults, held - resident())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc offers it")
def test_a_kept_block_is_not_taken_anew_and_goes_when_it_is_given_back() -> None:
    pages = (4 << 20) // resource.getpagesize()
    figures = {}
    for way in ("keep", "leave"):
        found = subprocess.run([sys.executable, "-c", PROGRAM, way], capture_output=True, text=True, timeout=60, check=True)
        figures[way] = [int(word) for word in found.stdout.split()]
    assert figures["keep"][0] < 5 * pages
    assert figures["keep"][1] > 2 << 20
    assert figures["leave"][0] > figures["keep"][0]


THREADS = """
import ctypes, os, sys, threading
from psyche_core.training.malloc_tuning import keep_freed_memory

if sys.argv[1] == "keep":
    assert keep_freed_memory()
every = threading.Barrier(12)

def work():
    every.wait()
    blocks = [bytearray(100_000) for _ in range(20)]
    every.wait()

threads = [threading.Thread(target=work) for _ in range(12)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
libc = ctypes.CDLL(None)
libc.fdopen.restype = ctypes.c_void_p
into = ctypes.c_void_p(libc.fdopen(os.dup(1), b"w"))
libc.malloc_info(0, into)
libc.fclose(into)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc offers it")
def test_many_threads_share_two_heaps() -> None:
    """What lies in one of eight heaps a core is kept there and of no use to others."""
    heaps = {}
    for way in ("keep", "leave"):
        found = subprocess.run([sys.executable, "-c", THREADS, way], capture_output=True, text=True, timeout=60, check=True)
        heaps[way] = found.stdout.count("<heap nr=")
    assert 1 <= heaps["keep"] <= 2
    assert heaps["leave"] > 2
