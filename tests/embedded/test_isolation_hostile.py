"""What an agent finds that looks everywhere: nothing of the host's but programs, no way out, no place to write to."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import socket
import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from pytest_core_rollouts.embedded.sandbox import Isolation, Sandbox
from pytest_core_rollouts.embedded.sandbox.seccomp import FAMILIES
from tests.support.sandboxes import new_sandbox, run, text

SECRET = f"secret-{uuid.uuid4().hex}"

# Names of all files, contents of those that are not old programs, where files can be made, what /proc shows.
SEARCH = """
import json, os, sys, time
secret = sys.argv[1].encode()
named, holding, writable, folders = [], [], [], 0
for parent, names, files in os.walk("/", onerror=lambda error: None):
    if parent == "/proc":
        names[:] = [name for name in names if name == "1" or name == str(os.getpid()) or not name.isdigit()]
    if parent.startswith("/proc/"):
        names[:] = [name for name in names if name not in ("root", "cwd", "task")]
    folders += 1
    if not parent.startswith("/proc"):
        try:
            os.close(os.open(parent + "/probe-of-writing", os.O_CREAT | os.O_WRONLY))
            os.unlink(parent + "/probe-of-writing")
            writable.append(parent)
        except OSError:
            pass
    for name in names + files:
        path = os.path.join(parent, name)
        if secret in os.fsencode(name):
            named.append(path)
    for name in files:
        path = os.path.join(parent, name)
        try:
            if parent.startswith(("/usr/", sys.base_prefix)) and os.lstat(path).st_mtime < time.time() - 3600:
                continue
            file = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
            try:
                if secret in os.read(file, 1 << 18):
                    holding.append(path)
            finally:
                os.close(file)
        except OSError:
            pass
print(json.dumps({"named": named, "holding": holding, "writable": writable, "folders": folders}))
"""

CONNECT = """
import json, socket, sys
opened = []
for family, kind, address in json.loads(sys.argv[1]):
    address = tuple(address) if isinstance(address, list) else address
    try:
        with socket.socket(family, kind) as client:
            client.settimeout(2)
            client.connect(address)
            client.send(b"x")
            opened.append(address)
    except OSError:
        pass
