"""Documents of mixed text, the same for one seed: real English and code, many scripts, and everything that splits oddly."""

import random
from unicodedata import ucd_3_2_0

# Blocks of one script each; of them only characters that every version of Unicode in use knows.
BLOCKS = {
    "latin": [(0x61, 0x7A), (0xDF, 0x17F)],
    "greek": [(0x386, 0x3CE), (0x1F00, 0x1FFC)],
    "cyrillic": [(0x400, 0x481), (0x48A, 0x4FF)],
    "arabic": [(0x621, 0x655), (0x671, 0x6D3)],
    "hebrew": [(0x5B0, 0x5C2), (0x5D0, 0x5EA)],
    "devanagari": [(0x901, 0x94D), (0x958, 0x963)],
    "thai": [(0xE01, 0xE3A), (0xE40, 0xE4E)],
    "chinese": [(0x4E00, 0x9FA5)],
    "japanese": [(0x3041, 0x3094), (0x30A1, 0x30FA), (0x4E00, 0x4FFF)],
    "korean": [(0xAC00, 0xD7A3)],
}
SPACES = ["  ", "    ", "\t", "\t\t ", "\n", "\n\n\n", "\r\n", " \r\n\r\n  ", "\r", "\v", "\f", "\0", "\x85", "\xa0", "\u2003", "\u2028", "\u3000", "\u200b",
          "\u180e", " \n \n "]
EMOJI = ["😀", "👍🏽", "🇩🇪🇯🇵", "👨‍👩‍👧‍👦", "🏳️‍🌈", "❤️", "☕", "1️⃣"]
MARKS = [", ", ". ", "! ", "?", "...", "…", " - ", "—", "“", "”", "'", "’s", "(", ")", "、", "。", "؟", "।", "/", "@#$%", "+=", "€", "\ufeff", "\ufffd"]
ENGLISH = ["it's", "IT'S", "don't", "we'Re", "they'LL", "'tis", "o'clock", "'S", "ſ's", "'ſ", "K'd"]


class MixedText:
    """Draws documents. `english` and `code` are long texts to cut from, `special` texts that a tokenizer treats as one."""

    def __init__(self, seed, english, code, special):
        self.draw = random.Random(seed)
        self.sources = [english, code]
        self.special = special
        self.words = {script: self.some_words(blocks) for script, blocks in BLOCKS.items()}

    def some_words(self, blocks):
        characters = [chr(code) for first, last in blocks for code in range(first, last + 1)]
        letters, marks = ([each for each in characters if ucd_3_2_0.category(each)[0] == kind] for kind in "LM")
        marks = marks or ["\u0301", "\u0308"]

        def letter():
            return self.draw.choice(letters) + (self.draw.choice(marks) if self.draw.random() < 0.15 else "")

        def word():
            text = "".join(letter() for _ in range(self.draw.randint(1, 8)))
            return self.draw.choice([text, text, text.capitalize(), text.upper()])

        return [word() for _ in range(400)]

    def cut(self):
        source = self.draw.choice(self.sources)
        begin = self.draw.randrange(len(source))
        return source[begin:begin + self.draw.randint(20, 600)]

    def script(self):
        words = self.words[self.draw.choice(list(BLOCKS))]
        # Some words are frequent, as in a language.
        return "".join(words[int(len(words) * self.draw.random() ** 3)] + self.draw.choice([" ", " ", " ", ""]) for _ in range(self.draw.randint(1, 25)))

    def number(self):
        digits = self.draw.choice(["0123456789", "٠١٢٣٤٥٦٧٨٩", "०१२३४५६७८९", "０１２３", "ⅣⅫ½²"])
        return "".join(self.draw.choice(digits) for _ in range(self.draw.randint(1, 12))) + self.draw.choice(["", " ", ".", ",", "%"])

    def any_character(self):
        while True:
            character = chr(self.draw.choice([self.draw.randrange(0x250), self.draw.randrange(0x3000), self.draw.randrange(0x110000)]))
            if ucd_3_2_0.category(character) not in ("Cn", "Cs"):
                return character

    def oddity(self):
        special = self.draw.choice(self.special)
        return self.draw.choice([
            self.draw.choice(SPACES), self.draw.choice(SPACES) * self.draw.randint(1, 5), self.draw.choice(EMOJI), self.draw.choice(MARKS), self.draw.choice(ENGLISH),
            self.number(), self.any_character(), "".join(self.any_character() for _ in range(5)), "a" + "\u0301\u0323" * self.draw.randint(1, 9), special, special + special,
            special[:-1], special[1:]])

    def document(self):
        return "".join(self.draw.choice([self.cut, self.script, self.script, self.script, self.oddity, self.oddity, self.oddity])()
                       for _ in range(self.draw.randint(0, 60)))

    def documents(self, size):
        """At least `size` bytes of UTF-8."""
        all_of_them = []
        while size > 0:
            all_of_them.append(self.document())
            size -= len(all_of_them[-1].encode())
        return all_of_them
