"""Agents that try the kernel's doors, and look for what is other people's."""

from __future__ import annotations

from .agents import MARK, RIGHT, SEGMENT_KEY, Hostile, doors, python

NAMESPACES = """
results = {}
for flag in (0x10000000, 0x20000, 0x20000000, 0x40000000, 0x8000000, 0x4000000, 0x2000000, 0x80):
    number = {"x86_64": 272, "aarch64": 97}.get(os.uname().machine, 97)
    results[f"unshare {flag:x}"] = call(number, flag)
machine = os.uname().machine
numbers = {
    "x86_64": {"mount": 165, "umount2": 166, "pivot_root": 155, "chroot": 161, "setns": 308, "clone3": 435},
    "aarch64": {"mount": 40, "umount2": 39, "pivot_root": 41, "chroot": 51, "setns": 268, "clone3": 435},
}.get(machine, {})
for name, number in numbers.items():
    path = ctypes.c_char_p(b"/tmp")
    arguments = {"mount": (path, path, ctypes.c_char_p(b"tmpfs"), 0, 0), "setns": (0, 0), "clone3": (0, 0)}
    results[name] = call(number, *arguments.get(name, (path, path, 0)))
for name, number in {"open_tree": 428, "fsopen": 430, "mount_setattr": 442}.items():
    results[name] = call(number, ctypes.c_char_p(b"tmpfs"), 1 if name == "open_tree" else 0, 0)
answer_if_refused(results)
"""
CALLS_REFUSED = """
numbers = {
    "x86_64": {"keyctl": 250, "add_key": 248, "request_key": 249, "bpf": 321, "perf_event_open": 298,
               "userfaultfd": 323, "reboot": 169, "kexec_load": 246, "init_module": 175, "finit_module": 313,
               "delete_module": 176, "swapon": 167, "acct": 163, "settimeofday": 164, "clock_settime": 227,
               "sethostname": 170, "setdomainname": 171, "quotactl": 179, "iopl": 172, "ioperm": 173,
               "fanotify_init": 300, "open_by_handle_at": 304, "syslog": 103, "vhangup": 153, "lookup_dcookie": 212},
    "aarch64": {"keyctl": 219, "add_key": 217, "request_key": 218, "bpf": 280, "perf_event_open": 241,
                "userfaultfd": 282, "reboot": 142, "kexec_load": 104, "init_module": 105, "swapon": 224,
                "acct": 89, "settimeofday": 170, "clock_settime": 112, "sethostname": 161, "fanotify_init": 262},
}.get(os.uname().machine, {})
zero = ctypes.create_string_buffer(256)
arguments = {"syslog": (3, zero, 256), "settimeofday": (zero, 0), "clock_settime": (0, zero), "userfaultfd": (0,),
             "keyctl": (0, -3, 0), "fanotify_init": (0, 0), "iopl": (3,), "ioperm": (0, 8, 1),
             "sethostname": (zero, 1), "setdomainname": (zero, 1), "acct": (0,), "vhangup": ()}
results = {name: call(number, *arguments.get(name, (0, 0, 0, 0, 0))) for name, number in numbers.items()}
for name, number in {"io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427}.items():
    results[name] = call(number, 1, zero, 0, 0, 0, 0)
answer_if_refused(results)
"""
SOCKETS = """
import socket
results = {}
for family in (*range(3, 10), *range(11, 16), *range(17, 46)):
    for kind in (1, 2, 3, 5):
        results[f"socket {family} {kind}"] = attempt(lambda: socket.socket(family, kind).close())
for family in (2, 10):
    results[f"raw {family}"] = attempt(lambda: socket.socket(family, 3, 1).close())
for address in (("1.1.1.1", 53), ("10.0.0.1", 80), ("169.254.169.254", 80), ("127.0.0.1", 48080)):
    results[str(address)] = attempt(lambda: socket.create_connection(address, 1).close())
def configure():
    import fcntl, struct
    fcntl.ioctl(socket.socket(), 0x8914, struct.pack("16sh", b"lo", 0))
results["take loopback down"] = attempt(configure)
def route():
    link = socket.socket(16, 3, 0)
    link.bind((0, 0))
    link.send(bytes.fromhex("1c000000 18000506 01000000 00000000 02000000 fe02fd01 00000000"))
    error = int.from_bytes(link.recv(4096)[16:20], "little", signed=True)
    if error:
        raise OSError(-error, "netlink")
results["add a route"] = attempt(route)
answer_if_refused(results)
"""
FILES = '''
import glob, stat
results = {}
def write(path, data=b"1"):
    file = os.open(path, os.O_WRONLY)
    os.write(file, data)
for path in """
    /proc/sys/kernel/core_pattern /proc/sys/kernel/hostname /proc/sys/kernel/msgmni /proc/sys/kernel/sem
    /proc/sys/kernel/shm_rmid_forced /proc/sys/fs/mqueue/queues_max /proc/sys/net/ipv4/ip_forward
    /proc/sys/vm/drop_caches /proc/sys/user/max_user_namespaces /proc/sys/user/max_inotify_instances
    /proc/sysrq-trigger /proc/acpi/wakeup /proc/self/uid_map
    /sys/fs/cgroup/memory.max /sys/fs/cgroup/cgroup.procs /sys/kernel/mm/ksm/run
    /dev/kmsg /dev/mem /dev/port /dev/kvm /dev/net/tun /dev/fuse /dev/vsock /dev/vhost-vsock
    /etc/passwd /usr/bin/env /bin/sh
""".split():
    results[f"write {path}"] = attempt(lambda: write(path))
for path in """
    /proc/kcore /proc/kmsg /proc/keys /proc/timer_list /proc/sched_debug /etc/shadow /etc/machine-id /root/.ssh
    /sys/kernel/debug /sys/firmware /sys/fs/cgroup /run/docker.sock
""".split():
    def read(path=path):
        data = os.listdir(path) if os.path.isdir(path) else os.read(os.open(path, os.O_RDONLY), 64)
        if not data:
            raise OSError(errno.ENODATA, path)
    results[f"read {path}"] = attempt(read)
for folder, _, names in os.walk("/dev"):
    for name in names:
        path = f"{folder}/{name}"
        known = "null zero full random urandom tty console ptmx core fd stdin stdout stderr".split()
        if name not in known and not folder.startswith(("/dev/fd", "/dev/pts")) and not os.path.islink(path):
            results[path] = None
for kind in (stat.S_IFCHR, stat.S_IFBLK):
    for number in (0x101, 0x800, 0x10a):
        results[f"device {kind} {number}"] = attempt(lambda: os.mknod("/tmp/device", kind | 0o666, number))
results["set-uid root"] = attempt(lambda: os.chown("/workspace", 0, 0))
results["hard link"] = attempt(lambda: os.link("/etc/passwd", "/workspace/p"))
results["become root"] = attempt(lambda: os.setuid(0))
results["groups"] = attempt(lambda: os.setgroups([0]))
answer_if_refused(results)
'''
IPC = f"""
import ctypes, os, socket
libc = ctypes.CDLL(None, use_errno=True)
key = {SEGMENT_KEY}
print("SEGMENT", libc.shmget(key, 1 << 20, 0o1666), libc.msgget(key, 0o1666), libc.semget(key, 1, 0o1666))
held = []
for name in ("\\0{MARK}", "/tmp/{MARK}.sock", "/dev/shm/{MARK}.sock"):
    one = socket.socket(socket.AF_UNIX)
    one.bind(name)
    one.listen()
    held.append(one)
open("/dev/shm/{MARK}", "wb").write(bytes(1 << 20))
if os.fork() == 0:
    os.setsid()
    import time
    time.sleep(600)
"""
NOTIFY = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
made = 0
while made < 128 and libc.inotify_init() >= 0:
    made += 1
