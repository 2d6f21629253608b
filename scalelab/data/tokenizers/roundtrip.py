"""What a tokenizer loses: documents of a sample are encoded and decoded again, and their unknown parts are counted."""

from collections.abc import Iterable
from typing import Any, NamedTuple

from scalelab.data.tokenizers.tokenizer import Tokenizer
from scalelab.errors import BadInput

MOST_UNKNOWN = 0.01  # share of the text, or of the ids, that may be unknown without --lossy
DOCUMENT_BYTES = 2**16  # bytes of one document in the sample
EXAMPLE = 24  # characters shown


class RoundTrip(NamedTuple):
    """Documents tried and changed, their bytes, the bytes without a token of their own, and an example of a change."""

    documents: int
    changed: int
    text_bytes: int
    unknown_bytes: int
    example: str

    @property
    def unknown_share(self) -> float:
        """The share of the sample's bytes for which the tokenizer has no token."""
        return self.unknown_bytes / max(self.text_bytes, 1)


def try_round_trip(tokenizer: Tokenizer, documents: Iterable[bytes]) -> RoundTrip:
    """Encode and decode the beginnings of documents. White space at their ends doesn't count."""
    n = changed = size = unknown = 0
    example = ""
    for document in documents:
        text = document[:DOCUMENT_BYTES].decode(errors="ignore")
        content = text.encode()
        try:
            back = tokenizer.decode(tokenizer.encode(content)).decode(errors="replace")
        except ValueError:
            continue  # it is named where the document is encoded
        n, size = n + 1, size + len(content)
        unknown += tokenizer.count_unknown(content) if tokenizer.count_unknown else 0
        if back.strip() != text.strip():
            changed += 1
            example = example or _first_change(text.strip(), back.strip())
    return RoundTrip(n, changed, size, unknown, example)


def _first_change(text: str, back: str) -> str:
    at = next((i for i, (a, b) in enumerate(zip(text, back, strict=False)) if a != b), min(len(text), len(back)))
    at = max(0, at - 4)
    return f"{text[at : at + EXAMPLE]!r} comes back as {back[at : at + EXAMPLE]!r}"


def describe_round_trip(trip: RoundTrip) -> str:
    """Describe a round trip in words."""
    if not trip.changed:
        return f"round trip: {trip.documents:,} sampled documents come back as they were"
    text = f"round trip: {trip.changed:,} of {trip.documents:,} sampled documents come back changed: {trip.example}; "
    text += f"{trip.unknown_share:.1%} of their bytes are unknown to the tokenizer. Bits per byte are a lower bound: "
    return text + "what is lost costs the model nothing"


def check_round_trip(trip: RoundTrip, name: str, lossy: bool) -> None:
    """Raise BadInput if more than MOST_UNKNOWN of the sample is unknown, unless `lossy`."""
    if trip.unknown_share > MOST_UNKNOWN and not lossy:
        raise BadInput(
            f"--tokenizer={name} has no tokens for {trip.unknown_share:.1%} of the text ({trip.example}): what is lost "
            "would count as predicted; nearest: --tokenizer=bpe:V, trained on this text; --lossy takes it all the same"
        )


def check_unknown_ids(n_unknown: int, n_tokens: int, name: str, lossy: bool) -> None:
    """Raise BadInput if more than MOST_UNKNOWN of all ids are the unknown token, unless `lossy`."""
    if n_unknown > MOST_UNKNOWN * n_tokens and not lossy:
        raise BadInput(
            f"--tokenizer={name} made {n_unknown / n_tokens:.1%} of all ids its unknown token: nearest: "
            "--tokenizer=bpe:V, trained on this text; the same command with --lossy goes on"
        )


def round_trip_facts(trip: RoundTrip | None, n_unknown: int) -> dict[str, Any]:
    """The index's entry `round_trip`; {} for a tokenizer that can't lose text."""
    if trip is None:
        return {}
    facts = {"documents": trip.documents, "changed": trip.changed, "unknown_share": trip.unknown_share}
    return {"round_trip": facts | {"unknown_ids": n_unknown, "lossy": bool(trip.changed or n_unknown)}}
