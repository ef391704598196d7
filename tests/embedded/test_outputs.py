"""Capturing /workspace/outputs: the API's Artifact rules, against an agent that plays tricks."""

from __future__ import annotations

import itertools
import os
import re
import socket
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_core_rollouts.embedded.sandbox import OutputsRejected
from pytest_core_rollouts.embedded.sandbox.files import MAX_DEPTH, MAX_ENTRIES, collect_outputs

MIB = 1 << 20


@pytest.fixture
def outputs(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace" / "outputs"
    folder.mkdir(parents=True)
    return folder


def collect(outputs: Path) -> dict[str, bytes]:
    files = collect_outputs(outputs.parent, outputs.parents[1] / f"into-{uuid.uuid4().hex}")
    assert all(file.size == file.file.stat().st_size for file in files)
    return {file.path.removeprefix("/workspace/outputs/"): file.file.read_bytes() for file in files}


def rejection(outputs: Path) -> str:
    with pytest.raises(OutputsRejected) as caught:
        collect(outputs)
    return str(caught.value)


def test_regular_files_are_captured_with_their_paths(outputs: Path) -> None:
    (outputs / "sub" / "empty").mkdir(parents=True)
    (outputs / "answer.json").write_bytes(b"{}")
    (outputs / "sub" / "é\n.txt").write_bytes(b"\0\xff")
    (outputs / "nothing").touch()
    (outputs.parent / "elsewhere.txt").write_text("not an output")
    assert collect(outputs) == {"answer.json": b"{}", "nothing": b"", "sub/é\n.txt": b"\0\xff"}


def test_missing_outputs_are_accepted(outputs: Path) -> None:
    assert collect(outputs) == {}
    outputs.rmdir()
    assert collect(outputs) == {}


def test_symbolic_links_are_skipped(outputs: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    (outputs / "file").symlink_to(tmp_path / "secret")
    (outputs / "folder").symlink_to(tmp_path)
    (outputs / "nowhere").symlink_to("nowhere")
    (outputs / "real").write_text("real")
    assert collect(outputs) == {"real": b"real"}


def make_file(path: Path) -> None:
    path.write_text("x")


def make_link(path: Path) -> None:
    path.symlink_to("/")


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        old = Path.cwd()
        os.chdir(path.parent)  # a socket's path is short
        server.bind(path.name)
        os.chdir(old)


@pytest.mark.parametrize(
    ("make", "kind"), [(make_file, "a file"), (make_link, "a symbolic link"), (os.mkfifo, "a FIFO")]
)
def test_outputs_must_be_a_directory(outputs: Path, make: Callable[[Path], None], kind: str) -> None:
    outputs.rmdir()
    make(outputs)
    assert rejection(outputs) == f"/workspace/outputs is {kind}, not a directory"


@pytest.mark.parametrize(("make", "kind"), [(os.mkfifo, "a FIFO"), (make_socket, "a socket")])
def test_special_files_are_rejected_at_once(outputs: Path, make: Callable[[Path], None], kind: str) -> None:
    (outputs / "sub").mkdir()
    make(outputs / "sub" / "odd")
    assert rejection(outputs).startswith(f"'/workspace/outputs/sub/odd' is {kind}:")


def test_names_that_are_not_utf8_are_rejected(outputs: Path) -> None:
    Path(os.fsdecode(os.fsencode(outputs) + b"/a\xffb")).touch()
    assert rejection(outputs) == r"'/workspace/outputs/a\\udcffb': the name is not UTF-8"


def test_entries_are_limited(outputs: Path) -> None:
    (outputs / "file").touch()
    link = outputs / "link"
    link.symlink_to("file")
    for number in range(MAX_ENTRIES - 2):
        os.link(link, outputs / str(number), follow_symlinks=False)
    assert collect(outputs) == {"file": b""}
    (outputs / "folder").mkdir()
    assert rejection(outputs) == f"/workspace/outputs holds more than {MAX_ENTRIES} entries"


def test_depth_is_limited(outputs: Path) -> None:
    folder = outputs.joinpath(*["d"] * (MAX_DEPTH - 1))
    folder.mkdir(parents=True)
    (folder / "file").touch()
    assert len(collect(outputs)) == 1
    (folder / "d").mkdir()
    (folder / "d" / "file").touch()
    assert f"nested deeper than {MAX_DEPTH} levels" in rejection(outputs)


def test_sizes_are_limited(outputs: Path) -> None:
    def grow(name: str, size: int) -> None:
        with (outputs / name).open("wb") as file:
            file.truncate(size)

    grow("a", 200 * MIB + 1)
    assert rejection(outputs) == f"'/workspace/outputs/a' has {200 * MIB + 1} bytes; at most {200 * MIB} are kept"
    for name in "abc":
        grow(name, 167 * MIB)
    bounds = rf"/workspace/outputs has {501 * MIB} bytes up to '/workspace/outputs/[abc]'; at most {500 * MIB} are kept"
    assert re.fullmatch(bounds, rejection(outputs))


def test_unreadable_outputs_are_captured(outputs: Path) -> None:
    (outputs / "sub").mkdir()
    (outputs / "sub" / "file").write_text("here")
    (outputs / "sub" / "file").chmod(0)
    (outputs / "sub").chmod(0)
    assert collect(outputs) == {"sub/file": b"here"}


def test_file_that_changes_during_the_copy_is_rejected(outputs: Path) -> None:
    stop = threading.Event()

    def append() -> None:
        with (outputs / "log").open("ab", buffering=0) as log:
            while not stop.is_set():
                log.write(b"x" * 1000)

    (outputs / "log").write_bytes(b"x" * 30 * MIB)
    writer = threading.Thread(target=append)
    writer.start()
    try:
        assert rejection(outputs) == "'/workspace/outputs/log' changed while it was copied"
    finally:
        stop.set()
        writer.join()


def test_swapping_files_for_links_never_leads_out(outputs: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "file").write_text("secret")
    stop = threading.Event()
    seen: set[str] = set()
    rejections: set[str] = set()

    def swap() -> None:
        while not stop.is_set():
            (outputs / "sub").mkdir()
            (outputs / "sub" / "file").write_text("mine")
            (outputs / "sub").rename(outputs.parent / "away")
            (outputs / "sub").symlink_to(secret)
            (outputs / "sub").unlink()
            (outputs.parent / "away" / "file").unlink()
            (outputs.parent / "away").rmdir()

    swapper = threading.Thread(target=swap)
    swapper.start()
    try:
        deadline = time.monotonic() + 30
        for number in itertools.count():
            if number >= 400 and ("mine" in seen or time.monotonic() > deadline):
                break  # on a busy machine one of the two threads may see little of the other
            try:
                seen.update(file.file.read_text() for file in collect_outputs(outputs.parent, tmp_path / str(number)))
            except OutputsRejected as error:
                rejections.add(str(error).partition("' ")[2].partition(" (")[0])
    finally:
        stop.set()
        swapper.join()
    assert "mine" in seen
    assert seen <= {"mine", ""}  # made, and not yet written
    assert rejections <= {
        "changed while it was copied",
        "can't be opened: No such file or directory",
        "can't be opened: Not a directory",
    }
