"""Record transformers' beam searches on tiny checkpoints, in tests/data/beams/<variant>.npz.

    python -m tests.pyllama.engine.record_beams

Needs torch and transformers, which the tests do not. A file has ``eos``, the checkpoint's id of the
end token; ``eog``, all ids that end a beam; ``prompt``; and for each case of `CASES` ``tokens_<i>``
int32[beam_width, max_tokens], filled up with -1, and ``scores_<i>``. The prompt is chosen so that
noise in the logits does not change the beams, the end token so that some beams end early.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from transformers import LogitsProcessor, LogitsProcessorList, TemperatureLogitsWarper

from ..arch.checkpoints import DATA, N_VOCAB, recorded, shapes_of, variants
from ..arch.record import load_model, save_config
from .beam_cases import CASES, VARIANTS

N_PROMPT, NOISE = 9, 2e-3


class Noise(LogitsProcessor):
    """Adds noise to log-probabilities, as large as the difference of two implementations."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def __call__(self, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return scores + NOISE * (torch.rand(scores.shape, generator=self.generator) - 0.5)


def search(
    model: Any, prompt: list[int], case: dict[str, Any], eog: list[int], seed: int | None
) -> tuple[list[list[int]], list[float]]:
    """The beams of transformers and their scores; a seed adds noise."""
    processors = LogitsProcessorList([] if seed is None else [Noise(seed)])
    if case.get("temperature"):
        processors.append(TemperatureLogitsWarper(case["temperature"]))
    out = model.generate(
        torch.tensor([prompt]),
        num_beams=case["beam_width"],
        num_return_sequences=case["beam_width"],
        max_new_tokens=case["max_tokens"],
        length_penalty=case.get("length_penalty", 1.0),
        early_stopping="never",
        do_sample=False,
        eos_token_id=None if case.get("ignore_eos") else eog,
        pad_token_id=N_VOCAB,
        logits_processor=processors,
        renormalize_logits=True,
        return_dict_in_generate=True,
        output_scores=True,
    )
    beams = [[t for t in row if t != N_VOCAB] for row in out.sequences[:, len(prompt) :].tolist()]
    return beams, out.sequences_scores.tolist()


@torch.no_grad()
def record(name: str, always: list[int]) -> None:
    """Record a variant, whose vocabulary ends texts at the tokens ``always`` too."""
    config, record = variants()[name][1], recorded(name)
    with TemporaryDirectory() as directory:
        save_config(config, Path(directory))
        model = load_model(config, Path(directory), shapes_of(record), float(record["scale"]))
    model.generation_config.eos_token_id = None
    for seed in range(500):
        rng = np.random.default_rng(seed)
        prompt = rng.integers(4, N_VOCAB, N_PROMPT).tolist()
        free, _ = search(model, prompt, CASES[0] | {"ignore_eos": True}, [], None)
        eos = free[1][len(free[1]) // 2]  # within the second beam
        eog = sorted({eos, *always})
        results = [search(model, prompt, case, eog, None) for case in CASES]
        ends_early = any(len(beam) < CASES[0]["max_tokens"] for beam in results[0][0])
        if ends_early and all(
            search(model, prompt, case, eog, i)[0] == beams
            for i in range(3)
            for case, (beams, _) in zip(CASES, results, strict=True)
        ):
            break
    else:
        raise SystemExit(f"{name}: noise changes the beams of every prompt")
    arrays: dict[str, Any] = {"eos": eos, "eog": eog, "prompt": prompt}
    for i, (case, (beams, scores)) in enumerate(zip(CASES, results, strict=True)):
        rows = [beam + [-1] * (case["max_tokens"] - len(beam)) for beam in beams]
        arrays |= {f"tokens_{i}": np.array(rows, np.int32), f"scores_{i}": np.float32(scores)}
    np.savez_compressed(DATA / "beams" / f"{name}.npz", **arrays)
    print(f"{name}: seed {seed}, end token {eos}")


if __name__ == "__main__":
    for name, always in VARIANTS.items():
        record(name, always)
