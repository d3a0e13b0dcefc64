"""Sync and async OpenAI SDK clients behind one sync interface, so that each test is written once.

The async client runs on an event loop in its own thread; the wrapper calls the real `AsyncOpenAI` there and waits.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, TypeAlias

from anyio.from_thread import BlockingPortal, start_blocking_portal
from openai import AsyncOpenAI, OpenAI

ClientKind: TypeAlias = Literal["sync", "async"]
CLIENT_KINDS: tuple[ClientKind, ...] = ("sync", "async")


@contextmanager
def sdk_client(url: str, kind: ClientKind, key: str = "none") -> Iterator[Any]:
    """A client of either kind. Untyped: the SDK's unions of events and items would need a cast at every step."""
    options: dict[str, Any] = {"base_url": f"{url}/v1", "api_key": key, "max_retries": 0, "timeout": 30}
    if kind == "sync":
        with OpenAI(**options) as client:
            yield client
        return
    with start_blocking_portal() as portal, SyncWrapper(portal, AsyncOpenAI(**options)) as client:
        yield client


class SyncWrapper:
    """Sync wrapper of an object of the async SDK: calls, context managers and iteration block."""

    def __init__(self, portal: BlockingPortal, inner: Any) -> None:
        self._portal = portal
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return self._wrap(getattr(self._inner, name))

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self._wrap(self._portal.call(_call, self._inner, args, options))

    def __iter__(self) -> Iterator[Any]:
        iterator = aiter(self._inner)
        done = object()
        while (one := self._portal.call(_next, iterator, done)) is not done:
            yield one

    def __enter__(self) -> Any:
        return self._wrap(self._portal.call(self._inner.__aenter__))

    def __exit__(self, *raised: object) -> None:
        self._portal.call(self._inner.__aexit__, *raised)

    def _wrap(self, value: Any) -> Any:
        """Wrap asynchronous objects; plain data is returned unchanged."""
        resource = type(value).__module__.startswith("openai.resources")
        return SyncWrapper(self._portal, value) if resource or callable(value) or _is_asynchronous(value) else value


def _is_asynchronous(value: Any) -> bool:
    return any(hasattr(type(value), name) for name in ("__aenter__", "__aiter__"))


async def _call(function: Any, args: Any, options: Any) -> Any:
    value = function(*args, **options)
    return await value if inspect.isawaitable(value) else value


async def _next(iterator: Any, default: object) -> Any:
    return await anext(iterator, default)
