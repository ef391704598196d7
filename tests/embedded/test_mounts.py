"""What a sandbox shows of the host, what it hides, and which binds are refused."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_core_rollouts.embedded.sandbox import Isolation, MountRefused, SandboxUnavailable
from pytest_core_rollouts.embedded.sandbox.mounts import Hidden, Root, find_masks, real_names, show_programs
from tests.support.sandboxes import new_sandbox, run, text
from tests.support.tables import rows

AS_ROOT = os.geteuid() == 0
REPOSITORY = Path(__file__).parents[2]


def masks(binds: list[tuple[str, str]], hidden: list[Path]) -> dict[str, str]:
    return find_masks(binds, real_names(hidden))


def test_masks_cover_where_a_hidden_path_would_show(tmp_path: Path) -> None:
    shown, link = tmp_path / "shown", tmp_path / "link"
    (shown / "a" / "b").mkdir(parents=True)
    link.symlink_to(shown / "a")
    binds = [(str(shown), "/opt/x")]
    assert masks(binds, [tmp_path / "elsewhere", tmp_path]) == {}
    assert masks(binds, [shown / "a" / "b"]) == {"/opt/x/a/b": str(shown / "a" / "b")}
    assert masks(binds, [link / "b"]) == {"/opt/x/a/b": str(shown / "a" / "b")}
    assert masks(binds, [shown / "a" / "b", link]) == {"/opt/x/a": str(shown / "a")}
    through_link = [(str(link), "/opt/y")]
    assert masks(through_link, [shown / "a" / "b"]) == {"/opt/y/b": str(shown / "a" / "b")}


@rows("folder", ["/usr/bin", "/usr/share", "/usr/local/lib"])
def test_hiding_a_folder_of_programs_is_an_error(folder: str) -> None:
    with pytest.raises(SandboxUnavailable, match=f"{folder}: it must be hidden .*; move the project"):
        Isolation.probe(hidden=[Path(folder)])


def test_hidden_path_that_is_created_later_hides_the_folder_above_it(tmp_path: Path) -> None:
    (tmp_path / "shown" / "project").mkdir(parents=True)
    missing = tmp_path / "shown" / "project" / "runs" / "a.jsonl"
    found = Hidden.find([missing, tmp_path / "elsewhere" / "x"], [], [str(tmp_path / "shown")])
    ours = {place for place in found.places if place.startswith(str(tmp_path))}
    assert ours == {str(tmp_path / "shown" / "project")}


def test_a_prefix_in_a_hidden_folder_shows_its_program_folders_only(tmp_path: Path) -> None:
    prefix = tmp_path / "home" / "python"
    for name in ("bin", "lib/python3.12", "work/tasks"):
        (prefix / name).mkdir(parents=True)
    (prefix / "lib64").symlink_to("lib")
    hidden = Hidden.find([tmp_path / "home", prefix / "lib" / "python3.12"], [], [str(prefix)])
    options = show_programs([Root(str(prefix), "/opt/python")], [], hidden, (tmp_path / "file", tmp_path / "empty"))
    assert options == (
        *("--ro-bind", f"{prefix}/bin", "/opt/python/bin"),
        *("--ro-bind", f"{prefix}/lib", "/opt/python/lib"),
        *("--symlink", "lib", "/opt/python/lib64"),
        *("--ro-bind", str(tmp_path / "empty"), "/opt/python/lib/python3.12"),
    )


def test_a_hidden_folder_around_a_prefix_is_emptied_within_one_that_is_shown(tmp_path: Path) -> None:
    for name in ("usr/bin", "usr/pythons/3.12/bin", "usr/pythons/3.12/tasks", "usr/pythons/other", "usr/tasks"):
        (tmp_path / name).mkdir(parents=True)
    usr = f"{tmp_path}/usr"
    prefix = f"{usr}/pythons/3.12"
    hidden = Hidden.find([Path(usr, "pythons"), Path(usr, "tasks")], [], [usr])
    roots = [Root(usr, "/usr"), Root(prefix, "/usr/pythons/3.12")]
    assert show_programs(roots, [], hidden, (tmp_path / "file", tmp_path / "empty")) == (
        *("--ro-bind", usr, "/usr", "--tmpfs", "/usr/pythons"),
        *("--ro-bind", f"{prefix}/bin", "/usr/pythons/3.12/bin"),
        *("--ro-bind", f"{tmp_path}/empty", "/usr/tasks", "--remount-ro", "/usr/pythons"),
    )


BIND_MOUNTED = """
import sys
from pathlib import Path
from pytest_core_rollouts.embedded.sandbox.mounts import find_masks, real_names
shown, repository = map(Path, sys.argv[1:])
print(*(find_masks([(str(shown), "/usr")], real_names([path])) for path in (repository / "tasks", repository)))
"""


@pytest.mark.skipif(not AS_ROOT, reason="only root can mount")
def test_bind_mounts_of_a_hidden_folder_are_masked_too(tmp_path: Path) -> None:
    shown, repository = tmp_path / "shown", tmp_path / "a repository"
    (shown / "src").mkdir(parents=True)
    (repository / "tasks").mkdir(parents=True)
    mount = 'mount --bind "$1" "$2" && shift 2 && exec "$@"'
    python = [sys.executable, "-c", BIND_MOUNTED, str(shown), str(repository)]
    argv = ["unshare", "--mount", "sh", "-c", mount, "sh", str(repository), str(shown / "src"), *python]
    done = subprocess.run(argv, capture_output=True, text=True)
    if "unshare" in done.stderr:
        pytest.skip(f"no mount namespace can be made: {done.stderr}")
    assert done.stdout == f"{{'/usr/src/tasks': '{shown}/src/tasks'}} {{'/usr/src': '{shown}/src'}}\n", done.stderr


# ---- in real sandboxes


@pytest.fixture
def canaries() -> Iterator[list[Path]]:
    """Folders of a project next to the system's programs, with a file each."""
    if not AS_ROOT:
        pytest.skip("only root can write below /usr")
    name = f"project-{uuid.uuid4().hex}"
    made = [Path(place, name) for place in ("/usr", "/usr/local", "/usr/src", "/usr/local/src")]
    try:
        for folder in made:
            folder.mkdir(parents=True)
            (folder / "expected.json").write_text("canary")
        yield made
    finally:
        for folder in made:
            shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.parametrize(
    ("hidden", "visible"),
    [
        (["/"], []),
        (["/usr"], []),
        (["/usr/local"], ["/usr"]),
        ([], ["/usr", "/usr/local"]),  # sources are hidden always
    ],
)
def test_hidden_folder_of_programs_shows_only_the_programs(
    hidden: list[str], visible: list[str], canaries: list[Path]
) -> None:
    isolation = Isolation.probe(hidden=list(map(Path, hidden)))
    later = Path("/usr/local", f"later-{uuid.uuid4().hex}")
    try:
        later.mkdir()
        (later / "expected.json").write_text("canary")
        with new_sandbox(isolation) as sandbox:
            files = [folder / "expected.json" for folder in (*canaries, later)]
            done = run(
                sandbox, 'for file; do if cat "$file" >&/dev/null; then echo "$file"; fi; done', *map(str, files)
            )
            expected = [file for file in files if str(file.parents[1]) in visible]
            assert text(done).splitlines() == list(map(str, expected))
            tools = run(sandbox, "python3 -c 'import json, ssl, sqlite3' && perl -e 1 && ls /usr/local/bin >/dev/null")
            assert tools.returncode == 0, text(tools)
            assert "Read-only" in text(run(sandbox, "touch /usr/x /usr/local/x"))
    finally:
        shutil.rmtree(later)
        isolation.close()


