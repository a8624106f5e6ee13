"""The module ``llama_cpp.llama_grammar``: grammars."""

from __future__ import annotations

from collections.abc import Sequence

from ...errors import NotSupported
from ...grammar.schema.json_schema import schema_to_gbnf
from ...llama.grammar import LlamaGrammar

__all__ = ["JSON_GBNF", "LLAMA_GRAMMAR_DEFAULT_ROOT", "LlamaGrammar", "json_schema_to_gbnf"]

LLAMA_GRAMMAR_DEFAULT_ROOT = "root"
JSON_GBNF = schema_to_gbnf({"type": "object"})


def json_schema_to_gbnf(schema: str, prop_order: Sequence[str] | None = None) -> str:
    """The GBNF text of a JSON schema.

    Args:
        schema: JSON text.
        prop_order: must be empty: properties come in the order of the schema.

    Raises:
        SchemaError: the schema is invalid, or a grammar cannot express it.
        NotSupported: an order of the properties.
    """
    if prop_order:
        raise NotSupported("json_schema_to_gbnf: prop_order is not supported; order the schema")
    return schema_to_gbnf(schema)
