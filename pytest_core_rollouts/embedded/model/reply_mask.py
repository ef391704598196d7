"""Masks keys in the replies of a model's server before a sandbox sees them.

A mask is as long as the key, so the content-length of a reply stays right. In a stream, only what may be the beginning
of a key is held back.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterable, Iterator

from pytest_core_rollouts.secret_values import is_secret

_MASK = b"[masked]"
_PIECE = 1 << 16  # bytes that are decompressed at a time
_CODINGS = (b"gzip", b"x-gzip", b"deflate")


class UnknownCoding(Exception):
    """A reply has a compression that is not supported; str: its content-encoding."""


class KeyMask:
    """Masks keys in whole texts. `stream` makes a mask for a text that comes in pieces.

    A key is found as it is and in the forms that JSON has for it. Placeholders such as `EMPTY` are not masked, because
    they are ordinary words.
    """

    def __init__(self, keys: Iterable[str]) -> None:
        forms = {form.encode() for key in keys if is_secret(key) for form in _forms(key)}
        self.forms = sorted(forms, key=len, reverse=True)  # longest first: one may be the beginning of another
        self.letters = {form[i : i + 1] for form in self.forms for i in range(len(form))}
        self.pattern = re.compile(b"|".join(map(re.escape, self.forms)))

    def whole(self, text: bytes) -> bytes:
        """Return the text with keys masked."""
        mask = self.stream()
        return mask.feed(text) + mask.end()

    def is_in(self, name: bytes) -> bool:
        """Return True if a header's name, in lower case, holds a key."""
        return any(form.lower() in name.lower() for form in self.forms)

    def stream(self) -> StreamMask:
        """Return a mask for one text that comes in pieces."""
        return StreamMask(self)


class StreamMask:
    """Masks one text piece by piece: `feed` each, then `end`."""

    def __init__(self, mask: KeyMask) -> None:
        self._forms, self._pattern, self._letters = mask.forms, mask.pattern, mask.letters
        self._held = b""

    def feed(self, piece: bytes) -> bytes:
        """Return what can be passed on so far."""
        # The usual case: the piece holds no key, and its last byte, such as a newline, is in no key.
        if not self._held and piece[-1:] not in self._letters and not any(form in piece for form in self._forms):
            return piece
        text, self._held = self._held + piece, b""
        done: list[bytes] = []
        position = 0
        if any(form in text for form in self._forms):
            while (match := self._pattern.search(text, position)) is not None:
                if match.end() == len(text) and self._may_go_on(match[0]):
                    break
                done += (text[position : match.start()], _mask_for(match[0]))
                position = match.end()
        hold = self._start_of_prefix(text, position)
        self._held = text[hold:]
        return b"".join((*done, text[position:hold]))

    def end(self) -> bytes:
        """Return what was held back, masked: the text is complete."""
        rest, self._held = self._held, b""
        return self._pattern.sub(lambda match: _mask_for(match[0]), rest) if self._forms else rest

    def _may_go_on(self, key: bytes) -> bool:
        return any(len(form) > len(key) and form.startswith(key) for form in self._forms)

    def _start_of_prefix(self, text: bytes, position: int) -> int:
        """Return where the longest ending of `text` that begins a key starts; its length if it has no such ending."""
        starts = [len(text)]
        for form in self._forms:
            start = text.find(form[:1], max(position, len(text) - len(form) + 1))
            while start >= 0 and not form.startswith(text[start:]):
                start = text.find(form[:1], start + 1)
            starts += [start] if start >= 0 else []
        return min(starts)


class Decoder:
    """Decompresses a reply. The constructor raises UnknownCoding, `feed` raises zlib.error for damaged data."""

    def __init__(self, coding: bytes) -> None:
        if coding.strip().lower() not in _CODINGS:
            raise UnknownCoding(coding.decode("ascii", "replace"))
        self._inflating = zlib.decompressobj(wbits=47)  # gzip and zlib, by their first bytes

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """Yield pieces of at most 64 KiB, however strongly they are compressed."""
        while piece:
            if self._inflating.eof:
                self._inflating = zlib.decompressobj(wbits=47)
            if text := self._inflating.decompress(piece, _PIECE):
                yield text
            piece = self._inflating.unconsumed_tail or self._inflating.unused_data


def _forms(key: str) -> tuple[str, ...]:
    """Return a key as it is, as JSON writes it, and as JSON within a string of JSON writes it."""
    once = json.dumps(key)[1:-1]
    return key, once, json.dumps(once)[1:-1]


def _mask_for(key: bytes) -> bytes:
    return _MASK.ljust(len(key), b"*")
