"""
Files of the Hugging Face hub, by the package huggingface_hub: resumed where they broke off, kept in its cache, and
found there without a network. HF_TOKEN, HF_ENDPOINT (a mirror) and HF_HOME (the cache) are its own.

>>> from_hub("gpt2", ["config.json"]) / "config.json"
"""

from collections.abc import Sequence
from pathlib import Path


class HubError(ValueError):
    """A download that failed: the repository, the reason, what to do, in one line."""


def from_hub(repository: str, patterns: Sequence[str], kind: str = "model") -> Path:
    """The directory with those files of a repository that match the patterns; they are downloaded if they are new.

    kind: "model" or "dataset".
    """
    import huggingface_hub  # here, as it is slow to import
    from huggingface_hub import errors

    try:
        return Path(huggingface_hub.snapshot_download(repository, repo_type=kind, allow_patterns=list(patterns)))
    except errors.HFValidationError:
        raise HubError(f"{repository!r}: neither a directory here nor a hub ID such as owner/name or gpt2") from None
    except errors.RepositoryNotFoundError:  # the hub answers so for private ones, too
        reason = f"no such {kind}, or it is private"
    except (OSError, ValueError, errors.HTTPError) as error:  # HTTPError: httpx's
        reason = cause(error)
    remedy = "check the name, the network, and HF_TOKEN and HF_ENDPOINT if set; run again to resume"
    raise HubError(f"{repository!r} from the hub: {reason}; {remedy}")


def cause(error: BaseException) -> str:
    """Without the error's text, which may hold addresses and secrets. The first error in a chain is the telling one."""
    while error.__cause__:
        error = error.__cause__
    status = getattr(getattr(error, "response", None), "status_code", None)
    return f"HTTP status {status}" if status else getattr(error, "strerror", None) or type(error).__name__
