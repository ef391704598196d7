"""User input on the wire: messages of a creation, and the batches that POST events takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .checked import Checked, unknown_value, wrong_type
from .errors import APIError, invalid, unsupported

INPUT_LIMIT = 512 * 1024  # bytes of text in one request's messages
BATCH_LIMIT = 64  # events in a batch; messages in an event

MESSAGE, CANCEL, TOOL_RESULT = (f"agent.session.input.{name}" for name in ("message", "cancel", "tool_result"))


@dataclass(frozen=True)
class Message:
    """One user message: its text parts in order."""

    parts: tuple[str, ...]

    @property
    def text(self) -> str:
        return "\n\n".join(self.parts)


@dataclass(frozen=True)
class Batch:
    """What one POST events asks for. Messages never come with anything else; neither at all: an empty batch."""

    messages: tuple[Message, ...] = ()
    cancel: bool = False


def read_initial(value: Any) -> tuple[Message, ...]:
    """`input` of a creation: a text, an array of user messages, or null."""
    if value is None:
        return ()
    if isinstance(value, str):
        if not value:
            raise _empty("input")
        messages: tuple[Message, ...] = (Message((value,)),)
    else:
        messages = _read_messages(value, "input")
    return _within_limit(messages)


def read_batch(body: dict[str, Any]) -> Batch:
    """The body of POST events."""
    checked = Checked(body, "", ("events",))
    events = checked.required("events")
    if not isinstance(events, list):
        raise wrong_type("events", "an array", events)
    if len(events) > BATCH_LIMIT:
        raise invalid(f"A batch holds at most {BATCH_LIMIT} events, but got {len(events)}.", "events")
    messages: list[Message] = []
    cancel = False
    for index, value in enumerate(events):
        path = f"events[{index}]"
        if not isinstance(value, dict):
            raise wrong_type(path, "an object", value)
        type_ = value.get("type")
        if type_ == MESSAGE:
            event = Checked.of(value, path, ("type", "input"))
            messages.extend(_read_messages(event.required("input"), event.at("input")))
        elif type_ == CANCEL:
            Checked.of(value, path, ("type",))
            cancel = True
        elif type_ == TOOL_RESULT:
            _refuse_tool_result(value, path)
        else:
            raise _no_such_event(value, path)
    if messages and cancel:
        raise invalid("A batch that carries messages may contain only messages.", "events")
    return Batch(_within_limit(tuple(messages)), cancel)


def _read_messages(value: Any, path: str) -> tuple[Message, ...]:
    if not isinstance(value, list):
        raise wrong_type(path, "an array", value)
    if not value:
        raise _empty(path)
    if len(value) > BATCH_LIMIT:
        raise invalid(f"'{path}' holds at most {BATCH_LIMIT} messages, but got {len(value)}.", path)
    return tuple(_read_message(message, f"{path}[{index}]") for index, message in enumerate(value))


def _read_message(value: Any, path: str) -> Message:
    message = Checked.of(value, path, ("role", "content", "type"))
    message.choice("type", ("message",))
    message.required_text("role")
    message.choice("role", ("user",))
    content = message.required("content")
    if not isinstance(content, list):
        raise wrong_type(message.at("content"), "an array", content)
    parts = tuple(_read_part(part, f"{message.at('content')}[{index}]") for index, part in enumerate(content))
    if not any(parts):
        raise _empty(message.at("content"))
    return Message(parts)


def _read_part(value: Any, path: str) -> str:
    part = Checked.of(value, path, ("type", "text", "image_url"))
    part.required_text("type")
    if part.choice("type", ("input_text", "input_image")) == "input_image":
        raise unsupported("The embedded Core takes text alone: images are not supported.", path)
    return Checked.of(value, path, ("type", "text")).required_text("text")


def _refuse_tool_result(value: dict[str, Any], path: str) -> None:
    """No harness here calls functions of the client, so that no result can ever be due."""
    event = Checked.of(value, path, ("type", "call_id", "turn_id", "success", "error", "output"))
    for member in ("call_id", "turn_id"):
        event.required_text(member)
    event.required("success")
    event.flag("success")
    raise invalid("Unknown pending tool call.")


def _no_such_event(value: dict[str, Any], path: str) -> Exception:
    if "type" not in value:
        return invalid(f"Missing required parameter: '{path}.type'.", f"{path}.type")
    if not isinstance(value["type"], str):
        return wrong_type(f"{path}.type", "a string", value["type"])
    return unknown_value(f"{path}.type", value["type"], (MESSAGE, CANCEL, TOOL_RESULT))


def _within_limit(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    size = sum(len(part.encode()) for message in messages for part in message.parts)
    if size > INPUT_LIMIT:
        raise invalid(f"The input holds {size} bytes of text; at most {INPUT_LIMIT} are accepted.", "input")
    return messages


def _empty(path: str) -> APIError:
    return APIError(400, f"'{path}' must hold a non-empty text.", code="invalid_request", param=path)
