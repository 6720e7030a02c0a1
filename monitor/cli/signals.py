"""Signals that ask a command to stop, or to do something else."""

from __future__ import annotations

import signal
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager


@contextmanager
def stop_on_signals(
    stop: Callable[[], object], signal_numbers: Collection[signal.Signals] = (signal.SIGTERM, signal.SIGINT)
) -> Iterator[Sequence[int]]:
    """Call `stop` on the first of the signals while the block runs, and yield the list of received signals.

    A second signal of the same number has its default effect: the process ends at once.
    """
    received_signals: list[int] = []

    def handle_signal(number: int, _frame: object) -> None:
        signal.signal(number, signal.SIG_DFL)
        received_signals.append(number)
        stop()

    previous_handlers = {number: signal.signal(number, handle_signal) for number in signal_numbers}
    try:
        yield received_signals
    finally:
        for number, handler in previous_handlers.items():
            signal.signal(number, handler)


@contextmanager
def call_on_signal(number: signal.Signals, callback: Callable[[], object]) -> Iterator[None]:
    """Call a function on each signal of a number while the block runs."""
    previous_handler = signal.signal(number, lambda _number, _frame: callback())
    try:
        yield
    finally:
        signal.signal(number, previous_handler)
