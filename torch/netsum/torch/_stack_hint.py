"""Where the main thread is: for the ranks that wait for this one (netsum/stack_hint.h)."""

import atexit
import os
import sys
import sysconfig
import threading

from netsum.torch import _C

# Whoever waits in a library was called by the program.
_LIBRARIES = tuple(
    os.path.realpath(path) + os.sep
    for path in {
        *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
        os.path.dirname(os.path.dirname(os.path.dirname(_C.__file__))),
    }
)


def _is_of_library(frame):
    name = frame.f_code.co_filename
    return name.startswith("<frozen") or os.path.realpath(name).startswith(_LIBRARIES)


def _place(frame):
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno} in {frame.f_code.co_name}"


def stack_hint():
    """Returns where the program is, such as "train.py:41 in forward", and behind it where in a library, if it is in one."""
    innermost = sys._current_frames().get(threading.main_thread().ident)
    if innermost is None:
        return ""
    frame = innermost
    while frame is not None and _is_of_library(frame):
        frame = frame.f_back
    if frame is None or frame is innermost:
        return _place(innermost)
    return f"{_place(frame)} ({_place(innermost)})"


_C.set_stack_hint(stack_hint)
# Its call needs an interpreter.
atexit.register(_C.set_stack_hint, None)
