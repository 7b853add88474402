"""Text to tokenize: plain, random, and how often GPT-2's tokens occur in it."""

import random

import numpy as np

from nanostories.corpus.tokenizer import GPT2_VOCAB_SIZE, gpt2

TEXT = (
    "Once upon a time, there was a dragon named Sue. She said, \"I'm happy!\" The dragon's 23"
    " friends ran.\n\n" * 3
)
SCRIPTS = [  # each twice, as a pair of tokens must be there twice to be merged
    "एक छोटी लड़की थी। उसका नाम मीना था। वह नदी के किनारे खेलती थी।\n" * 2,
    "昔々、あるところに狐がいました。「おやすみ。」と狐は言いました。\n" * 2,
    "كان يا ما كان ثعلب صغير. كان الثعلب جائعًا.\n" * 2,
    "Жила-была лиса в лесу. Лиса была рыжая.\n" * 2,
    "นานมาแล้วมีจิ้งจอกตัวหนึ่ง จิ้งจอกหิวมาก\n" * 2,
]


def count_tokens(text: str) -> np.ndarray:
    return np.bincount(gpt2().encode(text), minlength=GPT2_VOCAB_SIZE)


# What the split into words turns on: blanks, apostrophes, digits, letters and marks of all planes
ODD = [
    *" \t\n\r\x0b\x0c\x85\xa0\u1680\u2003\u2028\u3000\u200b\u180e\ufeff''sstmdlvre0123½²٣४Ⅷ①",
    *'aZéßжλ한龍ªʰǅ\u0301\u093f\u200d\ufe0f🐉.,!?"-_$€\x00\x7f\ufffd',
    *("'ll", "'ve", "'re", "’s", "'S", "e\u0301", "👩‍👧", "\r\n", "   "),
]
SPECIAL = ["<|endoftext|>", "<|endof", "text|>", "<|", "|>"]
WORDS = [*TEXT.split(" "), *SCRIPTS[0].split(" ")]


def random_text(rng: random.Random) -> str:
    """Any Unicode but lone surrogates, which are no text; plain words often enough for merges to
    apply."""
    pieces = []
    for _ in range(rng.randrange(40)):
        any_character = chr(rng.choice([rng.randrange(0xD800), rng.randrange(0xE000, 0x110000)]))
        kinds = rng.choices([ODD, WORDS, [any_character], SPECIAL], [8, 4, 1, 0.2])
        pieces.append(rng.choice(kinds[0]))
    return "".join(pieces)
