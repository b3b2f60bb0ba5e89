"""The base of all tab requests: no unknown fields, no NaN, and errors as sentences."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

Share = Annotated[float, Field(ge=0, le=1)]
_MOST_SHOWN = 60


class TabRequest(BaseModel):
    """The state of a tab. Every field is bounded; the defaults are the first view."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, frozen=True)


def plain_sentence(error: ValidationError) -> str:
    """Return the first error of a request as one sentence with field, value and expectation."""
    first = error.errors(include_url=False)[0]
    where = ".".join(map(str, first["loc"])) or "the request"
    message = first["msg"].removeprefix("Value error, ").rstrip(".")
    if first["type"] in ("value_error", "missing", "json_invalid"):
        return f"{where}: {message}."
    value = repr(first["input"])
    value = value if len(value) <= _MOST_SHOWN else f"{value[:_MOST_SHOWN]}.."
    return f"{where}={value}: {message}."
