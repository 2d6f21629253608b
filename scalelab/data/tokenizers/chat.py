"""Chats by a tokenizer's own template: the ids of a list of messages, with the loss on the assistant's turns only.

A template is a stranger's program: it runs in jinja2's immutable sandbox. It is rendered as in transformers
(apply_chat_template), without the date: strftime_now is undefined, so that the same command gives the same ids on
another day. The assistant's turns are what stands between {% generation %} and {% endgeneration %}; in a template
without these, what a message of the assistant adds to the text of the messages before it and the generation prompt.

A token that is read and not predicted is stored as MASKED - id, below -1 (`mask_ids`).
"""

import functools
import hashlib
import json
import pathlib
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from scalelab.data.tokenizers import lacking
from scalelab.data.tokenizers.hf_json import END_TOKENS, byte_letters
from scalelab.data.tokenizers.tokenizer import Tokenizer
from scalelab.errors import BadInput, needs_package
from scalelab.untrusted.documents import parse_json, read_document
from scalelab.untrusted.files import read_bytes

MASKED = -2  # id i is stored as MASKED - i if it is not a target; -1 is padding
BEGIN, END = "\ue0f0", "\ue0f1"  # private characters around the assistant's turns, removed again
MOST_TEMPLATE_BYTES = 2**20
MOST_CHAT_LETTERS = 2**26  # of one rendered chat
SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")

PROBE = [
    {"role": role, "content": content}
    for role, content in (("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d"))
]

Spans = list[tuple[int, int]]  # of letters, begin and end


class ChatTemplate(NamedTuple):
    """A template's text, and the tokens that it may name (bos_token …)."""

    text: str
    tokens: Mapping[str, str]

    @property
    def name(self) -> str:
        """16 hexadecimal digits of a hash over all that decides what is rendered."""
        return hashlib.sha256(json.dumps([self.text, dict(self.tokens)], sort_keys=True).encode()).hexdigest()[:16]


def find_template(tokenizer: pathlib.Path, given: str) -> ChatTemplate:
    """The template of the file `given`; "": chat_template.jinja or tokenizer_config.json beside the tokenizer's file.

    BadInput where there is none, or it can't be parsed.
    """
    beside = tokenizer.with_name("tokenizer_config.json")
    config = _read_config(beside)
    path = pathlib.Path(given).expanduser() if given else tokenizer.with_name("chat_template.jinja")
    if given and not path.is_file():
        raise BadInput(f"--chat={given}: no such file; --chat alone takes the template beside the tokenizer's file")
    text = _read_text(path) if path.is_file() else _stated_template(config)
    if not text:
        raise BadInput(
            f"--chat: neither {path.name} nor a chat_template in {beside.name} stands beside {tokenizer}; --chat=FILE"
        )
    template = ChatTemplate(text, _special_tokens(config))
    _compile(template.text, str(path if path.is_file() else beside))
    return template


def _read_text(path: pathlib.Path) -> str:
    try:
        return read_bytes(path, MOST_TEMPLATE_BYTES, follow=True).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{path} can't be read as a chat template: {error}") from error


def _read_config(path: pathlib.Path) -> dict[str, Any]:
    try:
        config = read_document(path, follow=True) if path.is_file() else {}
    except (OSError, ValueError) as error:
        raise BadInput(f"{path} can't be read: {error}") from error
    return config if isinstance(config, dict) else {}


def _stated_template(config: Mapping[str, Any]) -> str:
    """The template in a tokenizer_config.json; of several by name, the one named default."""
    stated = config.get("chat_template")
    if isinstance(stated, list):
        named = {each.get("name"): each.get("template") for each in stated if isinstance(each, dict)}
        stated = named.get("default")
    return stated if isinstance(stated, str) else ""


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    tokens = {name: config.get(name) for name in SPECIAL_TOKENS}
    texts = {name: token.get("content") if isinstance(token, dict) else token for name, token in tokens.items()}
    return {name: text for name, text in texts.items() if isinstance(text, str)}


