"""Agents that leave outputs which are odd, huge, forbidden, or change while they are copied."""

from __future__ import annotations

from typing import Any

from .agents import RIGHT, Hostile, python

REJECTED: dict[str, Any] = {"status": "failed", "codes": ("outputs_rejected",)}
OVER: dict[str, Any] = {"status": "failed", "codes": ("sandbox_limit_exceeded",)}

SWAPPER = """
import os, sys
if os.fork() == 0:
    os.setsid()
    os.makedirs("real", exist_ok=True)
    open("real/answer.json", "w").write('{"x": "a guess"}')
    while True:
        for target in ("/etc", "/proc/self", "/usr", "/workspace/real"):
            try:
                os.symlink(target, "next")
                os.rename("next", "outputs")
            except OSError:
                pass
import time
time.sleep(0.3)
"""
REWRITER = """
import os, time
os.makedirs("outputs", exist_ok=True)
for _ in range(3):
    if os.fork() == 0:
        os.setsid()
        while True:
            name = f"outputs/.{os.getpid()}"
            with open(name, "w") as file:
                file.write('{"x": 1}' + " " * (os.getpid() % 7))
            os.rename(name, "outputs/answer.json")
time.sleep(0.3)
"""
LEASE = """
import fcntl, os, signal, time
os.makedirs("outputs", exist_ok=True)
open("outputs/answer.json", "w").write('{"x": 1}')
signal.signal(signal.SIGIO, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    file = open("outputs/answer.json", "a")
    fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    fcntl.flock(file, fcntl.LOCK_EX)
    time.sleep(600)
time.sleep(0.2)
"""
NAMES = r"""
mkdir -p outputs && cd outputs
for name in $'a\nb' $'\e[2J\e]0;owned\a' $'::error::owned' $'x\n::error::owned' $'\xe2\x80\xaetxt.exe' \
    '-rf' '~' '$(id)' '`id`' '*' '%s%n' ' ' '.' '...' 'CON' 'a\b' "$(printf 'x%.0s' {1..255})"; do
  echo owned >"./$name" 2>/dev/null
done
cd ..
"""

UNDERSCORES = """
import os
os.mkdir("outputs")
for number in range(1000):
    open(f"outputs/{'_' * 230}{number}.mb", "w").close()
"""

