"""Byte-level BPE word by word: each word of a text is looked up, and only new ones are given to the library.

Such a tokenizer splits a text by a regular expression and then encodes each word by itself, so the ids of a text are
those of its words, one after another. A few words are most of any text: looked up, it takes a fraction of the library's
time (checks/speed/prepare.py). A letter counts as known once the library's engine and ours have split a text of it in
the same way; a text with another letter is the library's.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import regex

# ByteLevel's own split, GPT-2's (encoder.py)
GPT2_SPLIT = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
MOST_LETTERS = 2**20  # of the words that are kept, some 20 MB
WORDS_AT_ONCE = 2**16  # of a long text
LONG_TEXT = 2**18  # letters


class WordEncoder:
    """The ids of texts, from a table of words that starts again when it is full."""

    def __init__(self, inner: Any, pattern: str) -> None:
        """`inner`: the library's tokenizer, whose words `pattern` matches."""
        import tokenizers

        self.inner, self.pattern = inner, regex.compile(pattern)
        self.model = tokenizers.Tokenizer(inner.model)  # takes a word whole
        self.model.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        self.known: dict[str, bytes] = {}  # word: its ids
        self.held = 0  # letters in the table
        self.letters: set[str] = set()  # that both engines split alike
        self.odd: set[str] = set()

    def encode(self, text: str) -> np.ndarray | None:
        """Ids, uint32; None: the library's answer is needed."""
        if not self.splits_alike(text):
            return None
        parts, length = [], 0
        for words in self.split(text):
            parts.append(self.look_up(words))
            length += sum(map(len, words))
        if length != len(text):
            return None  # letters between matches are words to the library
        return np.frombuffer(bytearray().join(parts), np.uint32)

    def splits_alike(self, text: str) -> bool:
        """Whether the two engines know each letter of a text as of the same kind."""
        new = (ASCII if text.isascii() else set(text)) - self.letters
        for letter in new - self.odd:
            (self.letters if self.agrees_on(letter) else self.odd).add(letter)
        return self.odd.isdisjoint(new)

    def agrees_on(self, letter: str) -> bool:
        """Whether a letter is split alike in the neighbourhoods that a split goes by."""
        neighbours = ("{}", "{0}{0}", "a{}b", "1{}2", " {} ", "a {}a", ".{}.", "'{}", "'{}e x", "'r{} v", "'l{}")
        text = "\n".join(
            [*(each.format(letter) for each in neighbours), f"\t{letter}  {letter}1\r\n{letter}  {letter}"]
        )
        theirs = [text[start:end] for _, (start, end) in self.inner.pre_tokenizer.pre_tokenize_str(text)]
        return theirs == self.pattern.findall(text)

    def split(self, text: str) -> Iterator[list[str]]:
        """The words of a text; of a long one a part at a time, in bounded memory."""
        if len(text) <= LONG_TEXT:
            yield self.pattern.findall(text)
            return
        words = (match[0] for match in self.pattern.finditer(text))
        while part := list(itertools.islice(words, WORDS_AT_ONCE)):
            yield part

    def look_up(self, words: list[str]) -> bytes:
        """The ids of words, joined."""
        try:
            return b"".join(map(self.known.__getitem__, words))
        except KeyError:
            self.add(words)
        return b"".join(map(self.known.__getitem__, words))

    def add(self, words: list[str]) -> None:
        """Put words into the table."""
        if self.held > MOST_LETTERS:
            self.known, self.held = {}, 0
        new = list(set(words).difference(self.known))
        for word, encoding in zip(new, self.model.encode_batch_fast(new, add_special_tokens=False), strict=True):
            self.known[word] = np.array(encoding.ids, np.uint32).tobytes()
            self.held += len(word)


ASCII = {chr(code) for code in range(128)}


def make_word_encoder(inner: Any, content: Mapping[str, Any]) -> Callable[[str], np.ndarray | None] | None:
    """`WordEncoder.encode` of a tokenizer.json; None where texts are not encoded word by word, or by other rules."""
    added = content.get("added_tokens") or []
    pattern = _find_split(content.get("pre_tokenizer") or {})
    model = content.get("model") or {}
    if pattern is None or content.get("normalizer") or model.get("type") not in (None, "BPE") or model.get("dropout"):
        return None
    if not all(token.get("special") for token in added):
        return None  # they are found in a text before it is split
    try:
        encoder = WordEncoder(inner, pattern)
    except regex.error:
        return None
    return encoder.encode if encoder.splits_alike("a") else None


def _find_split(steps: Mapping[str, Any]) -> str | None:
    """The regular expression that makes a byte-level tokenizer's words; None: it makes them in another way."""
    *before, last = (steps.get("pretokenizers") if steps.get("type") == "Sequence" else None) or [steps]
    if last.get("type") != "ByteLevel" or last.get("add_prefix_space", True):
        return None
    if not before:
        return GPT2_SPLIT if last.get("use_regex", True) else None
    split, *others = before
    pattern = split.get("pattern")
    isolated = split.get("type") == "Split" and split.get("behavior") == "Isolated" and not split.get("invert")
    if others or not isolated or last.get("use_regex", True) or not isinstance(pattern, dict):
        return None
    return pattern.get("Regex")
