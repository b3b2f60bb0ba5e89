"""The table of losses on the page ``docs/choosing.md``. Needs neither MkDocs nor torch.

The page says of each loss what to take it for. A loss that it does not have yet gets a row with what the loss says it sees.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

HEADING = "## 3. The loss"
_ROW = re.compile(r"^\| `(\w+)` \|.*$", re.MULTILINE)


def rows(markdown: str) -> list[str]:
    """Return the names in the table, in its order."""
    return [row[1] for row in _ROW.finditer(markdown, markdown.index(HEADING))]


def with_other_losses(markdown: str, losses: Iterable[tuple[str, str]]) -> str:
    """Return the page with a row for each loss, by its name and what it sees, that the table does not have."""
    *_, last = _ROW.finditer(markdown, markdown.index(HEADING))
    known = rows(markdown)
    others = "".join(f"\n| `{name}` | {sees} | |" for name, sees in losses if name not in known)
    return markdown[: last.end()] + others + markdown[last.end() :]
