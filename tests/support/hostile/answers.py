"""Agents whose answer is meant to break who reads, compares or shows it."""

from __future__ import annotations

from .agents import Hostile, answering

ONE = {"x": 1}
TEXT = {"x": "a" * 8000}

ANSWERS = (
    Hostile("brackets", answering("b'[' * (1 << 20)"), expected=ONE),
    Hostile("brackets-closed", answering("b'{\"x\": ' + b'[' * 500_000 + b']' * 500_000 + b'}'"), expected=ONE),
    Hostile("objects", answering("b'{\"x\":' * 150_000 + b'1' + b'}' * 150_000"), expected=ONE),
    Hostile("surrogate", answering('b\'{"x": "\\\\ud800"}\''), expected=ONE),
    Hostile("surrogate-key", answering('b\'{"x": 1, "\\\\udfff": "\\\\ud800\\\\ud800"}\''), expected=ONE, reward=1.0),
    Hostile("nan", answering("b'{\"x\": NaN}'"), expected=ONE),
    Hostile("infinity", answering("b'{\"x\": -Infinity}'"), expected=ONE),
    Hostile("duplicate", answering('b\'{"x": 1, "x": 1}\''), expected=ONE),
    Hostile("huge-integer", answering("b'{\"x\": ' + b'9' * 1_000_000 + b'}'"), expected=ONE),
    Hostile("huge-exponent", answering("b'{\"x\": 1e999999999}'"), expected=ONE),
    Hostile("tiny-exponent", answering("b'{\"x\": 1.0000000000000000000000000e0}'"), expected=ONE, reward=1.0),
    Hostile("long-fraction", answering("b'{\"x\": 1.' + b'0' * 900 + b'1}'"), expected=ONE, reward=1.0),
    Hostile("longer-fraction", answering("b'{\"x\": 1.' + b'0' * 900_000 + b'1}'"), expected=ONE),
    Hostile("other-integer", answering("b'{\"x\": 48213340.0}'"), expected={"x": 48213377}),
    Hostile("true", answering("b'{\"x\": true}'"), expected=ONE),
    Hostile("text", answering('b\'{"x": "1"}\''), expected=ONE),
    Hostile("marks", answering("('{\"x\": \"a' + '\\u0301\\u0316' * 48_000 + '\"}').encode()"), expected=TEXT),
    Hostile("hangul", answering("('{\"x\": \"' + '\\u1100\\u1161\\u11a8' * 90_000 + '\"}').encode()"), expected=TEXT),
    Hostile("expanding", answering("('{\"x\": \"' + '\\ufdfa' * 300_000 + '\"}').encode()"), expected=TEXT),
    Hostile("utf-16", answering("'{\"x\": 1}'.encode('utf-16')"), expected=ONE),
    Hostile("not-utf-8", answering('b\'{"x": 1, "y": "\\xff"}\''), expected=ONE),
    Hostile("zero", answering("b'{\"x\": 1}\\0'"), expected=ONE),
    Hostile("trailing", answering('b\'{"x": 1} {"x": 1}\''), expected=ONE),
    Hostile("too-large", answering("b'{\"x\": 1}' + b' ' * (1 << 20)"), expected=ONE),
    Hostile(
        "escapes",
        answering(
            'b\'{"x": "\\\\u001b[2J\\\\u001b]0;owned\\\\u0007\\\\r\\\\n::error::owned\\\\u202e\\\\u0085\\\\ufffe"}\''
        ),
        expected=ONE,
    ),
    Hostile(
        "escapes-raw",
        answering("b'\\x1b[2J\\x1b]0;owned\\x07\\r\\n::error::owned\\r\\n##[error]owned\\n'"),
        expected=ONE,
    ),
    Hostile(
        "escapes-key",
        answering('b\'{"x": 1, "\\\\n::error::owned\\\\u001b[1m</script>": 1}\''),
        expected=ONE,
        reward=1.0,
    ),
    Hostile("markup", answering('b\'{"x": "</script><script>owned()</script>![](http://x/)|`"}\''), expected=ONE),
    Hostile("own-reward", answering('b\'{"reward": 1, "status": "completed", "__proto__": {"x": 1}}\''), expected=ONE),
    Hostile(
        "many-keys",
        answering("('{\"x\": 1, ' + ', '.join(f'\"{i}\": {{}}' for i in range(70_000)) + '}').encode()"),
        expected=ONE,
        reward=1.0,
    ),
    Hostile(
        "unordered",
        answering("('{\"x\": [' + ', '.join(str(i + 0.5) for i in range(100_000)) + ']}').encode()"),
        expected={"x": [i + 0.25 for i in range(200)]},
        yaml="grading: {x: {unordered: true}}",
    ),
)
