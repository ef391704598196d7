#!/usr/bin/env bash
# Failed SSH password attempts per client address, 12 to 18 May, by the rules of README.md.
set -euo pipefail
mkdir -p outputs
python3 - <<'PY'
import ipaddress
import json
import re
from collections import Counter
from pathlib import Path

LINE = re.compile(r"May +(\d+) \d\d:\d\d:\d\d \S+ sshd(?:-session)?\[\d+\]: (.*)")
REPEATED = re.compile(r"message repeated (\d+) times: \[ (.*)\]")
FAILED = re.compile(r"Failed password for .*from (\S+) port \d+ ssh2")  # greedy: the last `from` is the server's own


def client(text: str) -> str:
    address = ipaddress.ip_address(text)
    if address.version == 6 and address.ipv4_mapped:
        address = address.ipv4_mapped
    return address.compressed


attempts: Counter[str] = Counter()
for text in Path("auth.log").read_text(encoding="utf-8").split("\n"):
    line = LINE.fullmatch(text)
    if not line or not 12 <= int(line[1]) <= 18:
        continue
    repeated = REPEATED.fullmatch(line[2])
    times, message = (int(repeated[1]), repeated[2]) if repeated else (1, line[2])
    if failed := FAILED.fullmatch(message):
        attempts[client(failed[1])] += times

answer = {
    "attempts": dict(attempts.most_common()),
    "addresses": len(attempts),
    "total": sum(attempts.values()),
    "top_address": attempts.most_common(1)[0][0],
}
Path("outputs/answer.json").write_text(json.dumps(answer, indent=2) + "\n", encoding="utf-8")
PY
