"""Numbers of a page that state a measurement; the rest of its numbers needs no row in claims.toml.

A number counts if it has a decimal point, a unit, an error (±), stands in "N of M", or counts things that results count
(kills, tests, rows). Left out: fenced and indented code, inline code, headings, comments, targets of links, names
(H100, 8B, bf16: a letter touches the digits), dates and years, versions, places in a source (table 3, equation 20) and
formulas (a sign such as = or ^ touches the number). Number words count where they count things.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

UNITS = (
    "%|percent|points?|s|ms|min|minutes?|seconds?|hours?|days?|years?|[kMGT]B|[KMGT]iB|bytes?|nats?|octaves?|times|"
    "dollars|standard errors?|standard deviations?|tokens/s|[TPGM]?FLOP/s|FLOPs|CPU (?:s|seconds?)|device hours|MFU"
)
COUNTED = (
    "kills|resumes|refusals|tests?|cases|rows|runs|faults|optimizers|systems|layouts|programs|plants|pairs|studies|"
    "tables|mutants|comparisons|step times|trials|cells|seeds|intervals|measurements|verdicts|recipes|questions|curves|"
    "branches|sentences|bowls|spellings|transformers|edits|predictions"
)
BETWEEN = r"(?:more |other |planted |healthy |simulated |public |of the |of )?(?:\w+ )?"
SMALL = "two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen".split()  # noqa: SIM905
WORDS = {word: number for number, word in enumerate(SMALL, 2)} | {"seventeen": 17, "eighteen": 18, "nineteen": 19}
WORDS |= {"twenty": 20, "twenty-one": 21} | {f"twenty-{word}": 20 + WORDS[word] for word in SMALL[:8]}
WORDS |= {"thirty": 30, "forty": 40, "fifty": 50}
WORD = rf"\b(?i:{'|'.join(sorted(WORDS, key=len, reverse=True))})\b"
DIGITS = (
    r"(?<![\w.,])(?<![A-Za-z]-)(?<!\d-)[-+−]?(?:\d{1,3}(?:[,_]\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?|\.\d+)(?![\w^]|\.\d|,\d)"
)
NUMBER = re.compile(rf"{DIGITS}|{WORD}")
MONTHS = "January|February|March|April|May|June|July|August|September|October|November|December"
PACKAGES = "Python|jax|jaxlib|flax|optax|numpy|torch|cuDNN|CUDA|scalelab|versions?|release"
ASIDE = [
    re.compile(pattern, re.MULTILINE)
    for pattern in (
        r"^([ ]*)```(?:.|\n)*?^\1```[^\n]*$",  # fences
        r"^(?: {4}|\t)(?![-*] ).*$",  # indented code
        r"<!--(?:.|\n)*?-->",
        r"^#.*$",
        r"`[^`\n]*(?:\n[^`\n]+)?`",
        r"\]\([^)\s]*\)",
        r"https?://\S+",
        r"^\s*\d+\. ",  # marks of lists
        rf"\b\d{{4}}-\d\d(?:-\d\d)?\b|\b(?:19|20)\d\d\b|\b\d{{1,2}} (?:{MONTHS})\b",
        r"\bv?\d+\.\d+\.\d+\b",
        rf"\b(?:{PACKAGES})\s+\d[\d.]*(?:(?:,| or| and| to|, or)\s+\d[\d.]*)*",
        r"\b(?:[Tt]ables?|[Ee]quations?|eq\.|[Ss]ec(?:tions?|\.)|[Ff]igures?|arXiv|App\.|issues?|PR|chapter|tutorial,?|theory,?|ZeRO)\s+#?\d[\d.]*"
        r"(?:(?:,| to| and| or)\s+\d[\d.]*\b(?! ?%))*",
        r"\b\d\d % (?:intervals?|bands?|coverage)\b",  # a level
        r"\b3\.1[0-9]\b",  # Pythons
        r"\| (?:at least|at most|under) [^|\n]*(?=\|)",  # a goal, in a column of goals
        r"\b(?:Llama|Qwen) \d\.\d\b|\b(?:of|in) 0\.\d\b|\bBefore 1\.0\b|^0\.\d(?= are found)",  # models, releases
        r"[=<>≤≥×^*/~]\s*[-+]?[\d.][\d.,]*(?:e[-+]?\d+)?",
        r"\d[\d.,]*(?:e[-+]?\d+)?\s*[=^*/<>≤≥×]",
    )
]


class Number(NamedTuple):
    """A number that states a measurement: where it stands in the page, and the line."""

    start: int
    end: int
    text: str
    line: str


def blank_aside(page: str) -> str:
    """The page with what is no claim replaced by blanks; every character keeps its place."""
    for pattern in ASIDE:
        page = pattern.sub(lambda match: re.sub(r"[^\n|]", " ", match[0]), page)
    return page


def measured_numbers(page: str) -> Iterator[Number]:
    """Yield the numbers of a Markdown page that need a row."""
    text = blank_aside(page)
    for match in NUMBER.finditer(text):
        if _is_measured(text, match):
            start = page.rfind("\n", 0, match.start()) + 1
            end = page.find("\n", match.end())
            yield Number(match.start(), match.end(), match[0], page[start : end if end >= 0 else None].strip())


_AFTER = re.compile(
    rf"\s?(?:(?:to|or|and)\s+(?:{DIGITS}|{WORD})\s?)?(?:%|(?:{UNITS})\b)|\s+±|\s+{BETWEEN}(?:{COUNTED})\b"
)
_N_OF_M = re.compile(rf"\s+of\s+(?:{DIGITS}|{WORD})")
_BEFORE = re.compile(rf"(?:±\s*|(?:{DIGITS}|{WORD})\s+of\s+)\Z")


def _is_measured(text: str, match: re.Match[str]) -> bool:
    if "." in match[0]:
        return True
    after, before = text[match.end() : match.end() + 60], text[max(match.start() - 30, 0) : match.start()]
    if not match[0][-1].isdigit():
        counts = re.match(rf"\s+(?:\w+ )?(?:{COUNTED})\b", after)
        return bool(_N_OF_M.match(after) or _BEFORE.search(before) or (counts and WORDS[match[0].lower()] >= 10))
    return bool(_AFTER.match(after) or _N_OF_M.match(after) or _BEFORE.search(before))
