"""What the conformance suite writes by PUT and POST, as events of one decider; its reads go to the product.

A message is the data of an event, so it is taken out of what the product answers. An empty stream has a first event.
"""

import json
from asyncio import Lock, to_thread
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from millrace.event_store import NewEvent
from millrace.event_store.platform import PlatformStore

JSON = "application/json"
HEADERS = ("etag", "cache-control", "x-content-type-options", "cross-origin-resource-policy")


class Shim:
    """Streams of the suite: their content types, by their paths."""

    def __init__(self, store: PlatformStore, reader: httpx.AsyncClient) -> None:
        self.store, self.reader = store, reader
        self.kinds = dict[str, str]()
        self.lock = Lock()
        for event in ("created", "message"):
            store.register_decider_event("suite", event, "")

    def app(self) -> Starlette:
        """Return the app that the suite asks."""
        methods = {"PUT": self.create, "POST": self.append, "GET": self.read}

        async def answer(request: Request) -> Response:
            return await methods[request.method if request.method in methods else "GET"](request, request.url.path)

        @asynccontextmanager
        async def reading(_: Starlette) -> AsyncIterator[None]:
            async with self.reader:
                yield

        return Starlette(routes=[Route("/{path:path}", answer, methods=[*methods])], lifespan=reading)

    async def create(self, request: Request, path: str) -> Response:
        """Begin a stream, once."""
        kind = request.headers.get("content-type", "application/octet-stream").partition(";")[0].strip().lower()
        created = path not in self.kinds
        if self.kinds.setdefault(path, kind) != kind:
            return Response(status_code=409)
        if created:
            await self.store_events(path, [NewEvent("created")])
            await self.store_messages(path, await request.body())
        head = await self.reader.head(ours(path))
        headers = {**kept(head), "content-type": kind, "location": str(request.url)}
        return Response(status_code=201 if created else 200, headers=headers)

    async def append(self, request: Request, path: str) -> Response:
        """Append messages."""
        body = await request.body()
        if path not in self.kinds:
            return Response(status_code=404)
        try:
            if not await self.store_messages(path, body):
                return Response(status_code=400)
        except ValueError:
            return Response(status_code=400)
        return Response(status_code=204, headers=kept(await self.reader.head(ours(path))))

    async def store_messages(self, path: str, body: bytes) -> int:
        """Append what a body has; return how many messages."""
        if not body:
            return 0
        if self.kinds[path] == JSON:
            value = json.loads(body)
            messages = value if isinstance(value, list) else [value]
        else:
            messages = [body.decode("latin-1")]
        if messages:
            await self.store_events(path, [NewEvent("message", {"value": each}) for each in messages])
        return len(messages)

    async def store_events(self, path: str, events: Iterable[NewEvent]) -> None:
        """Append events, with their positions."""
        async with self.lock:
            await to_thread(self.store.append, "suite", path, *events)
            await to_thread(self.store.sequence_events)
            await to_thread(self.store.announce_positions, [])

    async def read(self, request: Request, path: str) -> Response:
        """Answer as the product does, with the messages instead of the events."""
        sent = {name: value for name, value in request.headers.items() if name in {"last-event-id", "if-none-match"}}
        asked = self.reader.build_request(request.method, f"{ours(path)}?{request.url.query}", headers=sent)
        answer = await self.reader.send(asked, stream=True)
        headers = kept(answer)
        if answer.headers.get("content-type", "").startswith("text/event-stream"):
            headers["content-type"] = "text/event-stream"
            return StreamingResponse(self.events(path, answer), headers=headers)
        body = await answer.aread()
        if answer.status_code == 200:
            headers["content-type"] = self.kinds[path]
            body = self.messages(path, json.loads(body or "[]"))[0]
        return Response(body, answer.status_code, headers)

    def messages(self, path: str, events: list[dict[str, Any]]) -> tuple[bytes, int]:
        """Return the body that the suite expects, and how many messages it has."""
        found = [each["data"]["value"] for each in events if each["event"] == "message"]
        text = json.dumps(found).encode() if self.kinds[path] == JSON else "".join(found).encode("latin-1")
        return text, len(found)

    async def events(self, path: str, answer: httpx.Response) -> AsyncIterator[bytes]:
        """Yield the product's server-sent events with the messages."""
        lines = list[str]()
        async for line in answer.aiter_lines():
            if line:
                lines.append(line)
                continue
            if lines[0] == "event: data":
                data = "\n".join(each.removeprefix("data:") for each in lines[1:])
                text, number = self.messages(path, json.loads(data))
                lines = (
                    ["event: data", *(f"data:{each}" for each in text.decode(errors="replace").splitlines())]
                    if number
                    else []
                )
            if lines:
                yield ("\n".join(lines) + "\n\n").encode()
            lines = []


def ours(path: str) -> str:
    """Return the product's path of a stream."""
    return f"/streams/suite/{path}"


def kept(answer: httpx.Response) -> dict[str, str]:
    """Return the headers that the suite looks at."""
    return {name: value for name, value in answer.headers.items() if name.startswith("stream-") or name in HEADERS}
