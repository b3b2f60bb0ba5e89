"""One line to the user: what ``attach`` did."""

from __future__ import annotations

import logging
import sys

_LOGGER = logging.getLogger("numerate")


class _Stderr(logging.Handler):
    """Writes to what ``sys.stderr`` is now: notebooks and tests replace it."""

    def emit(self, record: logging.LogRecord) -> None:
        sys.stderr.write(f"{self.format(record)}\n")


def notice(text: str, *, shown: bool = True) -> None:
    """Log a line at level INFO to the logger ``numerate``, if it is not empty; to stderr unless logging was configured.

    ``logging.getLogger("numerate").setLevel(logging.WARNING)`` turns it off.
    """
    if not text or not shown:
        return
    if _LOGGER.level == logging.NOTSET:
        _LOGGER.setLevel(logging.INFO)
    if not _LOGGER.hasHandlers():
        _LOGGER.addHandler(_Stderr())
    _LOGGER.info("numerate: %s", text)
