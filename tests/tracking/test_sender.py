"""Calls that hang or fail, made in a thread of their own."""

import threading
import time

import pytest

from easyr1.tracking import sender
from easyr1.tracking.sender import Sender


def test_calls_are_made_in_their_order_and_the_thread_ends_with_the_last():
    made = []
    sending = Sender("a service")
    for number in range(50):
        sending.do(lambda number=number: made.append(number))
    sending.close(lambda: made.append("end"))
    assert made == [*range(50), "end"]
    assert not [thread for thread in threading.enumerate() if thread.name == "sender to a service"]


def test_a_call_that_hangs_holds_up_nobody(monkeypatch):
    monkeypatch.setattr(sender, "CLOSE_S", 0.1)
    monkeypatch.setattr(sender, "MAX_WAITING", 3)
    answers = threading.Event()
    sending = Sender("a service")
    start = time.monotonic()
    with pytest.raises(TimeoutError, match="3 calls wait"):
        for _ in range(6):
            sending.do(lambda: answers.wait(20))
    with pytest.raises(TimeoutError, match=r"within 0\.1 s"):
        sending.close(lambda: None)
    assert time.monotonic() - start < 10
    answers.set()


def test_a_failed_call_is_told_by_the_next_and_those_behind_it_are_made():
    made = []

    def fail():
        made.append("failed")
        raise OSError("no network")

    sending = Sender("a service")
    sending.do(fail)
    while not made:
        time.sleep(0.001)
    time.sleep(0.05)
    with pytest.raises(OSError, match="no network"):
        sending.do(lambda: made.append("next"))
    with pytest.raises(OSError, match="no network"):
        sending.close(fail)
    assert made == ["failed", "next", "failed"]
