"""
Does a text have a bad ending? Only the seven sentences by which built-in plots end badly are recognized (the plots mark
them @BadEnding).

>>> ends_badly("Tom never saw the kite again.")
True
"""

import re

BAD_ENDINGS = re.compile(
    r"and [^.]+? (walked|went) home (alone|without a word), and (neither|nobody) had an? [^.]+? any more"
    r"|(sighed|said nothing) and (turned away|looked very sad)"
    r"|There were no [^.]+? for [^.]+?, no games and no songs"
    r"|(Far away|Behind the trees), [^.]+? heard them (cheer|clap)"
    r"|Then it was gone (for ever|for good)"
    r"| was gone, and (no more snow fell that winter|the snow outside was gone too)"
    r"| never saw the [^.]+? again",
    re.I,
)


def ends_badly(text: str) -> bool:
    return BAD_ENDINGS.search(text) is not None