@functools.lru_cache(maxsize=4)
def _compile(text: str, where: str = "the chat template") -> Any:
    """The compiled template. BadInput if it is not one."""
    try:
        import jinja2
        from jinja2.ext import Extension, loopcontrols
        from jinja2.nodes import CallBlock
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError:
        raise needs_package("--chat", "jinja2") from None

    class Generation(Extension):
        """{% generation %} … {% endgeneration %}: the assistant's turn, put between BEGIN and END."""

        tags = {"generation"}  # noqa: RUF012 - jinja2's own interface

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
            return CallBlock(self.call_method("_mark"), [], [], body).set_lineno(line)

        def _mark(self, caller: Callable[[], str]) -> str:
            return f"{BEGIN}{caller()}{END}"

    def fail(message: str) -> None:
        raise jinja2.exceptions.TemplateError(message)

    def as_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = as_json
    environment.globals["raise_exception"] = fail
    try:
        return environment.from_string(text)
    except jinja2.TemplateError as error:
        raise BadInput(f"{where} is not a chat template: {error}") from error


def render_chat(template: ChatTemplate, messages: Sequence[Mapping[str, Any]]) -> tuple[str, Spans]:
    """The text of messages, and the spans of the assistant's turns in it. ValueError: the template refuses them."""
    if BEGIN in (everything := json.dumps(messages, ensure_ascii=False)) or END in everything:
        raise ValueError(f"a message holds the private letter {BEGIN!r} or {END!r}, which marks turns here")
    if "tool_calls" not in template.text and any(message.get("tool_calls") for message in messages):
        raise ValueError("a message has tool_calls, and the chat template does not write them")
    text = _render(template, messages, False)
    spans = _marked_spans(text)
    if spans is None:
        spans = _added_spans(template, messages, text)
    text = text.replace(BEGIN, "").replace(END, "")
    if not spans:
        raise ValueError("no message of the assistant, so nothing to learn")
    return text, spans


