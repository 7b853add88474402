"""
The built-in practice corpus: children's stories in the manner of TinyStories (arXiv:2305.07759,
section 2), put together from words and plots, so that what each story contains is known. These are
in builtin_*.txt beside this file, in sections that begin with a line "== name"; builtin_plots.txt
begins with how to read them.

>>> print(tell(seed=0, index=0).text)
"""

import collections
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import regex

FEATURES = ("Dialogue", "Twist", "BadEnding", "MoralValue", "Foreshadowing", "Conflict")


# ---- Words and plots ----
def read_sections(name: str) -> dict[str, str]:
    """{name: text}. The text above the first section is for the reader."""
    text = Path(__file__).with_name(name).read_text(encoding="utf-8")
    pieces = re.split(r"(?m)^== (.*)\n", text)[1:]
    return dict(zip(pieces[::2], map(str.strip, pieces[1::2])))


WORDS, SLOTS = {}, {}  # part of speech -> its words; slot -> what can fill it
for head, text in read_sections("builtin_words.txt").items():
    part_of_speech, _, slot = head.partition(": ")
    SLOTS[slot] = " ".join(text.split()).split(", ") if "," in text else text.split()
    WORDS[part_of_speech] = tuple(dict.fromkeys([*WORDS.get(part_of_speech, ()), *SLOTS[slot]]))

GIRLS, BOYS = SLOTS["girl"], SLOTS["boy"]
NAMES = (*GIRLS, *BOYS)
NOUNS, ADJECTIVES, PRONOUNS = WORDS["noun"], WORDS["adjective"], WORDS["pronoun"]
IRREGULAR_VERBS = {
    base: forms for base, *forms in map(str.split, WORDS["irregular verb"])
}  # be -> [was, been]
VERBS = (*IRREGULAR_VERBS, *WORDS["verb"])
IRREGULAR_PLURALS = dict(map(str.split, WORDS["irregular plural"]))
PREPOSITIONS = dict(map(str.split, WORDS["preposition of place"]))
PHRASES, PLOTS = read_sections("builtin_phrases.txt"), read_sections("builtin_plots.txt")


# ---- Grammar ----
def double_last_letter(verb: str) -> str:
    """Only where English spelling doubles it: hop -> hopp, forget -> forgett, but open -> open."""
    return verb + verb[-1] if re.fullmatch(r"(be|for)?[^aeiou]+[aeiou][^aeiouwxy]", verb) else verb


def past(verb: str) -> str:
    if verb in IRREGULAR_VERBS:
        return IRREGULAR_VERBS[verb][0]
    if verb.endswith("e"):
        return verb + "d"
    return re.sub(r"(?<![aeiou])y$", "i", double_last_letter(verb)) + "ed"


def participle(verb: str) -> str:
    return IRREGULAR_VERBS[verb][1] if verb in IRREGULAR_VERBS else past(verb)


def ing(verb: str) -> str:
    if verb.endswith("ie"):
        return verb[:-2] + "ying"
    return (verb if verb == "be" else re.sub(r"(?<![eo])e$", "", double_last_letter(verb))) + "ing"


def plural(noun: str) -> str:
    """The plural of a noun; also the third person of a verb, as the rule is the same."""
    if noun in IRREGULAR_PLURALS:
        return IRREGULAR_PLURALS[noun]
    return re.sub(r"(?<![aeiou])y$", "ie", noun) + (
        "es" if re.search(r"(s|x|z|ch|sh)$", noun) else "s"
    )


def inflect_first_word(inflect):
    return lambda phrase: " ".join([inflect(phrase.split()[0]), *phrase.split()[1:]])


FORMS = {
    "s": plural,
    "ed": inflect_first_word(past),
    "ing": inflect_first_word(ing),
    "at": lambda place: f"{PREPOSITIONS.get(place, 'in')} the {place}",
}


def base_forms() -> dict[str, tuple[str, str]]:
    """Word form -> (part of speech, base form), where there is only one reading: not "light",
    "broken" or "lay"."""
    uses = collections.defaultdict(set)
    for role, words in (("noun", NOUNS), ("adjective", ADJECTIVES)):
        for word in words:
            uses[word].add((role, word))
    for verb in set(VERBS) - {
        "be",
        "have",
        "do",
        "say",
    }:  # these are in every story and say nothing about it
        for form in (verb, plural(verb), past(verb), participle(verb), ing(verb)):
            uses[form].add(("verb", verb))
    return {form: readings.pop() for form, readings in uses.items() if len(readings) == 1}


ROLES = base_forms()


# ---- Templates ----
def parse(template: str) -> tuple[bool, list[list]]:
    """ "a (b|c {d})" -> a choice: (linked, branches), each branch a list of texts, "{slots}" and
    choices."""
    stack = [(False, [[]])]
    for token in re.findall(
        r"[][()|]|\{[^}]*\}|[^][()|{]+", re.sub(r"(?<=[(|\[])\s+", "", template)
    ):
        if token in "([":
            stack.append((token == "[", [[]]))
        elif token in ")]":
            choice = stack.pop()
            stack[-1][1][-1].append(choice)
        elif token == "|":
            stack[-1][1].append([])
        else:
            stack[-1][1][-1].append(token)
    return stack[0]


PARSED_PHRASES = {name: parse(template) for name, template in PHRASES.items()}
PARSED_PLOTS = {
    name: [parse(part) for part in template.split("\n\n", 1)] for name, template in PLOTS.items()
}


