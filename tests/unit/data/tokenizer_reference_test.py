#!/usr/bin/env python3
"""Tokenizers against Hugging Face's `tokenizers`: token by token on a megabyte of mixed text, and back.

Usage: tokenizer_reference_test.py TOKENIZE     (the program of tokenize.cpp; TESSERA_TEST_SEED repeats a run)
"""

import array
import os
import random
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path.insert(0, str(HERE / "tokenizers"))

try:
    import tokenizers
except ImportError:
    print("skipped: this python has no tokenizers; pip install -r requirements.txt")
    sys.exit(77)

import make
from mixed_text import MixedText
from tokenizers import Tokenizer, pre_tokenizers, processors

PROGRAM = Path(sys.argv[1]).resolve()
SEED = int(os.environ.get("TESSERA_TEST_SEED") or random.SystemRandom().randrange(1 << 32))
END = b"\xff"  # of a document: no UTF-8 has it
MEGABYTE = 1_000_000

GPT2_SPECIAL = ["<|endoftext|>"]
LLAMA3_SPECIAL = ["<|begin_of_text|>", "<|end_of_text|>", "<|reserved_special_token_0|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
STORED_SPECIAL = ["<|endoftext|>", "<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>", "<mask>", "  <mask>  ", "[pad]  ", "wholly", " wholly ", "<s>", "</s>", "|"]

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


def mixed(seed, special):
    code = "".join(path.read_text() for path in sorted((ROOT / "tessera").glob("*/*.cpp")))
    return MixedText(seed, (ROOT / "examples/data/kjv.txt").read_text(), code, special)


def gpt2(texts):
    """Split, decoder and post-processor of GPT-2's file, its special token behind all others."""
    tokenizer = make.trained(pre_tokenizers.ByteLevel(add_prefix_space=False), 4000, [], texts=texts)
    tokenizer.add_special_tokens(GPT2_SPECIAL)
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return tokenizer


def llama3(texts):
    """Llama 3's split and special tokens, ignore_merges, <|begin_of_text|> in front of each text."""
    tokenizer = make.trained(make.llama3_split(), 4000, [], texts=texts)
    tokenizer.add_special_tokens(LLAMA3_SPECIAL)
    make.as_llama3(tokenizer)
    return tokenizer


class Reference(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def ours(self, direction, special, content):
        command = [str(PROGRAM), str(self.folder / "tokenizer.json"), direction, "with" if special else "without"]
        done = subprocess.run(command, input=content, capture_output=True, timeout=60)
        self.assertEqual(done.returncode, 0, done.stderr.decode())
        return done.stdout

    def encoded(self, documents, special):
        """Ids of every document."""
        ids = array.array("i", self.ours("encode", special, b"".join(each.encode() + END for each in documents)))
        ends = [at for at, value in enumerate(ids) if value < 0]
        return [ids[begin:end].tolist() for begin, end in zip([0] + [end + 1 for end in ends], ends)]

    def decoded(self, ids, special):
        content = array.array("i", (value for each in ids for value in [*each, -1])).tobytes()
        return [each.decode() for each in self.ours("decode", special, content).split(END)[:-1]]

    def show(self, tokenizer, ids, at):
        return " ".join(f"{value}:{tokenizer.decode([value], skip_special_tokens=False)!r}" for value in ids[max(0, at - 3):at + 4])

    def compare(self, tokenizer, documents):
        """Encodes and decodes with and without special tokens; returns the ids without."""
        tokenizer.save(str(self.folder / "tokenizer.json"))
        for special in (True, False):
            theirs = [each.ids for each in tokenizer.encode_batch(documents, add_special_tokens=special)]
            mine = self.encoded(documents, special)
            self.assertEqual(len(mine), len(theirs))
            for number, (left, right) in enumerate(zip(mine, theirs)):
                if left != right:
                    at = next((i for i, pair in enumerate(zip(left, right)) if pair[0] != pair[1]), min(len(left), len(right)))
                    self.fail(f"seed {SEED}: document {number} parts at token {at} of {len(right)}:\n  ours   {self.show(tokenizer, left, at)}\n"
                              f"  theirs {self.show(tokenizer, right, at)}")
            self.assertEqual(self.decoded(mine, special), tokenizer.decode_batch(theirs, skip_special_tokens=not special), f"seed {SEED}")
        return mine

    def compare_a_megabyte(self, make_tokenizer, special):
        tokenizer = make_tokenizer(mixed(SEED, special[:1]).documents(MEGABYTE // 2))
        documents = NASTY + mixed(SEED + 1, special).documents(MEGABYTE)
        ids = self.compare(tokenizer, documents)
        self.assertEqual(self.decoded(ids, True), documents, f"seed {SEED}")
        used = len({value for each in ids for value in each})
        self.assertGreater(used, tokenizer.get_vocab_size() // 2)
        size = sum(len(each.encode()) for each in documents)
        print(f"{make_tokenizer.__name__}: seed {SEED}, {len(documents)} documents, {size} bytes, {sum(map(len, ids))} tokens, {used} different ones")

    def test_gpt2(self):
        self.compare_a_megabyte(gpt2, GPT2_SPECIAL)

    def test_llama3(self):
        self.compare_a_megabyte(llama3, LLAMA3_SPECIAL)

    def test_one_long_text(self):
        """Not cut into documents."""
        tokenizer = Tokenizer.from_file(str(HERE / "tokenizers/llama3.json"))
        self.compare(tokenizer, ["".join(mixed(SEED + 2, LLAMA3_SPECIAL).documents(MEGABYTE // 2))])

    def test_the_stored_ones(self):
        """Spaces in front, tokens that strip or stand alone, single digits, pieces dropped and joined."""
        documents = NASTY + mixed(SEED + 3, STORED_SPECIAL).documents(MEGABYTE // 5)
        for name in ("gpt2", "llama3", "digits"):
            with self.subTest(name):
                self.compare(Tokenizer.from_file(str(HERE / f"tokenizers/{name}.json")), documents)


if __name__ == "__main__":
    print(f"tokenizers {tokenizers.__version__}, seed {SEED}")
    unittest.main(argv=sys.argv[:1])
