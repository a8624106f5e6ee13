"""Runs llama.cpp's converter on a checkpoint: python llama_cpp_convert.py FOLDER OUT [TARGET]

Its packages ``conversion`` and ``gguf`` must be found first. The vocabulary is one of plain words.
"""

import json
import sys
from pathlib import Path
from typing import Any

import gguf
import torch
from conversion import ModelBase, ModelType, get_model_architecture, get_model_class

N_VOCAB = 512


def _write_floats(self: Any, bid: int, proj: str, tensor: Any) -> list[str]:
    """Write the experts of DeepSeek-V4, whose converter takes published ones of 4 bits only."""
    names = [
        f"layers.{bid}.ffn.experts.{e}.{proj}.weight"
        for e in range(self.hparams["n_routed_experts"])
    ]
    data = torch.stack([self.model_tensors[name]() for name in names]).numpy()
    self.gguf_writer.add_tensor(self.format_tensor_name(tensor, bid), data)
    return names


def _set_vocab(self: Any) -> None:
    writer = self.gguf_writer
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([f"w{i:03}" for i in range(N_VOCAB)])
    writer.add_token_types([gguf.TokenType.NORMAL] * N_VOCAB)
    writer.add_token_merges(["w 0"])


if __name__ == "__main__":
    folder, out, *target = map(Path, sys.argv[1:])
    config = ModelBase.load_hparams(folder, False)
    kind = get_model_class(get_model_architecture(config, ModelType.TEXT))
    kind.no_mtp = True  # layers that draft tokens are left out
    inner = [x for x in vars(kind).values() if isinstance(x, type)]  # Mistral 3 has two of them
    for part in {part for one in (kind, *inner) for part in one.__mro__}:
        if "set_vocab" in vars(part):
            part.set_vocab = _set_vocab
        if "_get_suppress_tokens" in vars(part):  # MiniMax-01's reads the tokenizer
            part._get_suppress_tokens = lambda self: []
    if hasattr(kind, "_write_mxfp4_expert_tensor"):
        kind._write_mxfp4_expert_tensor = _write_floats
    vocabulary = folder / "tokenizer.json"
    if missing := not vocabulary.exists():  # Gemma's converters count its tokens
        tokens = {f"w{i:03}": i for i in range(N_VOCAB)}
        vocabulary.write_text(json.dumps({"model": {"vocab": tokens}, "added_tokens": []}))
    try:
        with torch.inference_mode():
            options: dict[str, Any] = {"sentence_transformers_dense_modules": True}
            if target:
                options["target_model_dir"] = target[0]
            kind(folder, gguf.LlamaFileType.ALL_F32, out, **options).write()
    finally:
        if missing:
            vocabulary.unlink()
