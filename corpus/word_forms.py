from instruct import pattern  # placeholder until H3 merges


def uses(text: str, word: str) -> bool:
    """Whether the word is there, in any form that English has, or as it stands."""
    return bool(pattern(word).search(text)) or word.casefold() in text.casefold()
