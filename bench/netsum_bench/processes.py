"""Starts and ends the processes of benchmarks and tests. Every wait has a deadline, and nothing is left running."""

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import tempfile
import threading
import time

DEADLINE_S = 300  # of one measurement


class Failed(Exception):
    """Something could not be run or measured; the message says what, and why."""


# What may go wrong with one system without ending the run of all: also output that cannot be understood, or a timeout.
PROBLEMS = (Failed, OSError, ValueError, LookupError, subprocess.SubprocessError)


def forget_settings_of_peers():
    """Of the shell that has started this: they would hold beside those that are tried."""
    for name in [name for name in os.environ if name.startswith(("GLOO_", "NCCL_", "OMPI_MCA_", "PMIX_MCA_"))]:
        del os.environ[name]


def start(command, env=None):
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)


def free_port(kind=socket.SOCK_STREAM):
    """A port of 127.0.0.1 outside the kernel's ephemeral range, so that no bind to port 0 takes it before its user does."""
    with socket.socket(socket.AF_INET, kind) as probe:
        for port in random.sample(range(12_000, 28_000), 100):
            with contextlib.suppress(OSError):
                probe.bind(("127.0.0.1", port))
                return port
    raise Failed("100 of the ports from 12000 to 28000 are in use")


@contextlib.contextmanager
def running(command, first_words, what, env=None, end_s=0):
    """A process for the time of a `with`, once its first line begins with these words; or Failed with its errors.

    The line is `process.first_line`. At the end the process gets SIGTERM and `end_s` seconds, then SIGKILL.
    """
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=env)
        try:
            process.first_line = process.stdout.readline()
            if not process.first_line.startswith(first_words):
                process.wait(10)
                log.seek(0)
                raise Failed(f"{what} did not start: {(process.first_line + log.read()).strip()[-500:]}")
            yield process
        finally:
            if end_s > 0:
                process.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(end_s)
            process.kill()
            process.wait()
            process.stdout.close()


class Watched:
    """A process whose lines of output are read by threads.

    `on_line(stream, line)`, with "out" or "err", runs with the lock of `changed`, which is notified after each line and at the end
    of the output.
    """

    def __init__(self, command, on_line, **popen):
        self.process = subprocess.Popen([*map(str, command)], stdout=subprocess.PIPE, text=True, **popen)
        self.changed = threading.Condition()
        self._on_line = on_line
        streams = {"out": self.process.stdout, "err": self.process.stderr}
        self._open = sum(stream is not None for stream in streams.values())
        self._readers = [
            threading.Thread(target=self._read, args=named, daemon=True) for named in streams.items() if named[1]
        ]
        for reader in self._readers:
            reader.start()

    def _read(self, name, stream):
        for line in stream:
            with self.changed:
                self._on_line(name, line.rstrip("\n"))
                self.changed.notify_all()
        with self.changed:
            self._open -= 1
            self.changed.notify_all()

    @property
    def has_ended(self):
        """Whether all its output has been read."""
        return self._open == 0

    def wait(self, condition, seconds):
        """Waits until condition() is true, the output ends, or the time is over; returns condition()."""
        with self.changed:
            self.changed.wait_for(lambda: condition() or self.has_ended, seconds)
            return condition()

    def end(self, seconds):
        """Waits for the end of the process and its output; returns the exit status."""
        status = self.process.wait(seconds)
        for reader in self._readers:
            reader.join(seconds)
        return status

    def close(self, seconds=60):
        """Kills the process."""
        self.process.kill()
        self.end(seconds)
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                with contextlib.suppress(OSError):  # a broken pipe
                    stream.close()


def finish(processes, deadline_s=DEADLINE_S):
    """Waits for all; their output, or Failed with what the first bad one said. None is left running."""
    end = time.monotonic() + deadline_s
    outputs, problem = [], None
    try:
        for process in processes:
            try:
                out, err = process.communicate(timeout=max(0.1, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                out, err = process.communicate()
                problem = problem or f"no end after {deadline_s} s: {err.strip()[-500:]}"
            if process.returncode != 0 and problem is None:
                problem = err.strip()[-500:] or f"exit status {process.returncode}"
            outputs.append(out)
    finally:  # also when the benchmark is interrupted
        for process in processes:
            if process.returncode is None:
                process.kill()
                process.wait()
    if problem:
        raise Failed(problem)
    return outputs


def end_in_order():
    """The first SIGINT, SIGTERM or SIGHUP becomes a KeyboardInterrupt; later ones must not disturb the tidying up."""
    endings = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def stop(number, frame):
        for ending in endings:
            signal.signal(ending, signal.SIG_IGN)
        raise KeyboardInterrupt

    for ending in endings:
        signal.signal(ending, stop)


def reports(commands, deadline_s=DEADLINE_S, env=None):
    """Runs all at the same time; the JSON that each prints."""
    return [json.loads(out) for out in finish([start(command, env) for command in commands], deadline_s)]
