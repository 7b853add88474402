"""
Files of the Hugging Face hub, by the package huggingface_hub: resumed where they broke off, kept in
its cache, and found there without a network. HF_TOKEN, HF_ENDPOINT (a mirror) and HF_HOME (the
cache) are its own.

>>> from_hub("gpt2", ["config.json"]) / "config.json"
"""

from pathlib import Path

from tqdm.auto import tqdm

from nanostories.cli import UserError


class Bar(tqdm):
    """On a terminal, and after a second: most calls find all in the cache."""

    def __init__(self, *args, **settings):
        super().__init__(*args, **settings | {"disable": None, "delay": 1})


def from_hub(repository: str, patterns: list[str], kind: str = "model") -> Path:
    """The directory with those files of a repository ("model" or "dataset") that match; downloaded
    if they are new."""
    import huggingface_hub  # here, as it is slow to import
    from huggingface_hub import errors

    try:
        directory = huggingface_hub.snapshot_download(
            repository, repo_type=kind, allow_patterns=patterns, tqdm_class=Bar
        )
        return Path(directory)
    except (errors.HFValidationError, errors.RepositoryNotFoundError):
        # The hub says "not found" of private ones, too.
        reason = (
            f"neither a directory here nor a {kind} there, such as owner/name, or it is private"
        )
    # HTTPError is httpx's; a ValueError may come from a token or an address.
    except (OSError, ValueError, errors.HTTPError) as error:
        # The first error of a chain is the telling one.
        while error.__cause__:
            error = error.__cause__
        # Not the error's text, which may hold addresses and secrets.
        name = getattr(error, "strerror", None) or type(error).__name__
        status = getattr(getattr(error, "response", None), "status_code", "")
        reason = f"{name} {status}".strip()
    remedy = "check the name, the network, and HF_TOKEN and HF_ENDPOINT if set; run again to resume"
    raise UserError(f"{repository!r} from the hub: {reason}; {remedy}")