print(json.dumps(opened))
"""


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Path]]:
    """Folders to hide, each holding the secret in a name and in a file: outside, and where a bound path shows it."""
    with ExitStack() as stack:
        outside = tmp_path_factory.mktemp("tasks")
        homes = [outside, Path("/usr/src"), Path("/usr/local/share"), Path("/usr/share/doc")]
        made = []
        for home in homes:
            if not os.access(home, os.W_OK):
                continue
            place = home / f"repository {uuid.uuid4().hex}"
            (place / "tasks" / SECRET).mkdir(parents=True)
            stack.callback(shutil.rmtree, place)
            (place / "expected.json").write_text(SECRET)
            made.append(place)
        yield made


@pytest.fixture(scope="module")
def isolation(places: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Isolation]:
    link = tmp_path_factory.mktemp("links") / "link"
    link.symlink_to(places[-1])  # this one is only named by a link to it
    hidden = [*places[:-1], link, places[0] / "expected.json", Path("/no/such/place")]
    isolation = Isolation.probe(hidden=hidden)
    yield isolation
    isolation.close()


@pytest.fixture
def sandbox(isolation: Isolation) -> Iterator[Sandbox]:
    with new_sandbox(isolation) as sandbox:
        yield sandbox


def python(sandbox: Sandbox, script: str, *args: str) -> Any:
    done = run(sandbox, 'exec python3 -c "$@"', script, *args)
    assert done.returncode == 0, text(done)
    return json.loads(done.output)


def test_a_search_of_everything_finds_no_secret_and_no_place_to_write(
    isolation: Isolation, sandbox: Sandbox, places: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    with new_sandbox(isolation) as other:
        other.write_files([("/workspace/expected.json", SECRET.encode()), (f"/workspace/{SECRET}", b"")])
        (isolation.folder / "secret").write_text(SECRET)
        found: Mapping[str, Any] = python(sandbox, SEARCH, SECRET)
    assert found["folders"] > 100
    assert found["named"] == []
    mine = [path for path in found["holding"] if path.startswith("/proc/") and path.endswith("/cmdline")]
    assert mine, "the search finds its own command line, so it does find what is there"
    assert sorted(found["holding"]) == sorted(mine)
    assert sorted(found["writable"]) == ["/dev/shm", "/home/agent", "/tmp", "/workspace"]


def test_hidden_places_are_empty_under_every_name(sandbox: Sandbox, places: list[Path]) -> None:
    for place in places:
        done = run(sandbox, 'ls -A "$1"; cat "$1/expected.json"', str(place))
        assert text(done).count("No such file") >= 1
        assert SECRET not in text(done)


def test_sandbox_can_connect_to_nothing(sandbox: Sandbox, tmp_path: Path) -> None:
    with ExitStack() as stack:
        listeners = []
        named = str(tmp_path / "socket")
        for family, address in (
            (socket.AF_INET, ("127.0.0.1", 0)),
            (socket.AF_INET6, ("::1", 0)),
            (socket.AF_UNIX, f"\0{uuid.uuid4().hex}"),
            (socket.AF_UNIX, named),
        ):
            listener = stack.enter_context(socket.socket(family, socket.SOCK_STREAM))
            listener.bind(address)
            listener.listen()
            listener.setblocking(False)
            listeners.append(listener)
        targets = [(one.family, one.type & 0xF, one.getsockname()) for one in listeners]
        targets[2] = (*targets[2][:2], targets[2][2].decode())
        targets += [
            (socket.AF_INET, socket.SOCK_STREAM, ("1.1.1.1", 53)),
            (socket.AF_INET, socket.SOCK_DGRAM, ("1.1.1.1", 53)),
        ]
        assert python(sandbox, CONNECT, json.dumps(targets)) == []
        for listener in listeners:
            with pytest.raises(BlockingIOError):
                listener.accept()


def test_processes_see_and_reach_only_each_other(sandbox: Sandbox) -> None:
    assert int(text(run(sandbox, "ls -d /proc/[0-9]* | wc -l"))) <= 5
    assert text(run(sandbox, "ls /proc/self/fd")).split() == ["0", "1", "2", "3"]  # 3 is ls's own
    assert len(text(run(sandbox, "cat /proc/net/unix")).splitlines()) == 1
    assert "No such process" in text(run(sandbox, "kill -9 -1"))


def test_no_capabilities_no_new_privileges_no_namespaces(isolation: Isolation, sandbox: Sandbox) -> None:
    done = run(sandbox, "grep -E '^(Cap|NoNewPrivs|Uid)' /proc/self/status; unshare -Ur true; mount -t tmpfs x /tmp")
    status = dict(line.split(":\t", 1) for line in text(done).splitlines() if ":\t" in line)
    capabilities = {name: int(value, 16) for name, value in status.items() if name.startswith("Cap")}
    assert not any(capabilities.values()), status
    assert status["NoNewPrivs"] == "1"
    assert set(status["Uid"].split()) == {"1000"}
    assert done.returncode != 0
    if isolation.bubblewrap.disables_userns:
        assert "unshare: unshare failed" in text(done)


def test_init_shows_no_host_path_and_no_environment(isolation: Isolation, sandbox: Sandbox) -> None:
    done = run(sandbox, "tr '\\0' ' ' < /proc/1/cmdline; echo; cat /proc/1/environ | wc -c; cat /etc/passwd /etc/group")
    assert str(isolation.folder) not in text(done)
    assert text(done).splitlines()[1] == "0"
    assert "root:x:0:0:root:/:" in text(done)
    own = Path("/etc/passwd").read_text().splitlines()[1]
    assert own not in text(done)


def test_users_and_secrets_of_the_host_are_not_visible(sandbox: Sandbox) -> None:
    done = run(
        sandbox,
        "ls -A /etc /etc/ssl; cat /etc/shadow /etc/machine-id; ls -A /root /home /var /opt /mnt /srv /boot /sys",
    )
    listed = text(done)
    for name in ("shadow\n", "machine-id\n", "private\n", "ssh\n"):
        assert f"\n{name}" not in listed


KEYS = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
add_key, keyctl = {"x86_64": (248, 250), "aarch64": (217, 219)}[os.uname().machine]
for number, *arguments in ((add_key, b"user", b"mine", b"x", 1, -3), (keyctl, 0, -3, 0), (keyctl, 6, -4, 0)):
    result = libc.syscall(number, *arguments)
    print("refused" if result < 0 and ctypes.get_errno() == 1 else "done")
"""