class Draft:
    """A story in the making: who is in it, what fills its slots, which branch all brackets []
    take."""

    def __init__(self, rng: random.Random):
        self.rng = rng
        self.case = rng.randrange(
            420
        )  # 420 is a multiple of 2 to 7, so each branch of a bracket is equally likely
        she = dict(he="she", him="her", his="her", himself="herself", kind="girl")
        he = dict(he="he", him="him", his="his", himself="himself", kind="boy")
        heroes, friends, hero, friend = (
            (GIRLS, BOYS, she, he) if rng.random() < 0.5 else (BOYS, GIRLS, he, she)
        )
        self.filled = hero | {f"{slot}2": word for slot, word in friend.items()}
        self.filled |= dict(hero=rng.choice(heroes), friend=rng.choice(friends))
        if rng.random() < 0.3:
            self.filled["kind"], self.filled["kind2"] = rng.sample(SLOTS["animal"], 2)

    def expand(self, choice) -> str:
        linked, branches = choice
        branch = branches[
            self.case % len(branches) if linked else int(self.rng.random() * len(branches))
        ]
        texts = []
        for part in branch:
            if type(part) is tuple:
                texts.append(self.expand(part))
            else:
                texts.append(self.fill(part[1:-1]) if part[0] == "{" else part)
        return "".join(texts)

    def fill(self, slot: str) -> str:
        if slot in PARSED_PHRASES:
            return self.expand(PARSED_PHRASES[slot])
        if slot[0].isupper():
            return self.fill(slot[0].lower() + slot[1:]).capitalize()
        key, _, form = slot.partition(".")
        kind = key.rstrip("23")  # {toy2} and {toy3} are toys too
        if form == "adj":
            key, kind = slot, f"{kind}.adj"
        while key not in self.filled:  # {hero}, {he}, … are filled from the start
            word = self.rng.choice(SLOTS[kind])
            if word not in self.filled.values():  # nothing plays two parts in one story
                self.filled[key] = word
        return FORMS[form](self.filled[key]) if form in FORMS else self.filled[key]


def tidy(text: str) -> str:
    """Expanded template -> text: one line per paragraph, capitals after full stops, "an" before a
    vowel."""
    text = "\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))
    text = re.sub(r"\b([Aa]) (?=[aeio]|hon|hour|u(?!ni|se))", r"\1n ", text)
    return re.sub(r'(?m)((?:^|[.!?] |\." )"?)([a-z])', lambda m: m[1] + m[2].upper(), text)


# ---- Stories ----
@dataclass(frozen=True)
class Story:
    text: str  # paragraphs separated by "\n"
    words: tuple[
        str, str, str
    ]  # a noun, a verb and an adjective that occur in the text (the verb may be inflected)
    features: tuple[str, ...]  # those of FEATURES that hold
    summary: str  # one line
    sentence: str  # a random sentence of the text, verbatim


# Chinese and Japanese have no space between sentences.
BETWEEN_SENTENCES = regex.compile(
    r"""(?<=\p{Sentence_Terminal})[ ]|(?<=\p{Sentence_Terminal}["”'’])[ ](?=[A-Z"“'‘])"""
    r"""|(?<=[。！？])(?![。！？」』])|\n"""
)
SINGLE_QUOTES = (
    regex.compile(r"(?<![\p{L}\d])['‘]"),
    regex.compile(r"(?<=[,.!?])['’]"),
)  # they open, they close


def split_sentences(text: str) -> list[str]:
    """The text cut after each sentence, in any script, without the pieces that cut through
    somebody's speech."""
    pieces = [piece for piece in BETWEEN_SENTENCES.split(text) if piece.strip()]
    quotes = ("“”", "「」", "『』")
    pieces = [
        piece
        for piece in pieces
        if all(piece.count(left) == piece.count(right) for left, right in quotes)
    ]
    pieces = [
        piece
        for piece in pieces
        if len({len(marks.findall(piece)) for marks in SINGLE_QUOTES}) == 1
    ]
    return [piece for piece in pieces if piece.count('"') % 2 == 0]


def draw_words(text: str, rng: random.Random) -> tuple[str, ...]:
    """A noun, a verb and an adjective of the text; fewer if it lacks a kind (no built-in story
    does)."""
    present = {"noun": set(), "verb": set(), "adjective": set()}
    for word in re.findall(r"(?<!['’])\b[a-z]+\b(?!['’])", text):  # "won't" is not "won"
        if word in ROLES:
            role, base = ROLES[word]
            present[role].add(base)
    return tuple(rng.choice(sorted(words)) for words in present.values() if words)


def tell(seed: int, index: int) -> Story:
    """Story `index` of the corpus `seed`: it depends on them alone, and is the same on every
    machine."""
    rng = random.Random(f"{seed}/{index}")
    summary, story = PARSED_PLOTS[rng.choice(list(PLOTS))]
    draft = Draft(rng)
    text = draft.expand(story)
    marks = set(re.findall(r"@(\w+)", text))
    text = tidy(re.sub(r"@\w+\s*", "", text))
    marks |= {"Dialogue"} if '"' in text else set()
    words, features = (
        draw_words(text, rng),
        tuple(feature for feature in FEATURES if feature in marks),
    )
    return Story(
        text, words, features, tidy(draft.expand(summary)), rng.choice(split_sentences(text))
    )


def stories(n: int, seed: int = 0) -> Iterator[Story]:
    return (tell(seed, index) for index in range(n))
