"""Which models have the streams of conversations: ``X-Conversation-Id`` and ``/v1/stream``.

    one = conversations.begin(id, instance)        # a request with that header
    conversations.get(id).instance                 # where requests for its stream go
    conversations.drop(id)                         # its stream is stopped

A stream is kept by the process of its model. A request whose model is still being loaded goes on
without its client, too. At most `MAX_CONVERSATIONS` are known, the last ones.

Source: llama.cpp, ``server_models::conv_models``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from .pool import Instance

MAX_CONVERSATIONS = 4096


@dataclass(eq=False)
class RoutedConversation:
    """The last stream of a conversation.

    Attributes:
        instance: the model that has it.
        work: the request that begins it, until its response begins.
    """

    id: str
    instance: Instance
    work: asyncio.Future[Any] | None = None


class Conversations:
    """The conversations of a router by their id."""

    def __init__(self) -> None:
        self._found: dict[str, RoutedConversation] = {}

    def begin(self, id: str, instance: Instance) -> RoutedConversation:
        """A stream begins; it takes the place of one with the same id."""
        self._found.pop(id, None)
        if len(self._found) >= MAX_CONVERSATIONS:
            del self._found[next(iter(self._found))]
        one = self._found[id] = RoutedConversation(id, instance)
        return one

    def get(self, id: str) -> RoutedConversation | None:
        """The conversation with an id."""
        return self._found.get(id)

    def drop(self, id: str) -> RoutedConversation | None:
        """Forget a conversation; a request that still waits for its model is cancelled."""
        one = self._found.pop(id, None)
        if one is not None and one.work is not None:
            one.work.cancel()
        return one

    def owners(self, ids: Iterable[str]) -> list[Instance]:
        """The models that may have streams of some ids, or of ``ID::MODEL`` for one of them."""
        unresolved = {*ids}
        found = (
            one.instance
            for one in self._found.values()
            if one.id in unresolved or one.id.partition("::")[0] in unresolved
        )
        return [*dict.fromkeys(found)]
