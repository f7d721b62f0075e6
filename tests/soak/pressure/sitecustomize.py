"""Random pressure from the garbage collector, in every Python process that a trial starts; Python imports this first.

`ZEROLAB_SOAK_PRESSURE` is a threshold and milliseconds: every so many new objects the collector runs, and in any thread
but the main one it then lets the others run for so long, as it does when what it frees lets go of the interpreter.
"""

import gc
import os
import sys
import threading
import time

_threshold, _, _nap = os.environ.get("ZEROLAB_SOAK_PRESSURE", "").partition(" ")


def _let_go(phase, info, sleep=time.sleep, here=threading.current_thread, main=threading.main_thread):
    if not sys.is_finalizing() and here() is not main():
        sleep(float(_nap) / 1000)


if _threshold:
    gc.set_threshold(int(_threshold))
if float(_nap or 0):
    gc.callbacks.append(_let_go)