def _render(template: ChatTemplate, messages: Sequence[Mapping[str, Any]], prompt: bool) -> str:
    import jinja2

    try:
        text: str = _compile(template.text).render(
            messages=messages, tools=None, documents=None, add_generation_prompt=prompt, **template.tokens
        )
    except (jinja2.TemplateError, TypeError, ValueError, ArithmeticError, LookupError, AttributeError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(f"the chat template refuses it: {reason}") from error
    if len(text) > MOST_CHAT_LETTERS:
        raise ValueError(f"the chat template makes {len(text)} letters of it; at most {MOST_CHAT_LETTERS}")
    return text


def _marked_spans(text: str) -> Spans | None:
    """The spans between BEGIN and END, counted without these letters; None: the template has no such tags."""
    if BEGIN not in text:
        return None
    spans, begin, at = Spans(), 0, 0
    for piece in re.split(f"([{BEGIN}{END}])", text):
        if piece == BEGIN:
            begin = at
        elif piece == END:
            if at > begin:
                spans.append((begin, at))
        else:
            at += len(piece)
    return spans


def _added_spans(template: ChatTemplate, messages: Sequence[Mapping[str, Any]], text: str) -> Spans:
    """What each message of the assistant adds. ValueError if an earlier text is not the beginning of a later one."""
    spans = Spans()
    for i, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        before, after = _render(template, messages[:i], True), _render(template, messages[: i + 1], False)
        if not (text.startswith(after) and after.startswith(before)):
            raise ValueError(
                f"the chat template writes message {i} in another way once more messages follow, so the assistant's "
                "turns can't be told apart: mark them by {% generation %} in a copy of it, --chat=FILE"
            )
        spans.append((len(before), len(after)))
    return spans


def make_chat_encoder(
    template: ChatTemplate, tokenizer: Tokenizer
) -> Callable[[Sequence[Mapping[str, Any]]], np.ndarray]:
    """A function from messages to ids, int32, of which those outside the assistant's turns are masked."""
    import tokenizers

    inner = tokenizers.Tokenizer.from_str(tokenizer.content.decode())  # unlike in texts, special tokens are special
    inner.no_truncation()
    inner.no_padding()
    vocabulary = inner.get_vocab(with_added_tokens=True)
    drops = lacking.drops_letters(parse_json(tokenizer.content), vocabulary, byte_letters())

    def encode(messages: Sequence[Mapping[str, Any]]) -> np.ndarray:
        text, spans = render_chat(template, messages)
        try:
            encoding = inner.encode(text, add_special_tokens=False)
        except Exception as error:  # the library raises bare Exceptions
            raise ValueError(str(error)) from error
        if drops:
            lacking.check_all_covered(text, encoding.offsets)
        ids, is_target = np.array(encoding.ids, np.int32), np.zeros(len(encoding.ids), bool)
        for begin, end in spans:
            # As transformers: from the token of the first letter to that of the last one, both included.
            first, last = encoding.char_to_token(begin), encoding.char_to_token(end - 1)
            if first is not None:
                is_target[first : len(ids) if last is None else last + 1] = True
        if (ids == tokenizer.separator).any():
            raise ValueError(f"it holds token {tokenizer.separator}, which ends documents: --separator=TOKEN")
        return mask_ids(ids, ~is_target)

    return encode


def check_separator(template: ChatTemplate, tokenizer: Tokenizer) -> None:
    """Raise BadInput if the template writes the token that ends a document, as it does with many an eos_token.

    A chat would then be several documents, and an answer would not see its question.
    """
    import tokenizers

    try:
        text = _render(template, PROBE, False).replace(BEGIN, "").replace(END, "")
    except ValueError:
        return  # a template that wants other messages; each chat is checked in any case
    inner = tokenizers.Tokenizer.from_str(tokenizer.content.decode())
    ids = set(inner.encode(text, add_special_tokens=False).ids)
    if tokenizer.separator not in ids:
        return
    special = inner.get_added_tokens_decoder()
    unused = [token.content for number, token in sorted(special.items()) if number not in ids and token.special]
    usual = next((token for token in END_TOKENS if token in unused), unused[0] if unused else "ID")
    raise BadInput(
        f"--chat: the template writes {inner.id_to_token(tokenizer.separator)!r} within a chat, which also ends "
        f"documents (eos_token): an answer would not see its question; --separator={shlex.quote(usual)}"
    )


def mask_ids(ids: np.ndarray, masked: np.ndarray) -> np.ndarray:
    """Ids as they are stored, int32: those that are read and not predicted below -1."""
    return np.where(masked, MASKED - ids, ids).astype(np.int32)


def is_masked(ids: np.ndarray) -> bool:
    """Whether some of the ids are read and not predicted, as in a chat."""
    return ids.dtype.kind == "i" and len(ids) > 0 and bool(ids.min() <= MASKED)


def count_targets(ids: np.ndarray) -> int:
    """How many of stored ids are predicted."""
    return int(np.count_nonzero(ids >= 0)) if ids.dtype.kind == "i" else len(ids)


def count_id(ids: np.ndarray, number: int | None) -> int:
    """How many of stored ids, masked or not, are `number`; 0 for None."""
    return 0 if number is None else int(np.count_nonzero(unmask_ids(ids) == number))


def message_texts(messages: Sequence[Mapping[str, Any]]) -> bytes:
    """The texts of messages, joined: what a tokenizer must be able to write of a chat, whatever its template adds."""
    contents = [message.get("content") for message in messages]
    return "\n".join(content for content in contents if isinstance(content, str)).encode()


def unmask_ids(ids: np.ndarray) -> np.ndarray:
    """The ids that were stored, masked or not; -1 stays padding."""
    return np.where(ids <= MASKED, MASKED - ids, ids) if ids.dtype.kind == "i" else ids
