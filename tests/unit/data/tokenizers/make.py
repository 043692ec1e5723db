#!/usr/bin/env python3
"""Trains the small tokenizers that lie here with Hugging Face's `tokenizers` (version 0.23.3).

Usage: make.py [FOLDER]
"""

import json
import random
import sys
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")

WORDS = {
    "latin": "the of and a river stone little house we they didn't it's I'll you've WE'RE morning quickly under light and water".split(),
    "greek": "ο και η του να με ήταν θάλασσα μικρό φως".split(),
    "cyrillic": "и в не на что река камень маленький дом вода".split(),
    "hebrew": "של את על הוא בית קטן אור מים".split(),
    "arabic": "في من على ماء بيت صغير نور".split(),
    "devanagari": "में है और पानी घर छोटा नदी".split(),
    "thai": ["น้ำ", "บ้าน", "เล็ก", "และ", "แม่น้ำ"],
    "cjk": ["川", "水", "小さい", "家と", "石の", "光は", "我们", "房子", "물", "집이", "작은"],
    "code": ["for (int i = 0; i < n; ++i) {", "return x;", "}", "def f(a, b):", "    pass", "if x == 10:", "\tvalue += 3.14"],
}
MARKS = [" ", " ", " ", " ", ", ", ". ", "\n", "\n\n", "  ", "    ", "\t", "! ", "? ", " - ", "…", "123 ", "2024", "7,500 ", "😀", " 👍🏽 ", "é", "n\u0303"]


def text(seed, count):
    """Words of one script after another with marks between them."""
    draw = random.Random(seed)
    parts = []
    for _ in range(count):
        words = WORDS[draw.choice(["latin"] * 6 + list(WORDS))]
        for _ in range(draw.randint(1, 12)):
            parts.append(draw.choice(words) + draw.choice(MARKS))
    return "".join(parts)


def trained(pre_tokenizer, size, special, tokens=(), texts=None):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
                                  show_progress=False)
    tokenizer.train_from_iterator(texts or [text(seed, 40) for seed in range(60)], trainer)
    tokenizer.add_tokens(list(tokens))
    return tokenizer


def gpt2():
    """As GPT-2's: ByteLevel with its own split, a space in front, one special token, tokens that strip."""
    tokenizer = trained(
        pre_tokenizers.ByteLevel(add_prefix_space=True), 700, ["<|endoftext|>"],
        [AddedToken("<mask>", lstrip=True), AddedToken("[pad]", rstrip=True, normalized=False),
         AddedToken("wholly", single_word=True, lstrip=True, rstrip=True), AddedToken("<mask><mask>", normalized=False)])
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return tokenizer


def llama3_split():
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(LLAMA3), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def as_llama3(tokenizer):
    """ignore_merges, and a token in front of each text."""
    first = "<|begin_of_text|>"
    tokenizer.model.ignore_merges = True
    tokenizer.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(single=f"{first} $A", special_tokens=[(first, tokenizer.token_to_id(first))])])
    return tokenizer


def llama3():
    """As Llama 3's: a Split and a ByteLevel without one, merges as pairs, ignore_merges, a token in front of each text."""
    return as_llama3(trained(llama3_split(), 900, ["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"]))


def digits():
    """Single digits, pieces dropped and pieces joined: what other byte-level vocabularies use."""
    tokenizer = trained(
        pre_tokenizers.Sequence([pre_tokenizers.Split("|", "removed"), pre_tokenizers.Digits(individual_digits=True),
                                 pre_tokenizers.Split(Regex(r"\s"), "contiguous"),
                                 pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)]), 500, ["<s>", "</s>"])
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 1), ("<s>", 0))
    return tokenizer


def main(folder):
    for make in (gpt2, llama3, digits):
        tokenizer = make()
        path = folder / f"{make.__name__}.json"
        tokenizer.save(str(path), pretty=False)
        content = json.loads(path.read_text())
        if make is gpt2:  # as files of earlier versions have them
            content["model"]["merges"] = [" ".join(pair) for pair in content["model"]["merges"]]
        path.write_text(json.dumps(content, ensure_ascii=False, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).resolve().parent))
