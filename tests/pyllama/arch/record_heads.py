"""Record what transformers computes with heads that draft, in tests/data/heads/<name>.npz.

    LLAMA_CPP_SOURCES=DIR python -m tests.pyllama.arch.record_heads

Needs torch, transformers and llama.cpp's converter, which the tests do not. ``gguf`` (JSON) has the
keys and tensors that this converter makes of the head. ``tokens`` int32[n] is a text, of which the
target has not evaluated the last token; ``logits`` float32[k, 512] and ``hidden`` are the head's
for this token and the ones that it drafts, the likeliest.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
import transformers

from . import dflash as block
from . import gemma4_assistant, llama_cpp
from .checkpoints import (
    DATA,
    recorded,
    shapes_of,
    variants,
    weights,
    write_files,
    write_safetensors,
)

torch.set_num_threads(1)  # tiny matrices
FOLDER, N_DRAFTED = DATA / "heads", 4
TOKENS = np.random.default_rng(43).integers(3, 500, 64).astype(np.int32)


def _loaded(config: dict[str, Any], made: dict[str, np.ndarray]) -> Any:
    """The model of a checkpoint."""
    rest = {k: v for k, v in copy.deepcopy(config).items() if k != "model_type"}
    parsed = transformers.AutoConfig.for_model(config["model_type"], **rest)
    with TemporaryDirectory() as folder:
        parsed.save_pretrained(folder)
        write_safetensors(Path(folder) / "model.safetensors", made)
        model, info = getattr(transformers, config["architectures"][0]).from_pretrained(
            folder, attn_implementation="eager", dtype=torch.float32, output_loading_info=True
        )
    missing = {name for name in info["missing_keys"] if name != "lm_head.weight"}
    assert not missing and not info["unexpected_keys"], info
    return model.eval()


def gemma4(n: int) -> dict[str, np.ndarray]:
    """Of an assistant of Gemma 4, for a text of ``n`` tokens."""
    record, (_, config) = recorded("gemma4"), variants()["gemma4"]
    made = weights(config["model_type"], shapes_of(record), float(record["scale"]))
    target = _loaded(config, made)
    head = _loaded(*gemma4_assistant.head_of(config))
    tokens, window = TOKENS[:n], config["sliding_window"]
    out = target.model(
        torch.tensor([tokens[:-1].tolist()]), return_shared_kv_states=True, use_cache=True
    )
    states = dict(out.shared_kv_states)
    # the window of the token itself; transformers' mask lets it attend to two tokens more
    states["sliding_attention"] = tuple(
        x[:, :, -(window - 1) :] for x in states["sliding_attention"]
    )
    hidden, token, found = out.last_hidden_state[:, -1:], int(tokens[-1]), []
    for _ in range(N_DRAFTED):
        embedding = target.get_input_embeddings()(torch.tensor([[token]]))
        made_of = head(
            inputs_embeds=torch.cat([embedding, hidden], -1),
            position_ids=torch.tensor([[n - 1]]),
            shared_kv_states=states,
        )
        hidden, logits = made_of.last_hidden_state, made_of.logits[0, -1]
        found.append((logits.numpy(), hidden[0, -1].numpy()))
        token = int(logits.argmax())
    logits, last = (np.stack(x) for x in zip(*found, strict=True))
    return {f"tokens_{n}": tokens, f"logits_{n}": logits, f"hidden_{n}": last}


def dflash(kind: str, n: int) -> dict[str, np.ndarray]:
    """Of a DFlash head, for a text of ``n`` tokens: the logits of a block but its first token."""
    record, (_, config) = recorded("llama"), variants()["llama"]
    made = weights(config["model_type"], shapes_of(record), float(record["scale"]))
    target = _loaded(config, made)
    own, of_head = block.head_of(config, "muse")  # the kinds only differ in names and windows
    names = {"encoder.fc": "fc", "encoder.output_norm_enc": "hidden_norm"}
    if kind == "dflash":
        as_named = block.head_of(config, kind)[1]
        of_head |= {f"{a}.weight": as_named[f"{b}.weight"] for a, b in names.items()}
    head = _loaded(own, of_head)
    tokens = TOKENS[:n]
    out = target(torch.tensor([tokens[:-1].tolist()]), output_hidden_states=True)
    hidden = torch.cat([out.hidden_states[i + 1] for i in block.LAYERS], -1)
    inputs = torch.tensor([[int(tokens[-1]), *[block.MASK] * (block.BLOCK - 1)]])
    positions = torch.arange(n - 1 + block.BLOCK)
    window = block.WINDOW if kind == "muse" else n + block.BLOCK
    # the window of the token itself, as in llama.cpp; transformers' has a token more
    hidden_by_window = positions[None] <= positions[n - 1 :, None] - window
    slides = torch.zeros(hidden_by_window.shape).masked_fill(hidden_by_window, -torch.inf)
    last = head(
        noise_embeds=target.get_input_embeddings()(inputs),
        context_hidden_states=hidden,
        position_ids=positions[None],
        attention_mask={"full_attention": None, "sliding_attention": slides[None, None]},
        use_cache=False,
    ).last_hidden_state
    return {f"tokens_{n}": tokens, f"logits_{n}": target.lm_head(last)[0, 1:].numpy()}


def gguf(*checkpoints: tuple[dict[str, Any], dict[str, np.ndarray]]) -> str:
    """What llama.cpp's converter makes of a head, with the target's folder if it needs that."""
    with TemporaryDirectory() as folder:
        folders = [write_files(Path(folder) / str(i), *one) for i, one in enumerate(checkpoints)]
        head, *target = folders
        return json.dumps(
            llama_cpp.described(llama_cpp.convert(head, Path(folder) / "x.gguf", *target))
        )


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    with torch.inference_mode():
        described = gguf(gemma4_assistant.head_of(variants()["gemma4"][1]))
        np.savez_compressed(
            FOLDER / "gemma4_assistant.npz", **gemma4(11), **gemma4(45), gguf=described
        )
        _, llama = variants()["llama"]
        for kind in block.KINDS:
            described = gguf(block.head_of(llama, kind), (llama, {}))
            found = dflash(kind, 11) | dflash(kind, 45)
            np.savez_compressed(FOLDER / f"dflash_{kind}.npz", **found, gguf=described)
        for kind in block.DSPARK:
            described = gguf(block.head_of(llama, kind), (llama, {}))
            np.savez_compressed(FOLDER / f"dflash_{kind}.npz", gguf=described)
