"""The base of all tab requests: no unknown fields and no NaN."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Share = Annotated[float, Field(ge=0, le=1)]


class TabRequest(BaseModel):
    """The state of a tab. Every field is bounded; the defaults are the first view."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, frozen=True)