def test_a_bind_shows_a_named_part_of_the_project_and_no_private_place(tmp_path: Path) -> None:
    project = tmp_path / "project"
    for name in ("agent", "agent/site-packages", "tasks/sum", "runs", "mixed/runs"):
        (project / name).mkdir(parents=True)
        (project / name / "file").write_text(name)
    (project / "link").symlink_to(project / "tasks" / "sum")
    private = [project / "tasks", project / "runs", project / "mixed" / "runs"]
    isolation = Isolation.probe(hidden=[project], private=private)
    try:
        with new_sandbox(isolation) as sandbox:

            def cat(name: str, copied: bool = False) -> str:
                source = isolation.reachable(project / name) if copied else project / name
                return text(run(sandbox, "cat $(find /opt/own -type f | sort)", binds=[(source, "/opt/own")]))

            assert cat("agent", copied=True) == "agentagent/site-packages"
            for name in ("tasks", "tasks/sum", "runs", "link"):
                for copied in (False, True):
                    with pytest.raises(MountRefused, match=f"{name}: a sandbox can't show it, because it .*; "):
                        cat(name, copied)
            for name in (".", "mixed", ".."):
                with pytest.raises(MountRefused, match=r"because it holds .*, which must stay hidden; name a"):
                    cat(name)
    finally:
        isolation.close()