def test_kernel_keyrings_cannot_be_read(sandbox: Sandbox) -> None:
    if os.uname().machine not in ("x86_64", "aarch64"):
        pytest.skip("the numbers of the system calls are only known for x86_64 and aarch64")
    done = run(sandbox, 'python3 -c "$1"; cat /proc/keys', KEYS)
    assert text(done) == "refused\n" * 3


SOCKETS = """
import ctypes, errno, json, socket, sys
def attempt(make, *arguments):
    try:
        for end in [made] if isinstance(made := make(*arguments), socket.socket) else made:
            end.close()
        return "made"
    except OSError as error:
        return errno.errorcode[error.errno]
kinds = (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW, socket.SOCK_SEQPACKET)
results = {"socket": {}, "pair": {}}
for family in range(64):
    results["socket"][family] = sorted({attempt(socket.socket, family, kind) for kind in kinds})
    results["pair"][family] = sorted({attempt(socket.socketpair, family, kind) for kind in kinds})
libc = ctypes.CDLL(None, use_errno=True)
numbers = {"x86_64": {"i": 425, "x32": 0x40000000 + 41, "wide": 41}, "aarch64": {"i": 425, "wide": 198}}[sys.argv[1]]
for name, number in numbers.items():
    family = ctypes.c_uint64(40 + ((1 << 32) if name == "wide" else 0))  # the kernel ignores the upper half
    ctypes.set_errno(0)
    results[name] = errno.errorcode[ctypes.get_errno()] if libc.syscall(number, family, 1, 0) < 0 else "made"
print(json.dumps(results))
"""
_OTHERS = "a machine whose system calls have no numbers in this test"


def test_sockets_of_other_families_are_refused(sandbox: Sandbox) -> None:
    """AF_VSOCK leads to the hypervisor, AF_ALG and AF_PACKET into the kernel: no namespace holds them back."""
    machine = os.uname().machine
    if machine not in ("x86_64", "aarch64"):
        pytest.skip(_OTHERS)
    results = python(sandbox, SOCKETS, machine)
    allowed = {str(int(family)) for family in FAMILIES}
    for call in ("socket", "pair"):
        refused = {family for family, codes in results[call].items() if codes == ["EAFNOSUPPORT"]}
        assert refused == results[call].keys() - allowed, results[call]
    assert all("made" in results["socket"][family] for family in allowed - {"10"}), results["socket"]  # IPv6 may be off
    assert "made" in results["pair"][str(int(socket.AF_UNIX))]
    assert (results["i"], results["wide"], results.get("x32", "EPERM")) == ("EPERM", "EAFNOSUPPORT", "EPERM")


I386 = """
import ctypes, mmap
# push rbx; mov eax, 359 (i386's socket); mov ebx, 40; mov ecx, 1; xor edx, edx; int 0x80; pop rbx; ret
code = bytes.fromhex("53 b867010000 bb28000000 b901000000 31d2 cd80 5b c3")
page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
page.write(code)
call = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))
print(call())
"""


def test_calls_of_i386_are_refused(sandbox: Sandbox) -> None:
    if os.uname().machine != "x86_64":
        pytest.skip("only x86-64 has a second table of system calls under int 0x80")
    done = run(sandbox, 'exec python3 -c "$1"', I386)
    crashed = 128 + signal.SIGSEGV  # a kernel that is built without i386
    assert (done.returncode, text(done)) in ((0, f"{-errno.EPERM}\n"), (crashed, "")), text(done)
