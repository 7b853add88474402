"""
Files of the Hugging Face hub, by the package huggingface_hub: resumed where they broke off, kept in its cache, and
found there without a network. HF_TOKEN, HF_ENDPOINT (a mirror) and HF_HOME (the cache) are its own.

>>> from_hub("gpt2", ["config.json"]) / "config.json"
"""

from collections.abc import Sequence
from pathlib import Path


def from_hub(repository: str, patterns: Sequence[str], kind: str = "model") -> Path:
    """The directory with those files of a repository that match the patterns; they are downloaded if they are new.

    kind: "model" or "dataset". ValueError: the repository, the reason and what to do, in one line.
    """
    import huggingface_hub  # here, as it is slow to import
    from huggingface_hub import errors

    try:
        return Path(huggingface_hub.snapshot_download(repository, repo_type=kind, allow_patterns=list(patterns)))
    except errors.HFValidationError:
        raise ValueError(f"{repository!r}: neither a directory here nor a hub ID such as owner/name or gpt2") from None
    except errors.RepositoryNotFoundError:  # the hub answers so for private ones, too
        reason = f"no such {kind}, or it is private"
    except (OSError, ValueError, errors.HTTPError) as error:  # HTTPError: httpx's
        while error.__cause__:  # the first error of a chain is the telling one
            error = error.__cause__
        status = getattr(getattr(error, "response", None), "status_code", "")
        # Not the error's text, which may hold addresses and secrets.
        reason = f"{getattr(error, 'strerror', None) or type(error).__name__} {status}".strip()
    remedy = "check the name, the network, and HF_TOKEN and HF_ENDPOINT if set; run again to resume"
    raise ValueError(f"{repository!r} from the hub: {reason}; {remedy}")
