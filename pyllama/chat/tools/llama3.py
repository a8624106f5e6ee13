"""Tool calls of Llama 3.1 to 3.3: one JSON object is the whole reply.

    {"name": "get_time", "parameters": {"city": "Oslo"}}

``<|python_tag|>`` may precede it. An object that names no known function is content.
"""

from __future__ import annotations

from .call_format import CallFormat, JsonCall


def _detects(source: str) -> bool:
    return "<|start_header_id|>" in source and '{"name": function name, "parameters"' in source


LLAMA3 = CallFormat(
    "llama3",
    _detects,
    JsonCall(arguments="parameters", has_type=True),
    wrap=("<|python_tag|>", ""),
    bare=True,
)
