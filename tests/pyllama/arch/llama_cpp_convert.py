"""Runs llama.cpp's converter on a checkpoint: python llama_cpp_convert.py FOLDER OUT.gguf

Its packages ``conversion`` and ``gguf`` must be found first. The vocabulary is one of plain words.
"""

import sys
from pathlib import Path
from typing import Any

import gguf
import torch
from conversion import ModelBase, ModelType, get_model_architecture, get_model_class

N_VOCAB = 512


def _set_vocab(self: Any) -> None:
    writer = self.gguf_writer
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([f"w{i:03}" for i in range(N_VOCAB)])
    writer.add_token_types([gguf.TokenType.NORMAL] * N_VOCAB)
    writer.add_token_merges(["w 0"])


if __name__ == "__main__":
    folder, out = map(Path, sys.argv[1:])
    config = ModelBase.load_hparams(folder, False)
    kind = get_model_class(get_model_architecture(config, ModelType.TEXT))
    for part in kind.__mro__:
        if "set_vocab" in vars(part):
            part.set_vocab = _set_vocab
    with torch.inference_mode():
        kind(folder, gguf.LlamaFileType.ALL_F32, out).write()
