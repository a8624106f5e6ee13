"""Converts Hugging Face checkpoints to GGUF files.

from pyllama.convert import convert

path = convert("Llama-3.2-1B", "llama.gguf", outtype="bf16")
"""

from .conversion import ConvertOptions, convert
from .lora import convert_lora

__all__ = ["ConvertOptions", "convert", "convert_lora"]
