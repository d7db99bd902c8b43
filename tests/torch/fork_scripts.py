"""Runs Python scripts in processes forked from this one, which has imported torch: each import takes seconds.

Reads lines of JSON, {"deadline_s": ..., "scripts": [{"script": text, "arguments": [...], "environment": {...}, "output": path,
"errors": path}, ...]}. All of a line run at the same time. Prints a line when all have ended: their exit codes, null for one that
was killed at the deadline. A script is this program's main module: it ends as one that Python was given, with the interpreter's own
shutdown.
"""

import gc

gc.disable()  # it would search what is imported, again and again, for a second

import encodings.idna  # noqa: E402, F401
import json  # noqa: E402
import os  # noqa: E402
import select  # noqa: E402
import signal  # noqa: E402
import sys  # noqa: E402
import time  # noqa: E402

import netsum.torch  # noqa: E402, F401
import torch._dynamo  # noqa: E402  (by optimizers and DistributedDataParallel: seconds)
import torch.distributed  # noqa: E402

import torch  # noqa: E402, F401


def become(order):
    """Of this new process: what it is to run."""
    os.environ.update(order["environment"])
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number, path in ((1, order["output"]), (2, order["errors"])):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
    sys.argv = ["script.py", *order["arguments"]]
    return order["script"]


def exit_code(process, deadline):
    ended = select.select([process], [], [], max(0.0, deadline - time.monotonic()))[0]
    if not ended:
        signal.pidfd_send_signal(process, signal.SIGKILL)
    status = os.waitid(os.P_PIDFD, process, os.WEXITED)
    os.close(process)
    if not ended:
        return None
    return status.si_status if status.si_code == os.CLD_EXITED else -status.si_status


def serve():
    """Returns in the new processes, with what they are to run, and at the end of the input."""
    for line in sys.stdin:
        request = json.loads(line)
        processes = []
        for order in request["scripts"]:
            process = os.fork()
            if process == 0:
                return become(order)
            processes.append(os.pidfd_open(process))
        deadline = time.monotonic() + request["deadline_s"]
        print(json.dumps([exit_code(process, deadline) for process in processes]), flush=True)
    return ""


gc.freeze()  # nor when a script ends
gc.enable()
exec(compile(serve(), "script.py", "exec"))
