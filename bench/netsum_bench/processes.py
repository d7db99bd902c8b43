"""Starts and ends the processes of benchmarks. Every wait has a deadline, and nothing is left running."""

import contextlib
import json
import signal
import subprocess
import tempfile
import time

DEADLINE_S = 300  # of one measurement


class Failed(Exception):
    """Something could not be run or measured; the message says what, and why."""


# What may go wrong with one system without ending the run of all: also output that cannot be understood, or a timeout.
PROBLEMS = (Failed, OSError, ValueError, LookupError, subprocess.SubprocessError)


def start(command, env=None):
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)


@contextlib.contextmanager
def running(command, first_words, what):
    """A process for the time of a `with`, once its first line begins with these words; or Failed with what it said."""
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        try:
            if not process.stdout.readline().startswith(first_words):
                process.wait(10)
                log.seek(0)
                raise Failed(f"{what} did not start: {log.read().strip()[-500:]}")
            yield process
        finally:
            process.kill()
            process.wait()
            process.stdout.close()


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
