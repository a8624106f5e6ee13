"""Measures fine-tuning: LoRA on the demo model with 200 conversations, against PEFT.

    python -m benchmarks.bench_finetune [MODEL.gguf] [--chats 200] [--peft] [--epochs 2]

Each conversation asks what a flag of our programs does; the answer is the flag's help text. A tenth
of the conversations is held out.
``--peft`` trains the same on the dequantized base in torch, with the same first values and order.
A line in results/finetune.jsonl has held-out losses before and after, and seconds.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.bench_model import head
from benchmarks.machine import save
from pyllama import Model
from pyllama.chat.formats import LLAMA_CPP_FORMATS, ChatFormats
from pyllama.hub.demo import demo_model_path
from pyllama.parameters import rows
from pyllama.parameters.drafting import DraftParams
from pyllama.parameters.loading import ContextSizes, DeviceParams, FileParams
from pyllama.parameters.sampling import SamplingParams
from pyllama.training import Finetuner, LoraParams, TuneParams, chat_examples, chat_windows


def conversations(n: int) -> list[dict[str, Any]]:
    """Questions about flags, in several wordings, with the help as the answer."""
    found = []
    wordings = ("What does {} do?", "Explain the flag {}.", "When do I need {}?", "{}: what is it?")
    tables: tuple[Any, ...] = (SamplingParams, ContextSizes, FileParams, DeviceParams, DraftParams)
    for wording in wordings:
        for table in tables:
            for row in rows(table).values():
                if row.flags and row.help:
                    question = wording.format(row.flags[0].names[-1])
                    found.append({"messages": [
                        {"role": "user", "content": question},
                        {"role": "assistant", "content": row.help},
                    ]})  # fmt: skip
    order = np.random.default_rng(0).permutation(len(found))
    return [found[i] for i in order[:n]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", nargs="?", type=Path)
    for name, value in (("chats", 200), ("epochs", 2), ("rank", 16), ("context", 256),
                        ("batch", 1024), ("threads", 2)):  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--rate", type=float, default=2e-4)
    parser.add_argument("--peft", action="store_true")
    parser.add_argument("--recompute", action="store_true")
    args = parser.parse_args()
    path = args.model or demo_model_path()
    model = Model.load(path, repack=False)
    format = ChatFormats(model, LLAMA_CPP_FORMATS).get()
    examples = [chat_examples(format, chat) for chat in conversations(args.chats)]
    train, held_out = chat_windows(examples, args.context, 0.1)
    assert held_out is not None and train.labels is not None
    lora = LoraParams(args.rank)
    params = TuneParams(
        lora=lora, n_batch=args.batch, epochs=args.epochs, lr=args.rate, n_threads=args.threads,
        recompute=args.recompute,
    )  # fmt: skip
    tuner = Finetuner(model, train, params)
    first = {w.name: w.numpy(squeeze=False)[0, 0].copy() for w in tuner.trainer.params.values()}
    line: dict[str, Any] = head(model, args.threads) | {
        "chats": len(examples), "windows": len(train),
        "tokens": int(np.count_nonzero(train.data[:, 0])),
        "labels": int(np.count_nonzero(train.labels >= 0)), "context": args.context,
        "epochs": args.epochs, "rank": args.rank, "rate": args.rate, "batch": args.batch,
        "recompute": args.recompute, "gib": round(tuner.trainer.size_bytes / 2**30, 2),
    }  # fmt: skip
    line["before"] = round(tuner.evaluate(held_out).loss, 4)
    start = time.perf_counter()
    tuner.fit(None)
    line["seconds"] = round(time.perf_counter() - start, 1)
    line["after"] = round(tuner.evaluate(held_out).loss, 4)
    print(line, flush=True)
    if args.peft:
        line["peft"] = peft(path, model, train, held_out, args, first)
    save(line, "finetune.jsonl")


def peft(
    path: Path, model: Model, train: Any, held_out: Any, args: Any, first: dict[str, Any]
) -> dict[str, float]:
    """The same training in torch."""
    import torch

    from benchmarks.finetune_torch import add_lora, load_llama, mean_loss, set_lora
    from benchmarks.finetune_torch import train as torch_train

    torch.set_num_threads(args.threads)
    hp = model.hparams
    theirs, pairs = add_lora(load_llama(path), args.rank, LoraParams(args.rank).factor)
    set_lora(pairs, {n: (first[f"{n}.lora_a"], first[f"{n}.lora_b"]) for n in pairs}, hp.head_dim)
    before = mean_loss(theirs, hp, held_out)
    batch = max(1, args.batch // args.context)
    _, seconds = torch_train(theirs, hp, train, epochs=args.epochs, lr=args.rate, batch=batch)
    after = mean_loss(theirs, hp, held_out)
    return {"before": round(before, 4), "after": round(after, 4), "seconds": round(seconds, 1)}


if __name__ == "__main__":
    main()
