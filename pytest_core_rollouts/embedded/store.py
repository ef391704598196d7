"""All Sessions of this Core: create them (once for each idempotency key), list and delete them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from .errors import conflict, not_found
from .requests import CreateRequest
from .sessions import Runtime, Session

logger = logging.getLogger(__name__)


class Store:
    """Sessions by id, oldest first."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._sessions: dict[str, Session] = {}
        self._created: dict[str, tuple[str, str]] = {}  # idempotency key -> (digest of the request, Session's id)
        self._deleted: set[str] = set()
        self._cleanups: set[asyncio.Task[None]] = set()

    def create(
        self, request: CreateRequest, key: str | None, on_new: Callable[[Session], None] = lambda _: None
    ) -> Session:
        """Return a new Session, prepared in the background, or the one that this `key` and request created before.

        `on_new` is called with a new Session before its first event. Raises APIError (409) if `key` was used with
        another request, or its Session was deleted.
        """
        if key is not None and key in self._created:
            digest, session_id = self._created[key]
            if digest != request.digest:
                raise conflict("This idempotency key was used with different input.", code="idempotency_conflict")
            if session_id in self._deleted:
                raise conflict("The Session of this idempotency key was deleted.", code="idempotency_conflict")
            return self._sessions[session_id]
        session = Session(request, self._runtime)
        self._sessions[session.id] = session
        if key is not None:
            self._created[key] = (request.digest, session.id)
        on_new(session)
        session.start(request.environment)
        return session

    def get(self, session_id: str) -> Session:
        """Return the Session with this id. Raises APIError (404)."""
        try:
            return self._sessions[session_id]
        except KeyError:
            raise not_found() from None

    def all(self) -> list[Session]:
        """Return the Sessions that are not deleted, oldest first."""
        return list(self._sessions.values())

    def delete(self, session_id: str) -> None:
        """Delete a Session; its sandbox and Artifacts are removed in the background. A second call does nothing.

        Raises APIError: 404, or 409 while the Session is busy.
        """
        if session_id in self._deleted:
            return
        session = self.get(session_id)
        session.check_deletable()
        del self._sessions[session_id]
        self._deleted.add(session_id)
        cleanup = asyncio.create_task(session.destroy())
        self._cleanups.add(cleanup)
        cleanup.add_done_callback(self._cleanups.discard)

    async def close(self) -> None:
        """Kill all sandboxes, end every stream, and wait until everything is removed."""
        for session in self._sessions.values():
            session.kill()
        endings = [*(session.destroy() for session in self._sessions.values()), *self._cleanups]
        for failure in await asyncio.gather(*endings, return_exceptions=True):
            if failure is not None:
                logger.error("a Session was not removed: %s", failure)
