"""``pyllama-finetune``: fine-tune a model on a text or on conversations, like llama-finetune.

    pyllama-finetune -m base.gguf -f chats.jsonl --lora-rank 16 -o adapter.gguf
    pyllama-finetune -m x-f32.gguf -f text.txt -epochs 2 -lr 1e-5 -o tuned.gguf

With --lora-rank the base may have any format, and the result is an adapter for --lora. Without it
all weights are trained, which must be F32. Loss and perplexity of held-out data are printed.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pyllama.parameters import Flags, row
from pyllama.parameters.loading import ContextSizes

from ...loading import announce_compiles, model_path
from ...machine import machine_options
from ...options.options import model_option
from ...output import note, progress_bar, write_line
from ...parameters import WORDS, from_options, parameter_options
from ...paths import MAX_TEXT_BYTES, refuse_source, writable
from ...tool import Program, ignored_option, version_option

if TYPE_CHECKING:
    from pyggml.opt import Dataset, OptResult
    from pyllama.runtime.model import Model
    from pyllama.training import TuneParams


@dataclass(frozen=True, eq=False, repr=False)
class FinetuneOptions:
    """The data, what is trained and how."""

    # fmt: off
    file: Path | None = row(None,
        "The data: a text, or a .jsonl file with a conversation {\"messages\": [...]} on each "
        "line, of which the assistant's answers are learned.", Flags("-f", "--file"))
    output: Path = row(Path("finetuned.gguf"), "Output file: the adapter, or the model.",
        Flags("-o", "--output", "--output-file", callback=writable))
    lora_rank: int = row(0, "Train an adapter of this rank. 0: all weights, of an F32 file.",
        Flags("--lora-rank", low=0, high=4096))
    lora_alpha: float = row(0.0, "Changes are multiplied by ALPHA / rank. 0: twice the rank.",
        Flags("--lora-alpha", low=0, metavar="ALPHA"))
    lora_target: tuple[str, ...] = row(("attn", "ffn"),
        "Matrices in layers that the adapter changes: names such as attn_q,attn_v, or their first "
        "words.", Flags("--lora-target", default="attn,ffn"))
    n_ctx: int = row(512, "Tokens of a window, up to which tokens attend to each other.",
        Flags("-c", "--ctx-size", low=1))
    n_batch: int = row(2048,
        "Tokens of a step of the optimizer, whose gradients are added up window by window.",
        Flags("-b", "--batch-size", low=1))
    epochs: int = row(2, "How often all data are visited.", Flags("-epochs", "--epochs", low=1))
    lr: float = row(0.0, "Learning rate. 0: 1e-5, of adapters 2e-4.",
        Flags("-lr", "--learning-rate", low=0, metavar="ALPHA"))
    lr_min: float = row(0.0, "Rate to which it decays exponentially. 0: it does not.",
        Flags("-lr-min", "--learning-rate-min", low=-1, metavar="ALPHA"))
    decay_epochs: float = row(0.0, "Number of epochs until -lr-min. 0: all.",
        Flags("-decay-epochs", "--learning-rate-decay-epochs", low=-1, metavar="N"))
    wd: float = row(0.0, "Weight decay.", Flags("-wd", "--weight-decay", low=0))
    val_split: float = row(0.05, "Part of the data that is held out and evaluated. 0: none.",
        Flags("-val-split", "--val-split", low=0, high=0.9, metavar="FRACTION"))
    optimizer: str = row("adamw", "Optimizer.",
        Flags("-opt", "--optimizer", choices=("adamw", "sgd")))
    max_norm: float = row(0.0, "Bound of the L2 norm of all gradients together. 0: none.",
        Flags("--max-grad-norm", low=0))
    seed: int = row(0, "Seed of new matrices, of the data's order and of the held-out choice.",
        Flags("-s", "--seed", low=0))
    recompute: bool = row(False,
        "Keep only the outputs of layers, and compute the rest again for gradients: less memory, "
        "for most of the time of a second forward pass.", Flags("--recompute-layers"))
    checkpoint: Path | None = row(None,
        "File that is written after each epoch. If it exists, training goes on from there, with "
        "the same bits.", Flags("--checkpoint", metavar="FILE", callback=writable))
    chat_template: str | None = row(None,
        "Chat template of conversations: a name or Jinja source.  [default: the model's]",
        Flags("--chat-template", metavar="NAME"))
    # fmt: on


_WINDOWS = "a window of --ctx-size tokens is evaluated at once"


@click.command("finetune", cls=Program)
@parameter_options(FinetuneOptions, types={"--lora-target": WORDS})
@model_option
@parameter_options(ContextSizes, only=("n_threads",), section="CPU")
@machine_options
@ignored_option("-ub", "--ubatch-size", takes_value=True, why=_WINDOWS)
@ignored_option("-ngl", "--gpu-layers", "--n-gpu-layers", takes_value=True,
                why="training runs on the CPU")  # fmt: skip
@ignored_option("-fa", "--flash-attn", takes_value=True, why="attention is always one op")
@version_option()
def command(**options: Any) -> None:
    """Fine-tune a model: all weights, or a LoRA adapter of a base in any format."""
    own = from_options(FinetuneOptions, options)
    if own.file is None:
        raise click.UsageError("give the data with -f: a text, or conversations in a .jsonl file")
    from pyllama.runtime.model import Model
    from pyllama.training import Finetuner, perplexity

    path = model_path(options["model"])
    refuse_source(own.output, path, own.file)
    announce_compiles()
    with progress_bar("loading the model") as progress:
        model = Model.load(path, repack=False, progress=progress)
    train, held_out = _windows(own, own.file, model)
    tuner = Finetuner(model, train, _params(own, options["n_threads"]))
    n_held_out = 0 if held_out is None else len(held_out)
    note(
        f"finetune: {len(train)} windows of {tuner.n_ctx} tokens, {n_held_out} held out; "
        f"{tuner.n_params:,} values are trained"
    )

    def show(when: str, result: OptResult) -> None:
        write_line(f"{when}: held-out loss {result.loss:.4f}, perplexity {perplexity(result):.4f}")

    if held_out is not None:
        show("before", tuner.evaluate(held_out))
    results = tuner.fit(held_out, checkpoint=own.checkpoint)
    tuner.save(own.output)
    if held_out is not None:
        last = results[-1][1] if results else None
        show("after", last or tuner.evaluate(held_out))
    write_line(
        f"{own.output}: " + ("the model" if own.lora_rank == 0 else "an adapter, for --lora")
    )


def _params(own: FinetuneOptions, n_threads: int) -> TuneParams:
    """The library's form of the options."""
    from pyllama.training import LoraParams, TuneParams

    lora = None
    if own.lora_rank:
        lora = LoraParams(own.lora_rank, own.lora_alpha, tuple(own.lora_target))
    shared = {f.name for f in fields(own)} & {f.name for f in fields(TuneParams)}
    return TuneParams(
        lora=lora,
        n_threads=n_threads if n_threads > 0 else None,
        **{name: getattr(own, name) for name in shared},
    )


def _windows(own: FinetuneOptions, file: Path, model: Model) -> tuple[Dataset, Dataset | None]:
    """The windows to train on and to evaluate. Raises: ModelError, TemplateError, OSError."""
    from pyllama.training import chat_examples, chat_windows, read_chats, text_windows

    if file.suffix.lower() == ".jsonl":
        from pyllama.chat.formats import LLAMA_CPP_FORMATS, ChatFormats
        from pyllama.errors import TemplateError

        format = ChatFormats(model, LLAMA_CPP_FORMATS).get(own.chat_template)
        examples = []
        for number, chat in enumerate(read_chats(file), 1):
            try:
                examples.append(chat_examples(format, chat))
            except TemplateError as error:
                raise TemplateError(f"{file}, conversation {number}: {error}") from None
        return chat_windows(examples, own.n_ctx, own.val_split, own.seed)
    from pyggml.files import read_input
    from pyllama.inputs.text import decode_text

    text = decode_text(read_input(file, MAX_TEXT_BYTES))
    tokens = model.tokenizer.encode(text, add_special=True, parse_special=False)
    return text_windows(tokens, own.n_ctx, own.val_split, own.seed)
