"""What a tokenizer.json does with text that its vocabulary lacks: an unknown token, bytes, an error, or silence.

BPE without an unknown token and without bytes to fall back on drops a letter that it lacks; no error tells it.
"""

from collections.abc import Mapping
from typing import Any

Span = tuple[int, int]


def unknown_id(content: Mapping[str, Any], vocabulary: Mapping[str, int]) -> int | None:
    """The id of the unknown token of a tokenizer.json's `content`; None if the model names none."""
    model = content.get("model") or {}
    if model.get("type") == "Unigram" or "unk_id" in model:
        number = model.get("unk_id")
        return number if isinstance(number, int) and not model.get("byte_fallback") else None
    token = model.get("unk_token")
    has_bytes = model.get("byte_fallback") and all(f"<0x{byte:02X}>" in vocabulary for byte in range(256))
    return None if token is None or has_bytes else vocabulary.get(token)


def drops_letters(content: Mapping[str, Any], vocabulary: Mapping[str, int], byte_letters: Mapping[int, str]) -> bool:
    """Whether the library would drop letters that the vocabulary lacks, without a word."""
    model = content.get("model") or {}
    if model.get("type") not in (None, "BPE") or model.get("unk_token") is not None or "unk_id" in model:
        return False
    if model.get("byte_fallback") and all(f"<0x{byte:02X}>" in vocabulary for byte in range(256)):
        return False
    prefix = model.get("continuing_subword_prefix") or ""
    whole = all(letter in vocabulary or prefix + letter in vocabulary for letter in byte_letters.values())
    return not (whole and _works_on_bytes(content))


def _works_on_bytes(content: Mapping[str, Any]) -> bool:
    """Whether words are turned into the letters of bytes before the model sees them."""
    steps = [content.get("pre_tokenizer") or {}, content.get("normalizer") or {}]
    steps += [each for step in steps for each in (step.get("pretokenizers") or step.get("normalizers") or [])]
    return any(step.get("type") == "ByteLevel" for step in steps)


def uncovered_text(text: str, spans: list[Span]) -> list[str]:
    """Printable stretches of a text, without white space, that no token's span covers."""
    gaps, end = [], 0
    for start, stop in [*sorted(spans), (len(text), len(text))]:
        if start > end:
            gaps.append("".join(letter for letter in text[end:start] if letter.isprintable() and not letter.isspace()))
        end = max(end, stop)
    return [gap for gap in gaps if gap]


def count_lacking(text: str, ids: list[int], spans: list[Span], unknown: int | None) -> int:
    """Bytes of a text whose token is the unknown one, or that no token covers."""
    lost = sum(
        len(text[start:stop].encode()) for number, (start, stop) in zip(ids, spans, strict=True) if number == unknown
    )
    return lost + sum(len(gap.encode()) for gap in uncovered_text(text, spans))


def check_all_covered(text: str, spans: list[Span]) -> None:
    """Raise ValueError for the first letter that no token covers."""
    if gaps := uncovered_text(text, spans):
        letter = gaps[0][0]
        raise ValueError(
            f"the vocabulary lacks {letter!r} (U+{ord(letter):04X}) and has no unknown token: the library would drop it"
            "; a BPE trained on bytes lacks none: pre_tokenizers.ByteLevel, and initial_alphabet=ByteLevel.alphabet()"
        )
