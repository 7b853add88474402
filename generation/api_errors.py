"""
What an error of an OpenAI-compatible API means: does it concern all requests, may a retry help, may it have cost money?

>>> final_remedy(error) or ("again" if may_pass(error) else "not this one")
"""

import email.utils
import re
import time

import openai

LONGEST_PLAUSIBLE = 366 * 86400.0  # seconds; a longer Retry-After is the endpoint's mistake


def final_remedy(error: Exception) -> str | None:
    """What to do about an error that every other request would meet, too; None for other errors."""
    status = getattr(error, "status_code", None)
    if status == 401 or (status == 403 and not is_flagged(error) and re.search(FORBIDDEN, str(error), re.IGNORECASE)):
        return "check OPENAI_API_KEY"
    if status == 404:
        return "check the name of the model, and --base_url"
    if status == 402 or getattr(error, "code", None) == "insufficient_quota":
        return "the account has no credit left"
    return None


# A 403 may concern this request or all of them. If its text does not say, several in a row concern all.
FLAGGED = (
    r"\b(input|prompt|content|text|messages?|completion|request)\b.{0,40}\b(flagged|violat|unsafe)|moderation"
    r"|content[ _-]?(policy|filter|management)"
)
FORBIDDEN = r"\b(api_)?keys?\b|permi(ssion|tted)|region|countr|territor|access|account|organi[sz]ation|project|credit"


def is_flagged(error: Exception) -> bool:
    """Whether this request was refused because of its content."""
    is_refused = getattr(error, "status_code", None) in (400, 403, 422)
    return is_refused and bool(re.search(FLAGGED, str(error), re.IGNORECASE))


def may_have_cost(error: Exception) -> bool:
    """Whether the request may have been charged: not if it got an error status, or could not be sent at all."""
    no_connection = type(error.__cause__).__name__ in ("ConnectError", "ConnectTimeout", "PoolTimeout")
    return not isinstance(error, openai.APIStatusError) and not no_connection


def is_throttled(error: Exception) -> bool:
    """Too many requests, without a Retry-After."""
    return getattr(error, "status_code", None) == 429 and retry_after(error) is None


def may_pass(error: Exception) -> bool:
    status = getattr(error, "status_code", None)
    return status is None or status in (200, 408, 409, 429) or status >= 500


def retry_after(error: Exception) -> float | None:
    """Seconds that the endpoint asks to wait, given as a number or as a date; None if missing or unreadable."""
    value = error.response.headers.get("retry-after", "") if isinstance(error, openai.APIStatusError) else ""
    try:
        if re.fullmatch(r"\s*\d+(\.\d+)?\s*", value):
            seconds = float(value)
        else:
            seconds = max(0.0, email.utils.mktime_tz(email.utils.parsedate_tz(value)) - time.time())
    except (ValueError, OverflowError, TypeError, IndexError):
        return None
    return seconds if seconds < LONGEST_PLAUSIBLE else None
