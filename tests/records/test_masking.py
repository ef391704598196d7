from __future__ import annotations

import base64
import json
from urllib.parse import quote

from pytest_core_rollouts.records.masking import MASK, Masker
from tests.support.tables import rows

SECRET = 'sk-live/4f+"Zq9\\é!'


@rows(
    "text",
    [
        SECRET,
        f"Bearer {SECRET}, twice {SECRET}",
        json.dumps({"arguments": SECRET}),
        json.dumps({"arguments": SECRET}, ensure_ascii=False),
        f"https://models.example/v1?key={quote(SECRET, safe='')}",
        f"https://models.example/{quote(SECRET)}",
        *(base64.b64encode(user + SECRET.encode() + b" tail").decode() for user in (b"", b"u", b"us", b"user:")),
        base64.urlsafe_b64encode(b"user:" + SECRET.encode()).decode(),
    ],
)
def test_a_secret_is_found_in_each_form_it_is_written_in(text: str) -> None:
    masked = Masker([SECRET]).text(text)
    assert MASK in masked
    for part in ("4f+", "4f%2B", "Zq9"):
        assert part not in masked


def test_base64_is_masked_up_to_the_characters_shared_with_a_neighbor() -> None:
    text = base64.b64encode(b"user:" + SECRET.encode() + b" tail").decode()
    before, after = Masker([SECRET]).text(text).split(MASK)
    assert (base64.b64decode(before[:4] + "===")[:3], len(before)) == (b"use", len("dXNlcjp"))
    assert len(after) <= len(base64.b64encode(b"! tail"))


def test_keys_and_values_at_every_depth_are_masked_and_the_rest_is_kept() -> None:
    data = {"a": [1, 2.5, None, True, {"x" + SECRET: [f"<{SECRET}>"]}], "b": "plain"}
    assert Masker([SECRET]).data(data) == {"a": [1, 2.5, None, True, {"x" + MASK: [f"<{MASK}>"]}], "b": "plain"}


def test_a_secret_that_holds_another_is_masked_whole() -> None:
    masker = Masker(["abcd1234", "abcd1234-long-tail"])
    assert masker.text("abcd1234-long-tail abcd1234") == f"{MASK} {MASK}"


@rows(
    "word",
    [
        "EMPTY",
        "dummy",
        "None",
        "placeholder",
        "PLACEHOLDER",
        "sk-dummy",
        "sk-Placeholder",
        "xxxxxxxx",
        "sk-00000000",
        "short12",
    ],
)
def test_stand_ins_and_short_values_are_no_secrets(word: str) -> None:
    text = f"the {word} value"
    assert Masker([word, None, "", " "]).text(text) == text


def test_white_space_around_a_key_does_not_hide_it() -> None:
    assert Masker(["  sk-abcdef123456\n"]).text("key=sk-abcdef123456") == f"key={MASK}"


def test_without_secrets_nothing_changes() -> None:
    data = {"a": ["b"]}
    assert Masker([]).data(data) == data
