"""The harness of these tests: what it tells of ranks that hang, and of threads."""

import re
import threading
import time

import pytest
import ranks
import torch.distributed as dist


def test_a_rank_that_hangs_shows_where(monkeypatch):
    monkeypatch.setattr(ranks, "DEADLINE_S", 6)

    def sleep_for_ever():
        threading.Thread(target=dist.barrier, daemon=True).start()
        while True:
            time.sleep(0.1)

    def on_rank(rank):
        if rank == 0:
            sleep_for_ever()
        while True:
            dist.barrier()

    for outcome, place in zip(
        ranks.run_all_outcomes(on_rank, world_size=2), ("sleep_for_ever", "in barrier"), strict=True
    ):
        assert outcome.error_type == "Hung"
        assert re.search(rf"most recent call first(?s:.)*{place}", outcome.error), outcome.error


def test_ranks_are_not_forked_from_a_process_with_threads(monkeypatch):
    monkeypatch.setattr(ranks, "STACKS_DEADLINE_S", 0.1)
    end = threading.Event()
    thread = threading.Thread(target=end.wait, name="left behind")
    thread.start()
    try:
        with pytest.raises(AssertionError, match="left behind"):
            ranks.run(lambda rank: None)
    finally:
        end.set()
        thread.join()
