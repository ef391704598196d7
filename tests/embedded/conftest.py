"""One embedded Core and a client that speaks real HTTP to it, for the tests of its wire; sandboxes by themselves."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from pytest_core_rollouts.embedded.launch import EmbeddedCore, EmbeddedCoreError
from pytest_core_rollouts.embedded.sandbox import Isolation, Sandbox
from tests.support.sandboxes import new_sandbox
from tests.support.wire import Wire, session_ids


@pytest.fixture(scope="session")
def core() -> Iterator[EmbeddedCore]:
    core = EmbeddedCore.reserve()
    try:
        core.start()
    except EmbeddedCoreError as error:
        pytest.fail(f"these tests need the embedded Core: {error}", pytrace=False)
    yield core
    errors = core.errors()
    core.stop()
    assert not errors, errors


@pytest.fixture(scope="session")
def core_wire(core: EmbeddedCore) -> Iterator[Wire]:
    with httpx.Client(timeout=30, trust_env=False) as client:
        yield Wire(client, core.base_url, core.api_key)


@pytest.fixture
def wire(core_wire: Wire) -> Iterator[Wire]:
    """The shared Core's client; every test must delete the Sessions that it creates, as others list and count them."""
    before = session_ids(core_wire)
    yield core_wire
    left = session_ids(core_wire) - before
    for session_id in left:
        core_wire.end(session_id)
    assert not left, f"the test did not delete its Sessions: {left}"


@pytest.fixture(scope="session")
def agents_core() -> Iterator[EmbeddedCore]:
    """A Core whose agents try nothing again, and for which a model is silent after two seconds."""
    core = EmbeddedCore.reserve()
    core.start(model_retries=0, model_idle_s=2)
    yield core
    errors = core.errors()
    core.stop()
    assert not errors, errors


@pytest.fixture
def agents_wire(agents_core: EmbeddedCore) -> Iterator[Wire]:
    with httpx.Client(timeout=30, trust_env=False) as client:
        wire = Wire(client, agents_core.base_url, agents_core.api_key)
        yield wire
        for session in wire.ok("GET", "/sessions?limit=100")["data"]:
            wire.end(session["id"])


@pytest.fixture(scope="module")
def isolation() -> Iterator[Isolation]:
    isolation = Isolation.probe()
    yield isolation
    isolation.close()
    assert not isolation.folder.exists()


@pytest.fixture
def sandbox(isolation: Isolation) -> Iterator[Sandbox]:
    with new_sandbox(isolation) as sandbox:
        yield sandbox
