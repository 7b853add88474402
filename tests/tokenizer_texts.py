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


def random_text(rng: random.Random) -> str:
    """Any Unicode but lone surrogates, which are no text; plain words often enough for merges to
    apply."""
    pieces = []
    for _ in range(rng.randrange(40)):
        kind = rng.randrange(7)
        if kind == 0:
            pieces.append(chr(rng.choice([rng.randrange(0xD800), rng.randrange(0xE000, 0x110000)])))
        elif kind == 1:
            odd = "👩‍👧 🐉 é e\u0301 龍が लड़की \u093f 안녕 \x00 \x1f \ufeff \r\n \t \u2028 ’ …"
            pieces.append(rng.choice(odd.split(" ")))
        elif kind == 2:
            pieces.append(rng.choice(["<|endoftext|>", "<|endof", "text|>", "<|", "|>"]))
        elif kind == 3:
            pieces.append(rng.choice([" ", "  ", "\n", " \n ", "   "]))
        else:
            pieces.append(rng.choice([*TEXT.split(), *SCRIPTS[0].split()]))
    return "".join(pieces)
