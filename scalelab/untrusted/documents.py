"""Parse JSON that others may have written, within bounds, into values that later code can print and compute with."""

import json
import os
from collections.abc import Mapping
from typing import Any

from scalelab.untrusted.files import MOST_JSON_BYTES, read_bytes
from scalelab.untrusted.text import as_utf8

MOST_DEPTH = 100  # most nested lists and objects; our own files have at most 6
MOST_PARTS = 2**22  # most lists and objects of one document; each takes 64 bytes or more
MOST_DIGITS = 300  # most digits of a whole number: a float holds 10^308
_ZEROS, _LONG = bytes.maketrans(b"123456789", b"000000000"), b"0" * (MOST_DIGITS + 1)


def parse_json(data: bytes | str) -> Any:
    """Parse a JSON text. ValueError, with a reason, if it is not JSON in UTF-8, or exceeds the bounds.

    Refused too: half a letter (a lone surrogate), which can't be printed, and a number that no float holds.
    """
    if isinstance(data, str):
        data = data.encode()  # UnicodeEncodeError, a ValueError, where it holds half a letter
    text = data.decode("utf-8-sig" if data.startswith(b"\xef\xbb\xbf") else "utf-8")
    n_parts = data.count(b"{") + data.count(b"[")
    if n_parts > MOST_PARTS:
        raise ValueError(f"more than {MOST_PARTS:,} lists and objects")
    is_long = len(data) > MOST_DIGITS and _LONG in data.translate(_ZEROS)
    try:
        content = _decode_careful(text) if is_long else _decode(text)
    except RecursionError:
        raise ValueError(f"lists or objects deeper than {MOST_DEPTH}") from None
    if n_parts > MOST_DEPTH:
        _check_depth(content)
    if "\\u" in text and (letter := _half_letter(content)):
        raise ValueError(f"half a letter ({letter})")
    return content


def read_document(path: str | os.PathLike[str], most_bytes: int = MOST_JSON_BYTES, follow: bool = False) -> Any:
    """Read the JSON in a file; BadInput and OSError as `files.open_file`, ValueError as `parse_json`."""
    return parse_json(read_bytes(path, most_bytes, follow))


def dump_json(content: Any, indent: int | None = None) -> str:
    """Write JSON that `parse_json` reads back; characters that UTF-8 can't hold (in a file's name) become escapes."""
    text = json.dumps(content, indent=indent, default=float)
    if "\\ud" in text and _half_letter(content):
        text = json.dumps(_as_utf8(content), indent=indent, default=float)
    return text


def _as_utf8(content: Any) -> Any:
    if isinstance(content, str):
        return as_utf8(content)
    if isinstance(content, Mapping):
        return {_as_utf8(key): _as_utf8(value) for key, value in content.items()}
    return [_as_utf8(value) for value in content] if isinstance(content, list | tuple) else content


def _parse_int(digits: str) -> int:
    if len(digits.lstrip("-")) > MOST_DIGITS:
        raise ValueError(f"a number too long, of {len(digits.lstrip('-'))} digits")
    return int(digits)


_decode, _decode_careful = json.JSONDecoder().decode, json.JSONDecoder(parse_int=_parse_int).decode


def _check_depth(content: Any) -> None:
    level, depth = [content], 0
    while level:
        depth += 1
        if depth > MOST_DEPTH:
            raise ValueError(f"lists or objects deeper than {MOST_DEPTH}")
        parts = (part.values() if isinstance(part, dict) else part for part in level if isinstance(part, dict | list))
        level = [value for values in parts for value in values if isinstance(value, dict | list)]


def _half_letter(content: Any) -> str:
    """Find a lone surrogate in a text of the content ("": none); a pair of them is one letter once parsed."""
    try:
        json.dumps(content, ensure_ascii=False, default=float).encode()
    except UnicodeEncodeError as error:
        return ascii(error.object[error.start])
    return ""
