"""
The built-in practice corpus: children's stories in the manner of TinyStories (arXiv:2305.07759,
section 2), put together from words and plots, so that what each story contains is known. These are
in builtin_*.toml beside this file; builtin_plots.toml begins with how to read them.

>>> print(tell(seed=0, index=0).text)
"""

import collections
import random
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from nanostories.text import split_sentences

FEATURES = ("Dialogue", "Twist", "BadEnding", "MoralValue", "Foreshadowing", "Conflict")


# ---- Words ----
def read_toml(name: str) -> dict:
    """A file beside this one."""
    text = Path(__file__).with_name(name).read_text(encoding="utf-8")
    return tomllib.loads(text)


LISTS = read_toml("builtin_words.toml")
WORDS = collections.defaultdict(list)  # part of speech -> its words
SLOTS = {}  # slot of a template -> what can fill it
for part_of_speech, slots in LISTS["words"].items():
    for slot, text in slots.items():
        separator = ", " if "," in text else None
        SLOTS[slot] = " ".join(text.split()).split(separator)
        WORDS[part_of_speech] += SLOTS[slot]

NAMES = SLOTS["girl"] + SLOTS["boy"]
NOUNS = WORDS["noun"]
ADJECTIVES = WORDS["adjective"]
PRONOUNS = WORDS["pronoun"]
IRREGULAR_VERBS = LISTS["irregular_verbs"]  # {"be": ["was", "been"], …}
VERBS = [*IRREGULAR_VERBS, *WORDS["verb"]]


# ---- Grammar ----
def double_last_letter(verb: str) -> str:
    """Only where English spelling doubles it: hop -> hopp, forget -> forgett, but open -> open."""
    is_doubled = re.fullmatch(r"(be|for)?[^aeiou]+[aeiou][^aeiouwxy]", verb)
    return verb + verb[-1] if is_doubled else verb


def past(verb: str) -> str:
    if verb in IRREGULAR_VERBS:
        return IRREGULAR_VERBS[verb][0]
    if verb.endswith("e"):
        return verb + "d"
    return re.sub(r"(?<![aeiou])y$", "i", double_last_letter(verb)) + "ed"


def participle(verb: str) -> str:
    return IRREGULAR_VERBS[verb][1] if verb in IRREGULAR_VERBS else past(verb)


def ing(verb: str) -> str:
    if verb == "be":
        return "being"
    if verb.endswith("ie"):
        return verb[:-2] + "ying"
    return re.sub(r"(?<![eo])e$", "", double_last_letter(verb)) + "ing"


def plural(noun: str) -> str:
    """The plural of a noun; also the third person of a verb, as the rule is the same."""
    if noun in LISTS["irregular_plurals"]:
        return LISTS["irregular_plurals"][noun]
    if re.search(r"(s|x|z|ch|sh)$", noun):
        return noun + "es"
    return re.sub(r"(?<![aeiou])y$", "ie", noun) + "s"


def in_or_at(place: str) -> str:
    preposition = LISTS["prepositions"].get(place, "in")
    return f"{preposition} the {place}"


def verb_forms(verb: str) -> set[str]:
    return {verb, plural(verb), past(verb), participle(verb), ing(verb)}


def base_forms() -> dict[str, tuple[str, str]]:
    """Word form -> (part of speech, base form), where there is only one reading: not "light",
    "broken" or "lay"."""
    readings = collections.defaultdict(set)
    for part_of_speech in ("noun", "adjective"):
        for word in WORDS[part_of_speech]:
            readings[word].add((part_of_speech, word))
    # These are in every story and say nothing about it.
    for verb in set(VERBS) - {"be", "have", "do", "say"}:
        for form in verb_forms(verb):
            readings[form].add(("verb", verb))
    return {form: found.pop() for form, found in readings.items() if len(found) == 1}


ROLES = base_forms()
FORMS = {"s": plural, "ed": past, "ing": ing, "at": in_or_at}


