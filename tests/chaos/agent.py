"""One place of the training, as torchrun's agent is: starts the rank's process anew when it is told to.

Reads lines of JSON, {"generation": 3, "env": {...}}; prints {"pid": ...} for each, and {"ended": ..., "pid": ...} when the
process has ended (a negative number is a signal's). PyTorch is imported once, before the ranks are forked.

With a number as third argument, it runs the training with so many ranks instead, once, and ends with 1 if one of them failed.
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


def die_with_parent():
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


def say(**what):
    print(json.dumps(what), flush=True)


def start(folder, timeout_s, order):
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        die_with_parent()
        os.environ.update(order["env"])
        training.train(folder, order["generation"], datetime.timedelta(seconds=timeout_s))
        status = 0
    except BaseException:  # a forked process must not go on in the agent's code
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def run_all(folder, timeout_s, size):
    started = [start(folder, timeout_s, {"generation": 1, "env": {"RANK": str(rank)}}) for rank in range(size)]
    statuses = [os.waitpid(pid, 0)[1] for pid in started]
    return int(any(statuses))


def main():
    folder, timeout_s = sys.argv[1], float(sys.argv[2])
    die_with_parent()
    if len(sys.argv) > 3:
        sys.exit(run_all(folder, timeout_s, int(sys.argv[3])))
    say(ready=True)
    with selectors.DefaultSelector() as selector:
        selector.register(sys.stdin, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is sys.stdin:
                    line = sys.stdin.readline()
                    if not line:
                        return
                    pid = start(folder, timeout_s, json.loads(line))
                    selector.register(os.pidfd_open(pid), selectors.EVENT_READ, pid)
                    say(pid=pid)
                else:
                    selector.unregister(key.fileobj)
                    os.close(key.fd)
                    status = os.waitstatus_to_exitcode(os.waitpid(key.data, 0)[1])
                    say(pid=key.data, ended=status)


if __name__ == "__main__":
    main()
