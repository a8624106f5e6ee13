"""A tiny DeepSeek-V2 whose compressed rows are those of the real one: keys of 576 columns, values
of 512.

path = latent_file(tmp_path / "x")
"""

from __future__ import annotations

from pathlib import Path

from pyllama.convert import convert
from tests.pyllama.arch.checkpoints import recorded, shapes_of, variants, weights, write_files

N_HEAD, N_LORA, N_ROT, N_NOPE, N_VALUE, N_EMBD = 16, 512, 64, 32, 32, 64
_ATTENTION = {
    "q_proj": (N_HEAD * (N_NOPE + N_ROT), N_EMBD),
    "kv_a_proj_with_mqa": (N_LORA + N_ROT, N_EMBD),
    "kv_a_layernorm": (N_LORA,),
    "kv_b_proj": (N_HEAD * (N_NOPE + N_VALUE), N_LORA),
    "o_proj": (N_EMBD, N_HEAD * N_VALUE),
}


def latent_file(folder: Path) -> Path:
    """A GGUF file in float32, of one layer."""
    name = "deepseek2_lite"
    config = variants()[name][1] | {
        "num_hidden_layers": 1,
        "num_attention_heads": N_HEAD,
        "num_key_value_heads": N_HEAD,
        "kv_lora_rank": N_LORA,
        "qk_rope_head_dim": N_ROT,
    }
    record = recorded(name)
    shapes = {n: s for n, s in shapes_of(record).items() if ".layers." not in n or ".0." in n}
    shapes = {n: s for n, s in shapes.items() if "experts" not in n}
    shapes |= {f"model.layers.0.self_attn.{n}.weight": s for n, s in _ATTENTION.items()}
    made = weights(config["model_type"], shapes, float(record["scale"]))
    return convert(write_files(folder, config, made), folder / "x.gguf", "f32")
