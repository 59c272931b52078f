"""Ctrl-C: once, twice, and not at all."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from oarlock.launch import Interrupt

WAITING = """
import time
from oarlock.launch import Interrupt

with Interrupt(lambda name: print("announced", name, flush=True)) as interrupt:
    print("open", flush=True)
    try:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            time.sleep(0.01)
            if interrupt.requested:
                print("seen", flush=True)
                {then}
    finally:
        print("cleaned up", flush=True)
"""
GO_ON = "pass"


def start(then: str, program: str = WAITING) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", program.format(then=then)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    wait_for(process, "open")
    return process


def wait_for(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdout is not None
    for found in process.stdout:
        if found.strip() == line:
            return
    raise AssertionError(f"ended without {line!r}")


@pytest.mark.parametrize("number", Interrupt.SIGNALS)
def test_the_first_signal_only_asks(number: signal.Signals) -> None:
    announced: list[str] = []
    with Interrupt(announced.append) as interrupt:
        assert not interrupt.requested
        os.kill(os.getpid(), number)
        assert interrupt.requested
    assert announced == [number.name]


@pytest.mark.parametrize("number", Interrupt.SIGNALS)
def test_c57_after_the_first_signal_a_process_ends_in_its_own_time(number: signal.Signals) -> None:
    process = start(then="break")
    process.send_signal(number)
    output, _ = process.communicate(timeout=30)
    assert process.returncode == 0
    assert output.split() == ["announced", number.name, "seen", "cleaned", "up"]


@pytest.mark.parametrize("second", Interrupt.SIGNALS)
@pytest.mark.parametrize("first", Interrupt.SIGNALS)
def test_c57_the_second_signal_ends_it_at_once(first: signal.Signals, second: signal.Signals) -> None:
    """Without cleaning up: that is what the first one is for."""
    process = start(then=GO_ON)
    process.send_signal(first)
    wait_for(process, "seen")
    began = time.monotonic()
    process.send_signal(second)
    output, _ = process.communicate(timeout=30)
    assert time.monotonic() - began < 5
    assert process.returncode == 128 + second
    assert "cleaned up" not in output


def test_handlers_are_restored() -> None:
    before = [signal.getsignal(number) for number in Interrupt.SIGNALS]
    with Interrupt(print):
        assert [signal.getsignal(number) for number in Interrupt.SIGNALS] != before
    assert [signal.getsignal(number) for number in Interrupt.SIGNALS] == before
    with pytest.raises(ZeroDivisionError), Interrupt(print):
        raise ZeroDivisionError
    assert [signal.getsignal(number) for number in Interrupt.SIGNALS] == before


def test_a_handler_that_was_there_serves_again_and_not_before() -> None:
    caught: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: caught.append(number))
    try:
        with Interrupt(lambda name: None):
            os.kill(os.getpid(), signal.SIGTERM)
            assert caught == []
        os.kill(os.getpid(), signal.SIGTERM)
        assert caught == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)


def test_outside_the_main_thread_nothing_is_changed() -> None:
    before = [signal.getsignal(number) for number in Interrupt.SIGNALS]
    seen: list[object] = []

    def open_it() -> None:
        with Interrupt(print) as interrupt:
            seen.extend([interrupt.requested, [signal.getsignal(number) for number in Interrupt.SIGNALS]])

    thread = threading.Thread(target=open_it)
    thread.start()
    thread.join()
    assert seen == [False, before]
    assert [signal.getsignal(number) for number in Interrupt.SIGNALS] == before


def test_a_signal_during_the_announcement_does_not_wait() -> None:
    """A terminal that blocks the announcement must not keep the second signal from ending the process."""
    hang = WAITING.replace('print("announced", name, flush=True)', 'print("announcing", flush=True) or time.sleep(60)')
    process = start("break", hang)
    process.send_signal(signal.SIGINT)
    wait_for(process, "announcing")
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode == 128 + signal.SIGINT
