"""Checks the tools of a request, and which of them the model may or must call.

tools = parse_tools([{"type": "function", "function": {"name": "add", "parameters": {...}}}])
mode, callable_tools = parse_choice("auto", tools)
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ...errors import TemplateError
from .rules import ToolRules

Mode = Literal["none", "auto", "required"]
_MAX_TOOLS = 1024
_NAME = re.compile(r"[A-Za-z0-9_.:/-]{1,128}")
_MODES: dict[str, Mode] = {"none": "none", "auto": "auto", "required": "required"}


@dataclass(frozen=True)
class Tool:
    """A function that the model may call.

    Attributes:
        name: the function's name.
        parameters: JSON schema of its arguments, an object.
        definition: the whole definition in OpenAI's format, for the template.
        strict: calls match the schema in all parts; otherwise in those that a grammar can hold.
    """

    name: str
    parameters: Mapping[str, Any]
    definition: Mapping[str, Any]
    strict: bool = False

    def arguments_rule(self, rules: ToolRules, prefix: str) -> str:
        """Add the rules of the arguments to a grammar; returns the name of the first.

        Raises:
            SchemaError: the schema is invalid, or the tool is strict and a grammar cannot hold it.
        """
        what = f"the parameters of the tool {self.name!r}"
        relaxed = "" if self.strict else f"tools.{self.name}"
        return rules.schema(f"{prefix}-args", self.parameters, what, relaxed=relaxed)


@dataclass(frozen=True)
class ResponseSchema:
    """The JSON schema of a response format.

    Attributes:
        schema: the schema.
        strict: as of `Tool`.
    """

    schema: Mapping[str, Any] | bool
    strict: bool = True

    def rule(self, rules: ToolRules, name: str) -> str:
        """Add the rules of the content to a grammar; returns the name of the first.

        Raises:
            SchemaError: the schema is invalid, or it is strict and a grammar cannot hold it.
        """
        relaxed = "" if self.strict else "response_format"
        return rules.schema(name, self.schema, "response_format", relaxed=relaxed)


def parse_tools(tools: Any) -> tuple[Tool, ...]:
    """The tools of a request.

    Args:
        tools: definitions in OpenAI's format, or None.

    Raises:
        TemplateError: a definition is invalid; the message names it.
    """
    if tools is None:
        return ()
    if not isinstance(tools, Sequence) or isinstance(tools, str):
        raise TemplateError(f"tools is {_kind(tools)}, want a list of tool definitions")
    if len(tools) > _MAX_TOOLS:
        raise TemplateError(f"there are {len(tools)} tools; {_MAX_TOOLS} are allowed")
    found: dict[str, Tool] = {}
    for i, given in enumerate(tools):
        tool = _tool(f"tools[{i}]", given)
        if tool.name in found:
            raise TemplateError(f"tools[{i}] has the name {tool.name!r} of an earlier tool")
        found[tool.name] = tool
    return tuple(found.values())


def _tool(where: str, given: Any) -> Tool:
    if not isinstance(given, Mapping):
        raise TemplateError(f"{where} is {_kind(given)}, want a dictionary")
    if given.get("type", "function") != "function":
        raise TemplateError(
            f"{where}.type is {given['type']!r}; only tools of type 'function' are supported"
        )
    function = given.get("function")
    if not isinstance(function, Mapping):
        raise TemplateError(f"{where}.function is {_kind(function)}, want a dictionary with a name")
    name = function.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise TemplateError(
            f"{where}.function.name is {name!r}; want 1 to 128 letters, digits or any of _ - . : /"
        )
    description = function.get("description")
    if description is not None and not isinstance(description, str):
        raise TemplateError(f"{where}.function.description is {_kind(description)}, want text")
    parameters = function.get("parameters")
    if parameters is None or parameters == {}:
        parameters = {"type": "object", "properties": {}}
    if not isinstance(parameters, Mapping):
        raise TemplateError(
            f"{where}.function.parameters is {_kind(parameters)}, want a JSON schema"
        )
    if parameters.get("type", "object") != "object":
        raise TemplateError(
            f"{where}.function.parameters has the type {parameters['type']!r}; arguments are an "
            "object"
        )
    whole = {**function, "description": description or "", "parameters": parameters}
    strict = function.get("strict")
    if not (strict is None or isinstance(strict, bool)):
        raise TemplateError(f"{where}.function.strict is {_kind(strict)}, want true or false")
    return Tool(name, parameters, {"type": "function", "function": whole}, bool(strict))


def parse_choice(choice: Any, tools: Sequence[Tool]) -> tuple[Mode, tuple[Tool, ...]]:
    """Whether a tool may or must be called, and which ones.

    Args:
        choice: ``none``, ``auto``, ``required``, a function by OpenAI's dictionary, or None for
            ``auto``.

    Raises:
        TemplateError: an unknown choice, or a tool that is not defined.
    """
    if isinstance(choice, Mapping):
        function = choice.get("function")
        name = function.get("name") if isinstance(function, Mapping) else None
        named = tuple(tool for tool in tools if tool.name == name)
        if not named:
            names = ", ".join(tool.name for tool in tools) or "none are defined"
            raise TemplateError(f"tool_choice names the tool {name!r}; tools: {names}")
        return "required", named
    if choice is None:
        choice = "auto"
    if not isinstance(choice, str) or choice not in _MODES:
        raise TemplateError(
            f"tool_choice is {choice!r}; want 'none', 'auto', 'required' or "
            "{'type': 'function', 'function': {'name': ...}}"
        )
    if not tools:
        if choice == "required":
            raise TemplateError("tool_choice is 'required', but there are no tools")
        return "none", ()
    return _MODES[choice], tuple(tools)


def _kind(value: Any) -> str:
    return "missing" if value is None else f"of type {type(value).__name__}"
