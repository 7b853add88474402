"""
Reading a chat judge's reply (GPT-Eval, the paper's section 3). What it is asked: judge_questions.py.

>>> read_reply("Grammar: 8/10, Creativity: 7/10, Consistency: 9/10, Plot: 7/10, Age group: C", SCORES)
{'grammar': 8.0, 'creativity': 7.0, 'consistency': 9.0, 'plot': 7.0, 'age': 6.5}
"""

import json
import re
from collections.abc import Sequence

from grading.rubrics import AGE_GROUPS, AGES


class BadReply(ValueError):
    """A reply that does not have the scores asked for. The message says why."""


def read_reply(text: str, names: Sequence[str], has_age: bool = True) -> dict[str, float]:
    """{name: 0 to 10, ..., "age": years}; BadReply if a score is missing, out of range or given twice.

    Accepts a JSON object, an array in the order of `names` with the age group last (unless has_age is False), or
    "Grammar: 8/10"; with reasoning before `</think>`, and prose or a ``` fence around it. Numbers must be digits:
    "eight" is refused. An age that is missing or unclear is left out: the scores are paid for, and good without it.
    """
    text = without_reasoning(text)
    if (start := text.find("{")) >= 0:
        values = parse_object(text[start : text.rfind("}") + 1])
    elif arrays := set(re.findall(r"\[([^\[\]]*\d[^\[\]]*)\]", text)):
        if len(arrays) > 1:
            raise BadReply(f"{len(arrays)} arrays, not one")
        parts = [part.strip().strip("\"'") for part in arrays.pop().split(",")]
        if len(parts) != len(names) + has_age:
            raise BadReply(f"an array of {len(parts)}, not of {len(names) + has_age}")
        values = dict(zip([*names, "age"], parts))
    else:
        values = parse_lines(text, names)
    missing = [name for name in names if name not in values]
    if missing:
        raise BadReply(f"no {', '.join(missing)} in it")
    age = read_age(values.get("age"))
    return {name: read_score(name, values[name]) for name in names} | ({} if age is None else {"age": age})


def without_reasoning(text: str) -> str:
    return text.rpartition("</think>")[2].strip()


def parse_object(text: str) -> dict:
    """Reads JSON, even with line breaks in strings or commas before a closing bracket."""
    text = re.sub(r'("(?:[^"\\]|\\.)*")|,(?=\s*[}\]])', lambda match: match[1] or "", text, flags=re.DOTALL)
    try:
        pairs = json.loads(text, strict=False, object_pairs_hook=list)  # a dict would only keep the last of equal keys
    except (ValueError, RecursionError):
        raise BadReply("broken JSON") from None
    values = {}
    for key, value in pairs:
        name = key.strip().lower().replace("_", " ").replace("age group", "age").removesuffix(" score")
        if name in values and values[name] != value:
            if name != "age":
                raise BadReply(f"{name} is given twice")
            value = None
        values[name] = value
    return values


# More than one number, read as one value: "7 or 8", "7 (to 8)" and "7, maybe 8", which read_score refuses, as well as
# "8/10" and "8 out of 10", which it accepts.
SEVERAL = r"\d[\d.]*(?:[\s,(]*(?:(?:/|[-–—]|or|to|and|maybe|perhaps|out of)\s*)+\d[\d.]*)+"


def parse_lines(text: str, names: Sequence[str]) -> dict[str, str]:
    """What follows each name and a colon: perhaps prose as well, but no second number."""
    values, text = {}, re.sub("[*`]", "", text)
    for name in names:
        pattern = rf"\b{name}(?:[ _]score)?\s*[:=]\s*({SEVERAL}|[^\s,;]+)"
        matches = [value.rstrip(".)") for value in re.findall(pattern, text, re.IGNORECASE)]
        numbers = {value for value in matches if value[:1].isdigit()}
        if len(numbers) > 1:
            raise BadReply(f"{name} is given twice: {' and '.join(sorted(numbers))}")
        if matches:
            values[name] = (numbers or matches).pop()
    ages = set(re.findall(r"\bage(?:[ _-]?group)?\s*[:=]\s*([^\n,;]+(?:,\s*or[^\n,;]+)?)", text, re.IGNORECASE))
    return values | ({"age": ages.pop()} if len(ages) == 1 else {})


def read_score(name: str, value: object) -> float:
    """A number, or a string with its digits, with or without "/10"."""
    digits = re.fullmatch(r"\s*(\d+(?:\.\d+)?)(?:\s*(?:/|out of)\s*10)?\s*", value) if isinstance(value, str) else None
    number = float(digits[1]) if digits else value
    if type(number) not in (int, float) or not 0 <= number <= 10:
        raise BadReply(f"{name} is {str(value)[:40]!r}, not a number from 0 to 10")
    return float(number)


def read_age(value: object) -> float | None:
    """Years, from the letter of a group, its years, or both: "C", "6-7", "C: 6-7", "C (6-7 years old)"; else None."""
    said = " ".join(re.findall(r"[a-z0-9-]+", str(value).lower().replace("–", "-")))
    said = re.sub(r"^group |( years)?( old)?$", "", said)
    for letter, ages in AGE_GROUPS.items():
        if said in (letter.lower(), ages, f"{letter.lower()} {ages}"):
            return AGES[letter]
    return None
