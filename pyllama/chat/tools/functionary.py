"""Tool calls of the functionary models, by version.

    <function=get_time>{"city": "Oslo"}</function>              # 3.1

    >>>all                                                      # 3.2
    Let me look.>>>get_time
    {"city": "Oslo"}

In 3.2, 2 and 0 every part of a reply has a recipient (see `recipient`).
"""

from __future__ import annotations

from .call_format import CallFormat, NamedCall
from .recipient import RecipientFormat

FUNCTIONARY_31 = CallFormat(
    "functionary-3.1",
    lambda source: (
        "<function=" in source and "</function>" in source and "<parameter=" not in source
    ),
    NamedCall(">"),
    wrap=("<function=", "</function>"),
)
FUNCTIONARY_32 = RecipientFormat(
    "functionary-3.2",
    content="all\n",
    call=("", "\n"),
    between=(">>>",),
    detect=lambda source: ">>>all" in source and ">>>${recipient}" in source,
)
FUNCTIONARY_2 = RecipientFormat(
    "functionary-2",
    content="all\n<|content|>",
    call=("", "\n<|content|>"),
    between=("<|from|>", "assistant\n", "<|recipient|>"),
    separator="\n",
    detect=lambda source: "<|recipient|>" in source and "<|content|>" in source,
    trims=True,
)
FUNCTIONARY_1 = CallFormat(
    "functionary-1",
    lambda source: "<|START_OF_FUNCTION_CALL|>" in source,
    NamedCall(":\n"),
    wrap=("<|START_OF_FUNCTION_CALL|>", "<|END_OF_FUNCTION_CALL|>"),
)
FUNCTIONARY_0 = RecipientFormat(
    "functionary-0",
    content=":\n",
    call=(" to=functions.", ":\n"),
    between=("\nassistant",),
    id_is_name=True,
)
