"""The priority of the calling thread: background work steps back for the training.

Linux has priorities for threads; elsewhere these calls would mean the whole process, and nothing is done. Threads that
the calling one starts afterwards inherit what is set here. A thread cannot be raised again without a privilege.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading

LOWEST = 19  # the highest nice value: about a seventieth of the share of a thread at 0


def lower(nice: int = LOWEST) -> None:
    """Run this thread at a nice value; as it was where that is not allowed."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), nice)


def idle() -> None:
    """Run this thread only while a core has nothing else to do; at the lowest nice value where that is not allowed."""
    lower()
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))  # 0 is the calling thread
