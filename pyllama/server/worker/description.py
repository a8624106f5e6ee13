"""What ``/props`` and ``/models`` tell of a model, kept for the time in which it sleeps.

description = describe(served)                 # renders templates: not in the event loop
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Any

from ...errors import TemplateError
from ..request.request_options import default_options
from .served import FINGERPRINT, ServedModel

_VOCAB_TYPES = {  # numbers of ``llama_vocab_type`` by ``tokenizer.ggml.model``
    "none": 0, "llama": 1, "gpt2": 2, "gemma4": 2, "whitespace": 2, "bert": 3, "t5": 4, "rwkv": 5,
    "plamo2": 6,
}  # fmt: skip


@dataclass(frozen=True)
class Description:
    """The bodies of ``/props``, without ``is_sleeping``, and of ``/models``."""

    props: dict[str, Any]
    models: dict[str, Any]


def describe(served: ServedModel) -> Description:
    """The description of a model."""
    return Description(_props(served), _models(served))


def _props(served: ServedModel) -> dict[str, Any]:
    """Source: llama.cpp, ``get_res_props``."""
    options, vocab = served.options, served.tokenizer.vocab
    bos, eos = served.tokenizer.bos, served.tokenizer.eos
    metadata = served.model.metadata
    found: dict[str, Any] = {
        "default_generation_settings": {
            # llama-server's have no reasoning format before a request is read
            "params": {
                **default_options(options).settings(whole=False),
                "reasoning_format": "none",
            },
            "n_ctx": served.n_ctx,
        },
        "total_slots": len(served.runner.slots),
        "model_alias": served.name,
        "model_ftype": served.model.file_type,
        "model_path": os.path.basename(options.model_path),
        "modalities": {"vision": False, "video": False, "audio": False},
        "media_marker": "",
        "endpoint_slots": options.endpoint_slots,
        "endpoint_props": options.endpoint_props,
        "endpoint_metrics": options.endpoint_metrics,
        "ui": options.ui,
        "ui_settings": {},
        "chat_template": options.chat_template or metadata.get("tokenizer.chat_template", ""),
        "chat_template_caps": _capabilities(served),
        "bos_token": "" if bos is None else vocab.tokens[bos],
        "eos_token": "" if eos is None else vocab.tokens[eos],
        "build_info": FINGERPRINT,
        "cors_proxy_enabled": options.cors_proxy,
    }
    tool_use = metadata.get("tokenizer.chat_template.tool_use")
    if tool_use:
        found["chat_template_tool_use"] = tool_use
    return found


def _capabilities(served: ServedModel) -> dict[str, bool]:
    try:
        can = served.chat_format().capabilities
    except TemplateError:
        return {}
    return {
        "supports_tools": can.tools,
        "supports_tool_calls": can.calls,
        "supports_object_arguments": can.object_arguments,
        "supports_parallel_tool_calls": can.parallel,
        "supports_system_role": can.system,
        "supports_string_content": can.text,
        "supports_typed_content": can.parts,
        "supports_preserve_reasoning": can.old_reasoning,
        "supports_reasoning_effort": can.effort,
    }


def _models(served: ServedModel) -> dict[str, Any]:
    """Source: llama.cpp, ``get_res_models``."""
    name, model = served.name, served.model
    modalities = {"input_modalities": ["text"], "output_modalities": ["text"]}
    own = {
        "id": name,
        "aliases": sorted(served.options.aliases),
        "tags": sorted(served.options.tags),
        "object": "model",
        "architecture": modalities,
        "created": int(time.time()),
        "owned_by": "pyllama",
        "meta": {
            "desc": model.desc,
            "vocab_type": _VOCAB_TYPES[served.tokenizer.vocab.model],
            "n_vocab": served.tokenizer.n_vocab,
            "n_ctx": served.n_ctx,
            "n_ctx_train": model.n_ctx_train,
            "n_embd": model.n_embd,
            "n_params": model.n_params,
            "size": model.size_bytes,
            "ftype": model.file_type,
        },
    }
    return {
        "models": [
            {
                "name": name,
                "model": name,
                "modified_at": "",
                "size": "",
                "digest": "",
                "type": "model",
                "description": "",
                "tags": [""],
                "capabilities": ["completion"],
                "parameters": "",
                "details": details(""),
            }
        ],
        "object": "list",
        "data": [own],
    }


def details(desc: str) -> dict[str, Any]:
    """The object ``details`` of Ollama's models, of a description such as ``llama 1B Q4_0``."""
    family, size, kind = (*desc.split(" ", 2), "", "")[:3]
    return {
        "parent_model": "",
        "format": "gguf",
        "family": family,
        "families": [family],
        "parameter_size": size,
        "quantization_level": kind,
    }
