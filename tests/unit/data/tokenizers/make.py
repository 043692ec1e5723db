#!/usr/bin/env python3
"""Trains the small tokenizers of these tests with Hugging Face's `tokenizers`, and records what it makes of nasty strings.

Usage: make.py [FOLDER]   (needs `pip install tokenizers`; the files that lie here were made by version 0.23.3)
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


def trained(pre_tokenizer, size, special, tokens=()):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
                                  show_progress=False)
    tokenizer.train_from_iterator([text(seed, 40) for seed in range(60)], trainer)
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


def llama3():
    """As Llama 3's: a Split and a ByteLevel without one, merges as pairs, ignore_merges, a token in front of each text."""
    special = ["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"]
    tokenizer = trained(
        pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(LLAMA3), "isolated"),
                                 pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]), 900, special)
    tokenizer.model.ignore_merges = True
    tokenizer.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(single="<|begin_of_text|> $A", special_tokens=[("<|begin_of_text|>", 0)])])
    return tokenizer


def digits():
    """Single digits, pieces dropped and pieces joined: what other byte-level vocabularies use."""
    tokenizer = trained(
        pre_tokenizers.Sequence([pre_tokenizers.Split("|", "removed"), pre_tokenizers.Digits(individual_digits=True),
                                 pre_tokenizers.Split(Regex(r"\s"), "contiguous"),
                                 pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)]), 500, ["<s>", "</s>"])
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 1), ("<s>", 0))
    return tokenizer


NASTY = [
    "", " ", "  ", "a", " a", "a ", "\n", "\r\n", "\r\n\r\n  x", "\t\tx\t", "\0", "a\0b", "hello  world   !", "    x    y    ",
    "it's IT'S it'S I'LL we'Re they'd 'tis", "it’s I’ll", "1 12 123 1234 12345 3.14159 1,000,000 0x1F", "१२३ ٣٤٥ Ⅻ ½ ²",
    "😀", "👨‍👩‍👧‍👦 👍🏽 🇩🇪", "e\u0301 \u0301x n\u0303o", "Ünïcödé ñandú", "中文没有空格。", "日本語のテキスト", "한국어 텍스트", "สวัสดีชาวโลก", "שלום עולם",
    "مرحبا بالعالم", "नमस्ते दुनिया", "a\u00a0b\u2003c\u3000d\u200be\u180ef\u0085g\u2028h", "ſ's 'ſ K'ſ 'S", "\ufeffbom \ufffd", "\U0010ffff\ue000",
    "...!!!???\n\n\n---", "a\n\n\nb", "a \n \n b", "x = y**2  # note\n\treturn x;\r\n", "<|endoftext|>", "a<|endoftext|>b", "a <|endoftext|> b",
    "<|endoftext|><|endoftext|>", "<|endoftext|", "<|begin_of_text|>a<|eot_id|>\n<|end_of_text|>", "a  <mask>  b", "<mask><mask><mask>",
    "a [pad]  b[pad]\n\nc", " wholly  wholly, unwholly wholly_ éwholly wholly", "<s>a|b||c</s>", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "the the the river", "THE RIVER", " " * 40 + "x", "\n" * 20, "a" + "\u0301" * 30, "\u200d\u200c|x|",
]


def main(folder):
    for make in (gpt2, llama3, digits):
        tokenizer = make()
        path = folder / f"{make.__name__}.json"
        tokenizer.save(str(path), pretty=False)
        content = json.loads(path.read_text())
        if make is gpt2:  # as files of earlier versions have them
            content["model"]["merges"] = [" ".join(pair) for pair in content["model"]["merges"]]
        path.write_text(json.dumps(content, ensure_ascii=False, separators=(",", ":")) + "\n")
        cases = [{"text": each, "ids": tokenizer.encode(each).ids} for each in NASTY + [text(1000 + i, 2) for i in range(12)]]
        (folder / f"{make.__name__}.expected.json").write_text(
            "[\n" + ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases) + "\n]\n")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).resolve().parent))