def test_a_bind_can_show_a_part_of_a_project_among_the_systems_programs() -> None:
    """Docker images put projects into /usr/src/app."""
    sources = Path("/usr/local/src")
    if not os.access(sources, os.W_OK):
        pytest.skip("needs to write to /usr/local/src: run the tests as root")
    project = Path(tempfile.mkdtemp(prefix="rollouts-", dir=sources))
    try:
        for name in ("agent", "tasks"):
            (project / name).mkdir()
            (project / name / "file").write_text(name)
        isolation = Isolation.probe(hidden=[project], private=[project / "tasks"])
        with new_sandbox(isolation) as sandbox:
            source = isolation.reachable(project / "agent")
            command = f"find {sources} -type f; touch {sources}/x {project}/x {project}/agent/x"
            done = run(sandbox, command, binds=[(source, f"{project}/agent")])
            assert text(done).splitlines()[0] == f"{project}/agent/file"
            assert text(done).count("Read-only file system") == 3
        isolation.close()
    finally:
        shutil.rmtree(project)


def test_keys_at_home_are_not_shown_as_part_of_a_bind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".ssh").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    hidden = Hidden.find([], [], [])
    for folder in (tmp_path, tmp_path / ".ssh"):
        with pytest.raises(MountRefused, match=f"{tmp_path}/.ssh"):
            hidden.check([(folder, "/opt/own")], tmp_path / "ours")
    assert hidden.check([(tmp_path / "agent", "/opt/own")], tmp_path / "ours") == [(f"{tmp_path}/agent", "/opt/own")]


SYSTEM_PYTHON = """
import asyncio
from pathlib import Path
from pytest_core_rollouts.embedded.sandbox import Isolation, Sandbox
isolation = Isolation.probe()
sandbox = Sandbox(isolation, isolation.sessions / "one")
done = asyncio.run(sandbox.run(["sh", "-c", "ls /usr/lib/python3/dist-packages; python3 -c 'import json'"], env={}))
print(done.returncode, done.output)
sandbox.destroy()
isolation.close()
"""


def test_packages_of_the_running_system_python_are_hidden(tmp_path: Path) -> None:
    if not any(Path("/usr/lib/python3/dist-packages").glob("*")) or not os.access("/usr/bin/python3", os.X_OK):
        pytest.skip("this machine has no system Python with packages")
    package = Path("pytest_core_rollouts", "embedded")
    shutil.copytree(REPOSITORY / package / "sandbox", tmp_path / package / "sandbox")
    shutil.copy(REPOSITORY / package / "hidden.py", tmp_path / package)
    isolation = Isolation.probe()
    try:
        env = {"PYTHONPATH": str(tmp_path), "PATH": f"{isolation.bubblewrap.file.parent}:/usr/bin:/bin"}
        python = ["/usr/bin/python3", "-c", SYSTEM_PYTHON]
        done = subprocess.run(python, env=env, capture_output=True, text=True, timeout=60)
    finally:
        isolation.close()
    assert (done.stdout, done.stderr) == ("0 b''\n", "")


UMASK = """
import os, sys
os.umask(0o077)
from pytest_core_rollouts.embedded.launch import EmbeddedCore
from pytest_core_rollouts.grading.sandbox import run_in_sandbox
core = EmbeddedCore.reserve()
core.start()
core.stop()
script = "cat /etc/passwd >/dev/null && cat /etc/hosts && ls -A /usr/src && python3 deep/a.py"
done = run_in_sandbox(["sh", "-c", script], {"deep/a.py": b"print('ran')"})
print(done.returncode, done.output.decode().splitlines()[-1])
"""


def test_sandboxes_start_with_any_umask() -> None:
    done = subprocess.run([sys.executable, "-c", UMASK], capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.stderr) == ("0 ran\n", "")
