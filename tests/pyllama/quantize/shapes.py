"""Models as names and shapes, the input for the choice of types.

for model in MODELS.values():
    model.tensors()                                # TensorInfo, F32, in llama.cpp's order
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyggml.dtype import GGMLType, row_size
from pyggml.gguf import TensorInfo
from pyllama.quantize.mixes import Sizes


@dataclass(frozen=True)
class Shape:
    """A model; ``fused`` has attn_qkv, and no gate."""

    sizes: Sizes
    n_embd: int = 512
    n_ff: int = 1024
    n_vocab: int = 256
    tied: bool = False
    fused: bool = False
    positions: bool = False

    def metadata(self) -> dict[str, Any]:
        """The metadata that llama.cpp requires."""
        s = self.sizes
        keys = {
            "context_length": 512,
            "embedding_length": self.n_embd,
            "block_count": s.n_layer,
            "feed_forward_length": self.n_ff,
            "attention.head_count": s.n_head,
            "attention.head_count_kv": s.n_head_kv,
            "attention.layer_norm_epsilon": 1e-5,
            "attention.layer_norm_rms_epsilon": 1e-5,
            "attention.key_length": 64,
            "attention.value_length": 64,
            "rope.dimension_count": 64,
            "expert_feed_forward_length": self.n_ff,
            "expert_count": s.n_expert,
            "expert_used_count": min(s.n_expert, 2),
        }
        return {"general.architecture": s.arch} | {f"{s.arch}.{k}": v for k, v in keys.items()}

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """ne by name, sorted by layer, then by name."""
        s, e, f = self.sizes, self.n_embd, self.n_ff
        q, kv = 64 * s.n_head, 64 * s.n_head_kv
        globals_ = {"output_norm.weight": (e,), "token_embd.weight": (e, self.n_vocab)}
        if not self.tied:
            globals_["output.weight"] = (e, self.n_vocab)
        if self.positions:
            globals_["position_embd.weight"] = (e, 64)
        layer: dict[str, tuple[int, ...]] = {"attn_norm.weight": (e,), "attn_output.weight": (q, e)}
        if self.fused:
            layer |= {"attn_qkv.weight": (e, q + 2 * kv), "attn_qkv.bias": (q + 2 * kv,)}
        else:
            layer |= {"attn_q.weight": (e, q), "attn_k.weight": (e, kv), "attn_v.weight": (e, kv)}
        if s.n_expert:
            n = s.n_expert
            layer |= {"ffn_gate_inp.weight": (e, n), "ffn_gate_exps.weight": (e, f, n)}
            layer |= {"ffn_up_exps.weight": (e, f, n), "ffn_down_exps.weight": (f, e, n)}
        else:
            layer |= {"ffn_up.weight": (e, f), "ffn_down.weight": (f, e)}
            layer |= {} if self.fused else {"ffn_gate.weight": (e, f)}
        found: dict[str, tuple[int, ...]] = dict(sorted(globals_.items()))
        for i in range(s.n_layer):
            found |= {f"blk.{i}.{name}": ne for name, ne in sorted(layer.items())}
        return found

    def tensors(self) -> list[TensorInfo]:
        """The tensors of the model in F32, as in a file."""
        found = []
        for name, ne in self.shapes().items():
            padded = (*ne, 1, 1, 1)[:4]
            nbytes = row_size(GGMLType.F32, ne[0]) * padded[1] * padded[2] * padded[3]
            found.append(TensorInfo(name, padded, len(ne), GGMLType.F32, 0, nbytes))
        return found


MODELS = {
    "llama": Shape(Sizes("llama", 32, 8, 4)),
    "llama-grouped-tied": Shape(Sizes("llama", 18, 8, 2), tied=True),
    "llama-70b": Shape(Sizes("llama", 80, 8, 1), n_ff=512),
    "llama-rows-of-576": Shape(Sizes("llama", 30, 9, 3), n_embd=576, n_ff=1536, tied=True),
    "llama-rows-of-100": Shape(Sizes("llama", 8, 4, 4), n_embd=100, n_ff=160),
    "mixtral": Shape(Sizes("llama", 16, 8, 2, 8)),
    "qwen3moe": Shape(Sizes("qwen3moe", 16, 8, 1, 16)),
    "falcon": Shape(Sizes("falcon", 32, 8, 1), fused=True),
    "gpt2": Shape(Sizes("gpt2", 12, 8, 8), fused=True, positions=True),
}


def letter(type: GGMLType) -> str:
    """A type as one character, for recorded choices."""
    return chr(ord("A") + type)