OUTPUTS = (
    Hostile("fifo", "mkdir outputs; mkfifo outputs/x", **REJECTED, says="'/workspace/outputs/x' is a FIFO"),
    Hostile("answer-fifo", "mkdir outputs; mkfifo outputs/answer.json", **REJECTED, says="is a FIFO"),
    Hostile(
        "socket",
        python("import os, socket\nos.mkdir('outputs')\nsocket.socket(1).bind('outputs/s')"),
        **REJECTED,
        says="'/workspace/outputs/s' is a socket",
    ),
    Hostile("outputs-link", "ln -s /usr outputs", **REJECTED, says="is a symbolic link, not a directory"),
    Hostile("outputs-self-link", "ln -s outputs outputs", **REJECTED, says="is a symbolic link, not a directory"),
    Hostile("outputs-file", "echo >outputs", **REJECTED, says="is a file, not a directory"),
    Hostile("outputs-fifo", "mkfifo outputs", **REJECTED, says="is a FIFO, not a directory"),
    Hostile(
        "sparse",
        "mkdir outputs; truncate -s 900M outputs/big",
        **REJECTED,
        says="'/workspace/outputs/big' has 943718400 bytes; at most 209715200 are kept",
    ),
    Hostile("sparse-terabyte", "mkdir outputs; truncate -s 1T outputs/answer.json", says="File size limit exceeded"),
    Hostile(
        "hard-links",
        "mkdir outputs; truncate -s 100M outputs/a; for i in 1 2 3 4 5 6 7 8 9; do ln outputs/a outputs/$i; done",
        **REJECTED,
        says="at most 524288000 are kept",
    ),
    Hostile("many", "mkdir outputs; cd outputs; seq 5000 | xargs touch", **REJECTED, says="more than 4096 entries"),
    Hostile("name", "mkdir outputs; touch $'outputs/\\xff'", **REJECTED, says="the name is not UTF-8"),
    Hostile(
        "nested",
        "p=outputs; for i in {1..70}; do p=$p/d; done; mkdir -p $p",
        **REJECTED,
        says="is nested deeper than 64 levels",
    ),
    Hostile(
        "nested-deep",
        python("import os, time\nfor i in range(400): os.mkdir('d'); os.chdir('d')\ntime.sleep(20)"),
        **OVER,
        says="folders nested deeper than 200",
    ),
    Hostile(
        "nested-long-names",
        python("import os\nfor name in ['outputs', *['d' * 250] * 60]: os.mkdir(name); os.chdir(name)"),
    ),
    Hostile(
        "tiny-files",
        python("import os, time\nfor i in range(40000): os.mknod(f'f{i}')\ntime.sleep(20)"),
        **OVER,
        says="files and folders",
    ),
    Hostile("disk", "for i in {1..40}; do head -c 20M /dev/zero >f$i; sleep 0.1; done; sleep 20", **OVER, says="disk"),
    Hostile(
        "disk-deleted",
        "exec 7>f; rm f; for i in {1..40}; do head -c 20M /dev/zero >&7; sleep 0.1; done; sleep 20",
        **OVER,
        says="disk",
    ),
    Hostile(
        "temporary",
        python(
            """
            import os, shutil
            for folder in ("/tmp", "/dev/shm"):
                try:
                    with open(f"{folder}/mallory", "wb") as file:
                        for _ in range(16):
                            file.write(bytes(1 << 24))
                except OSError as error:
                    print(error)
                os.unlink(f"{folder}/mallory")
            """
        ),
        codes=(None, "sandbox_limit_exceeded"),
        status="",
    ),
    Hostile("closed", f"{RIGHT} chmod 000 outputs/answer.json outputs . .. ~ /tmp", reward=1.0),
    Hostile("nothing-left", "rm -rf /workspace/* ~/* ~/.[a-z]* /tmp/* 2>/dev/null; true"),
    Hostile("answer-folder", "mkdir -p outputs/answer.json"),
    Hostile("answer-link", "mkdir outputs; ln -s /etc/passwd outputs/answer.json"),
    Hostile("answer-link-right", "mkdir outputs; echo '{\"x\": 1}' >a; ln -s ../a outputs/answer.json"),
    Hostile("answer-device", "mkdir outputs; mknod outputs/answer.json c 1 5", says="not permitted", status=""),
    Hostile("answer-space", "mkdir outputs; echo '{\"x\": 1}' >'outputs/answer.json '"),
    Hostile("names", f"{NAMES}{RIGHT}", reward=1.0, yaml="outputs: ['**']", never_says="owned"),
    Hostile(
        "underscores",
        f"{python(UNDERSCORES)}{RIGHT}",
        reward=1.0,
        yaml="outputs: ['*_*_*_*_*_*.md', '**/*_*_*_*_*_*.md']",
    ),
    Hostile("swapped", python(SWAPPER), status="", codes=(None, "outputs_rejected")),
    Hostile("rewritten", python(REWRITER), status="", codes=(None, "outputs_rejected"), reward=1.0),
    Hostile("leased", python(LEASE), reward=1.0),
    Hostile(
        "attributes",
        python(
            """
            import os
            os.mkdir("outputs")
            open("outputs/answer.json", "w").write('{"x": 1}')
            for name in ("user.x", "security.capability", "trusted.x", "system.posix_acl_access"):
                try:
                    os.setxattr("outputs/answer.json", name, b"x" * 64)
                except OSError as error:
                    print(name, error)
            os.chmod("outputs/answer.json", 0o7777)
            """
        ),
        reward=1.0,
    ),
)
