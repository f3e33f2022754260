"""What a server, or one of its requests, asks for."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from thg.errors import PlanError
from thg.plans.planners import Planned, guide_maker

VARIABLE = "THG_SERVING"
KEY = "thg"  # of a request's extra parameters
OFF, ON_REQUEST = "off", "on request"
FORMS = '"1%" (a tolerance), 0.5 (a share of the evaluations) or "off"'


@dataclass(frozen=True)
class ServerSetting:
    """text: as it was written. default: for requests that ask for nothing; None: they run as they are."""

    text: str
    default: Planned | None

    def of_request(self, extra: Any) -> Planned | None:
        """What to do for a request with these extra parameters; None: nothing."""
        if not isinstance(extra, dict) or extra.get(KEY) is None:
            return self.default
        return planned(extra[KEY])


def server_setting() -> ServerSetting | None:
    """The setting of this process; None: thg is installed and not switched on."""
    text = os.environ.get(VARIABLE, "").strip()
    if text.lower() in ("", OFF, "0"):
        return None
    return ServerSetting(text, None if text.lower() == ON_REQUEST else planned(text))


def planned(value: Any) -> Planned | None:
    """The planner of a setting or of a request's parameter; None for "off"."""
    if value is False or (isinstance(value, str) and value.strip().lower() == OFF):
        return None
    try:
        number = float(value) if isinstance(value, str) and not value.strip().endswith("%") else value
        maker = guide_maker(number.strip() if isinstance(number, str) else number)
    except (ValueError, PlanError) as error:
        raise PlanError(f"{KEY}={value!r} is not a setting; write {FORMS}") from error
    if not isinstance(maker, Planned) or maker.skips != "network":
        raise PlanError(f"{KEY}={value!r} is not a setting for a server; write {FORMS}")
    return maker
