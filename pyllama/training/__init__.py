"""Fine-tunes models: all weights, or a LoRA adapter of a base in any format.

    from pyllama.training import Finetuner, TuneParams, perplexity, text_windows

    model = Model.load("x.gguf", repack=False)
    train, held_out = text_windows(model.tokenizer.encode(text), n_ctx=512, val_split=0.05)
    tuner = Finetuner(model, train, TuneParams(lora=LoraParams(rank=16)))
    tuner.fit(held_out)
    tuner.save("adapter.gguf")

docs/finetune.md is the guide.
"""

from .finetune import Finetuner, TuneParams, perplexity
from .lora import LoraParams
from .windows import Example, chat_examples, chat_windows, read_chats, text_windows

__all__ = [
    "Example",
    "Finetuner",
    "LoraParams",
    "TuneParams",
    "chat_examples",
    "chat_windows",
    "perplexity",
    "read_chats",
    "text_windows",
]
