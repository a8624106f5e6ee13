"""Tool calls of Hermes, Qwen 2.5 and 3, MiMo, Granite 4: JSON objects in ``<tool_call>`` tags.

    <tool_call>
    {"name": "get_time", "arguments": {"city": "Oslo"}}
    </tool_call>

Templates that write the arguments in tags of their own (Qwen3-Coder, GLM) are not of this format.
"""

from __future__ import annotations

from .call_format import CallFormat, JsonCall

_OTHERS = ("<function=", "<arg_key>", "<parameter=")


def _detects(source: str) -> bool:
    return (
        "<tool_call>" in source
        and ('"name"' in source or '\\"name\\"' in source)
        and not any(other in source for other in _OTHERS)
    )


HERMES = CallFormat("hermes", _detects, JsonCall(), wrap=("<tool_call>", "</tool_call>"))
