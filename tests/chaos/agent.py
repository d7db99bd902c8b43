"""Starts the ranks' processes, as torchrun's agent does: each is forked from this one, which has imported PyTorch once for all.

Reads lines of JSON, {"rank": 1, "folder": ..., "generation": 3, "namespace": ..., "env": {...}}, of which the network namespace may be
null; prints {"rank": ..., "pid": ...} for each, and {"rank": ..., "pid": ..., "ended": ...} when the process has ended (a negative
number is a signal's).
"""

import ctypes
import datetime
import gc
import json
import os
import selectors
import signal
import sys
import traceback

gc.disable()  # it would search PyTorch, while that is imported, for a second
import training  # noqa: E402

gc.freeze()
gc.enable()

LIBC = ctypes.CDLL(None, use_errno=True)


def die_with_parent():
    pr_set_pdeathsig = 1
    LIBC.prctl(pr_set_pdeathsig, signal.SIGKILL)


def enter(namespace):
    clone_newnet = 0x40000000
    there = os.open(f"/run/netns/{namespace}", os.O_RDONLY | os.O_CLOEXEC)
    if LIBC.setns(there, clone_newnet) != 0:
        raise OSError(ctypes.get_errno(), f"cannot enter the network namespace {namespace}")
    os.close(there)


def say(**what):
    print(json.dumps(what), flush=True)


def start(timeout_s, order):
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        die_with_parent()
        os.environ.update(order["env"])
        if order["namespace"] is not None:
            enter(order["namespace"])
        training.train(order["folder"], order["generation"], datetime.timedelta(seconds=timeout_s))
        status = 0
    except BaseException:  # a forked process must not go on in the agent's code
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def main():
    timeout_s = float(sys.argv[1])
    die_with_parent()
    say(ready=True)
    with selectors.DefaultSelector() as selector:
        selector.register(sys.stdin, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is sys.stdin:
                    line = sys.stdin.readline()
                    if not line:
                        return
                    order = json.loads(line)
                    pid = start(timeout_s, order)
                    selector.register(os.pidfd_open(pid), selectors.EVENT_READ, (order["rank"], pid))
                    say(rank=order["rank"], pid=pid)
                else:
                    selector.unregister(key.fileobj)
                    os.close(key.fd)
                    rank, pid = key.data
                    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                    say(rank=rank, pid=pid, ended=status)


if __name__ == "__main__":
    main()