# ---- Templates ----
@dataclass
class Choice:
    """What stands between brackets: "(a|b {c})" or "[a|b {c}]"."""

    branches: list[list]  # each a list of texts, "{slots}" and choices
    is_linked: bool  # by []: all such choices in a story take the same branch


def parse(template: str) -> Choice:
    template = re.sub(r"(?<=[(|\[])\s+", "", template)
    return parse_choice(iter(re.findall(r"[][()|]|\{[^}]*\}|[^][()|{]+", template)))


def parse_choice(tokens: Iterator[str], is_linked: bool = False) -> Choice:
    """Reads up to the bracket that closes the choice."""
    branches = [[]]
    for token in tokens:
        if token in (")", "]"):
            break
        if token == "|":
            branches.append([])
        elif token in ("(", "["):
            branches[-1].append(parse_choice(tokens, is_linked=token == "["))
        else:
            branches[-1].append(token)
    return Choice(branches, is_linked)


PHRASES = {name: parse(text) for name, text in read_toml("builtin_phrases.toml").items()}
PLOTS = []  # (summary, story)
for text in read_toml("builtin_plots.toml").values():
    summary, _, story = text.partition("\n\n")
    PLOTS.append((parse(summary), parse(story)))


class Draft:
    """A story in the making: who is in it, what fills its slots, which branch all brackets []
    take."""

    def __init__(self, rng: random.Random):
        self.rng = rng
        # 420 is a multiple of 2 to 7, so each branch of a bracket is equally likely.
        self.case = rng.randrange(420)
        hero, friend = ("girl", "boy") if rng.random() < 0.5 else ("boy", "girl")
        self.filled = dict(LISTS["children"][hero])
        for slot, word in LISTS["children"][friend].items():
            self.filled[f"{slot}2"] = word
        self.filled["hero"] = rng.choice(SLOTS[hero])
        self.filled["friend"] = rng.choice(SLOTS[friend])
        if rng.random() < 0.3:
            self.filled["kind"], self.filled["kind2"] = rng.sample(SLOTS["animal"], 2)

    def expand(self, choice: Choice) -> str:
        if choice.is_linked:
            i = self.case % len(choice.branches)
        else:
            i = int(self.rng.random() * len(choice.branches))
        text = ""
        for part in choice.branches[i]:
            if isinstance(part, Choice):
                text += self.expand(part)
            elif part[0] == "{":
                text += self.fill(part[1:-1])
            else:
                text += part
        return text

    def fill(self, slot: str) -> str:
        if slot in self.filled:
            return self.filled[slot]
        if slot in PHRASES:
            return self.expand(PHRASES[slot])
        if slot[0].isupper():
            return self.fill(slot.lower()).capitalize()
        stem, _, form = slot.partition(".")
        if form in FORMS:
            first_word, space, others = self.fill(stem).partition(" ")
            return FORMS[form](first_word) + space + others
        kind = re.sub("[23]", "", slot)  # {toy2} and {toy3} are toys, too
        while slot not in self.filled:
            word = self.rng.choice(SLOTS[kind])
            # Nothing plays two parts in one story.
            if word not in self.filled.values():
                self.filled[slot] = word
        return self.filled[slot]


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
    words: tuple[str, ...]  # a noun, a verb and an adjective of the text, in their base forms
    features: tuple[str, ...]  # those of FEATURES that hold
    summary: str  # one line
    sentence: str  # a random sentence of the text, verbatim


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
    summary, story = rng.choice(PLOTS)
    draft = Draft(rng)
    marked = draft.expand(story)
    features = set(re.findall(r"@(\w+)", marked))
    text = tidy(re.sub(r"@\w+\s*", "", marked))
    if '"' in text:
        features.add("Dialogue")
    # The order of these lines is that of the random draws.
    return Story(
        text=text,
        words=draw_words(text, rng),
        features=tuple(sorted(features, key=FEATURES.index)),
        summary=tidy(draft.expand(summary)),
        sentence=rng.choice(split_sentences(text)),
    )


def stories(n: int, seed: int = 0) -> Iterator[Story]:
    return (tell(seed, index) for index in range(n))