print("INOTIFY", made, "bounded" if made < 128 else "unbounded")
import time
time.sleep(1.5)
"""
FLOCK = """
import fcntl, os, time
held = []
for folder in ("/usr/bin", "/usr/lib", "/etc"):
    for name in sorted(os.listdir(folder))[:200]:
        try:
            file = open(f"{folder}/{name}", "rb")
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            held.append(file)
        except OSError:
            pass
print("LOCKED", len(held))
time.sleep(1)
"""
SEARCH = r"""
import os
words = [first + second for first, second in ((b"cana", b"ry-"), (b"suite-", b"secret-"), (b"expec", b"ted.json"))]
found = []
for folder, _, names in os.walk("/"):
    if folder.startswith(("/usr", "/proc/sys", "/sys", "/lib", "/opt")):
        continue
    for name in names:
        path = os.path.join(folder, name)
        try:
            if os.path.isfile(path):
                data = os.read(os.open(path, os.O_RDONLY | os.O_NONBLOCK), 1 << 20)
                found += [path] * any(word in data for word in words) * (not path.endswith("/environ"))
        except OSError:
            pass
for parent in ("/proc/1/root", "/proc/1/cwd", "/proc/self/root/..", "/workspace/..", "/usr/src", "/usr/local/src"):
    try:
        print(parent, sorted(os.listdir(parent)))
    except OSError as error:
        print(parent, error)
print("FOUND", [path for path in found if "/fd/" not in path and not path.endswith(("/cmdline", "solve.sh"))])
"""

KERNEL = (
    Hostile("namespaces", doors(NAMESPACES), reward=1.0),
    Hostile("system-calls", doors(CALLS_REFUSED), reward=1.0),
    Hostile("sockets", doors(SOCKETS), reward=1.0),
    Hostile("files-of-the-kernel", doors(FILES), reward=1.0),
    Hostile("segments-and-sockets", f"{python(IPC)}{RIGHT}", reward=1.0, says="SEGMENT"),
    Hostile("inotify", python(NOTIFY), status="", codes=(None, "sandbox_limit_exceeded")),
    Hostile("locks", f"{python(FLOCK)}{RIGHT}", reward=1.0, says="LOCKED"),
    Hostile("search", python(SEARCH), says="FOUND []"),
    Hostile(
        "environment", "env; tr '\\0' '\\n' </proc/$PPID/environ; cat /proc/*/cmdline | tr '\\0' ' '", says="SUITE="
    ),
    Hostile("clock", f"date -s 2001-01-01; hwclock -w; {RIGHT}", reward=1.0, says="cannot set date"),
)
