"""Ctrl-C and SIGTERM while a run trains: it ends after the current step, with a checkpoint. A second signal ends it at once."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from numerate.lab.files.records import is_first_process

if TYPE_CHECKING:
    from typing_extensions import Self

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_SAID = b"\nInterrupted: saving a checkpoint after this step. Again to stop at once, without one.\n"


class Interruption:
    """While entered, signals raise a KeyboardInterrupt; while steps are :meth:`finished <finishing_steps>`, the second one does.

    Signals of other threads than the main one, and those that are ignored (``nohup``), are left as they are.
    """

    def __init__(self) -> None:
        self.caught: int | None = None  # the last signal
        self._waits = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            known = {number: signal.getsignal(number) for number in _SIGNALS}
            self._before = {number: handler for number, handler in known.items() if handler not in (signal.SIG_IGN, None)}
        for number in self._before:
            signal.signal(number, self._catch)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @contextmanager
    def finishing_steps(self) -> Iterator[None]:
        """Let the first signal wait for the end of a step."""
        self._waits = True
        try:
            yield
        finally:
            self._waits = False

    def check(self) -> None:
        """Raise a KeyboardInterrupt if a signal has waited."""
        if self.caught is not None:
            raise KeyboardInterrupt

    def _catch(self, number: int, _: object) -> None:
        again, self.caught = self.caught is not None, number
        if again or not self._waits:
            raise KeyboardInterrupt
        if is_first_process():
            os.write(2, _SAID)  # not print, which may be what was interrupted
