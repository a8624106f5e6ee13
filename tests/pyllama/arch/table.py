"""Generates the page of architectures: checkpoints, positions and verified variants.

    python -m tests.pyllama.arch.table > docs/architectures.md

Made from the architectures' files, ``variants.py`` and the list of what llama.cpp could run.
"""

from __future__ import annotations

from pyllama.arch import Arch, arch_names, get_arch

from .variants import VARIANTS

# Variants that llama.cpp was given as files of ours and continued with the same tokens; a test
# asks it again where it is installed.
LLAMA_CPP = (
    "bloom", "bloom_6_heads", "falcon_11b", "falcon_40b", "falcon_7b", "gemma3", "gpt2", "gptneox",
    "gptneox_sequential", "llama", "llama_biases", "llama_dynamic", "llama_linear", "llama_llama3",
    "llama_longrope", "llama_yarn", "llama_yarn_attention", "mixtral", "mpt", "phi2", "qwen2",
    "qwen2_tied", "qwen3", "qwen3moe",
)  # fmt: skip


def _positions(arch: Arch) -> str:
    """The kind of position encoding."""
    found = []
    if arch.HPARAMS.get("n_rot") != 0:
        found.append("rope, halves" if arch.HPARAMS.get("rope_neox") else "rope, neighbours")
    if "max_alibi_bias" in arch.HPARAMS:
        found.append("ALiBi")
    if any(name.startswith("position_embd") for name in arch.TENSORS):
        found.append("learned")
    return " or ".join(found)


def _row(name: str) -> str:
    arch = get_arch(name)
    summary = (arch.__doc__ or "").split("\n", 1)[0].rstrip(".")
    head, _, what = summary.partition(": ")
    cells = [
        f"`{name}`",
        f"{head}: {what}",
        " ".join(f"`{model}`" for model in arch.CONVERT.models),
        _positions(arch),
        " ".join(f"`{v}`{'*' if v in LLAMA_CPP else ''}" for v in sorted(VARIANTS[name])),
    ]
    return "| " + " | ".join(cells) + " |"


def markdown() -> str:
    """The table of the page."""
    head = ["architecture", "what it is", "config.json names", "positions", "variants checked"]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    return "\n".join([*lines, *(_row(name) for name in arch_names())]) + "\n"


if __name__ == "__main__":
    print("# Architectures\n")
    print("Made by `python -m tests.pyllama.arch.table > docs/architectures.md`.\n")
    print("The name is that of `general.architecture`. A variant is a tiny checkpoint with random")
    print("weights, biases and norms; the tests convert each and compare it with what transformers")
    print("recorded in float32: logits within 0.002 (their standard deviation is 1.5), the same 16")
    print("greedy tokens; the same bits for any threads, batches and layout of weights; F16 and")
    print("Q8_0 within 2 % of squared error. `*`: llama.cpp runs our file of it and chooses the")
    print("same tokens. [Adding one](add-a-model.md) is one file.\n")
    print(markdown(), end="")
