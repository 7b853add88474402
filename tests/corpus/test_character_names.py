"""corpus/character_names.py: one rule for names, whoever counts and over whatever text."""

from corpus.character_names import Counts, count_capitals, names_among


def names_of(*texts: str) -> list[str]:
    counts = Counts()
    for text in texts:
        count_capitals(text, counts)
    return names_among(counts.items())


def test_names_have_a_capital_in_mid_sentence_more_often_than_not():
    assert names_of("One day, Zora saw Tom and I. The dog saw a rose, Rose.") == ["zora", "tom"]  # once each: a tie
    assert names_of("I saw Fluffy.", "Then, Fluffy ran.", "a fluffy cat") == ["fluffy"]  # over all texts together
    assert names_of('Zora ran! "Lily," he said. "Go, Ben!" (Then Sue said: Max!)') == ["ben", "sue"]  # after a stop: no
