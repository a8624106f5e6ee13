"""docs/performance.md and its plot, made from the results that the benchmarks wrote down.

    python -m benchmarks.performance_page          # measures nothing

Of every model, test, instruction set and number of threads the newest line counts.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pyggml.viz import Chart, charts_svg

ROOT = Path(__file__).parent
DOCS = ROOT.parent / "docs"
PAGE, PLOT = DOCS / "performance.md", DOCS / "pictures" / "speed.svg"
PEERS = {"native": "llama.cpp, native build", "pip": "llama.cpp, from pip"}
Line = dict[str, Any]
_HEAD = """\
# Performance

Made by `python -m benchmarks.performance_page` from the lines in
[benchmarks/results](../benchmarks/results/), which say when and where each was measured. Speeds are
tokens per second, medians; ratios are of runs turn about on the same machine. The read roof is the
rate of plain reads over a buffer of as many bytes, measured around each run.
"""


def newest(file: str, *keys: str) -> list[Line]:
    """The last line of each combination of the keys' values; none where there is no file."""
    path = ROOT / "results" / file
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    lines = [json.loads(line) for line in text.splitlines()]
    return list({tuple(line.get(k) for k in keys): line for line in lines}.values())


def markdown(head: str, rows: Iterable[Iterable[object]]) -> str:
    """A table; ``head`` has its cells apart by ``|``."""
    lines = [f"| {head} |", "|" + "---|" * (head.count("|") + 1)]
    return "\n".join([*lines, *("| " + " | ".join(map(str, row)) + " |" for row in rows)]) + "\n"


def _number(line: Line, key: str, form: str) -> str:
    return format(line[key], form) if line.get(key) is not None else ""


def _what(r: Line) -> list[object]:
    return [r["model"], r["threads"], r["isa"], r["test"]]


def peers_table(lines: list[Line]) -> str:
    """Speeds here and of llama.cpp, medians of turn-about rounds."""
    rows = (
        [*_what(r), f"{r['ours']:.0f}",
         *(_number(r, key, f) for p in PEERS for key, f in ((p, ".0f"), (f"over_{p}", ".2f"))),
         _number(r, "of_roof", ".0%")]
        for r in lines
    )  # fmt: skip
    names = "model | threads | set | test | here, t/s | native, t/s | ratio | pip, t/s | ratio"
    return markdown(f"{names} | of read roof", rows)


def models_table(lines: list[Line]) -> str:
    """Speeds here by threads and instruction set."""
    rows = (
        [*_what(r), f"{r['ts']:.0f}", _number(r, "of_roof", ".0%"),
         _number(r, "load_gb_per_s", ".1f")]
        for r in lines
    )  # fmt: skip
    return markdown("model | threads | set | test | t/s | of read roof | loading, GB/s", rows)


def ops_table(lines: list[Line]) -> str:
    """Matmuls alone, by format and shape."""
    rows = (
        [f"`{r['op']}`", f"`{r['case']}`", r["threads"],
         *(_number(r, key, f) for key, f in (
             ("us", ".1f"), ("gb_per_s", ".1f"), ("of_read_roof", ".0%"),
             ("gmac_per_s", ".0f"), ("of_mac_roof", ".0%"),
         ))]
        for r in lines
    )  # fmt: skip
    names = "op | case | threads | us | GB/s | of read roof | GMAC/s | of MAC roof"
    return markdown(names, rows)


def profile_section(r: Line) -> str:
    """Where the time of one model's token and prompt goes."""
    read, macs = r["read_roof_gb_per_s"], r["mac_roof_gmac_per_s"]
    speed = r["weights_bytes"] / r["token_ms"] / 1e6

    def rate(row: Line, key: str, form: str, roof: float) -> list[str]:
        return [format(row[key], form), f"{row[key] / roof:.0%}"] if row[key] else ["", ""]

    def table(rows: list[Line]) -> str:
        cells = (
            [q["kernels"], q["shapes"], q["phases"], f"{q['us']:.2f}", f"{q['share']:.1%}",
             *rate(q, "gb_per_s", ".1f", read), *rate(q, "gmac_per_s", ".0f", macs)]
            for q in rows
        )  # fmt: skip
        names = "kernels | shapes (k x m) | phases | us each | share | GB/s | of read roof"
        return markdown(f"{names} | GMAC/s | of MAC roof", cells)

    return f"""## Where the time goes: {r["model"]}, {r["threads"]} threads

Roofs in that run ({r["time"][:10]}): reading {r["weights_bytes"] / 1e6:.1f} MB again and again
{read:.1f} GB/s; the Q4_1 register tile on data in L1 {macs:.0f} GMAC/s. A phase is what runs
between two barriers; kernels that share one are joined by `+` or counted by `*`.

One token, behind 512 others: {r["token_ms"]:.2f} ms, {1e3 / r["token_ms"]:.0f} tokens/s:
{speed:.1f} GB/s of weights, {speed / read:.0%} of the read roof. Everything outside of graph
compute (building inputs, sampling, the loop) takes {r["outside_share"]:.1%} of a greedy token and
{r["outside_share_sampled"]:.1%} of one chosen by the default samplers with some tokens banned.

{table(r["token"])}
A prompt of 512 tokens: {r["prompt_512_tokens_per_s"]:.0f} tokens/s.

{table(r["prompt"])}"""


def plot(lines: list[Line]) -> str:
    """SVG: times llama.cpp's speed, and shares of the read roof, on all threads measured."""
    most = max(r["threads"] for r in lines)
    lines = [r for r in lines if r["threads"] == most and " @ " not in r["test"]]
    charts, roofs = [], []
    fastest = {r["isa"]: r["ours"] for r in sorted(lines, key=lambda r: float(r["ours"]))}
    for isa in sorted(fastest, key=fastest.__getitem__, reverse=True):
        of_set = [r for r in lines if r["isa"] == isa]
        for kind, title in (("pp", "prompts"), ("tg", "generation")):
            rows = [r for r in of_set if r["test"].startswith(kind)]
            names = [_bar_name(r) for r in rows]
            chart = Chart(f"{isa}: {title}, times llama.cpp's speed", "", "", names=names)
            for peer, name in PEERS.items():
                if any(f"over_{peer}" in r for r in rows):
                    values = [r.get(f"over_{peer}", float("nan")) for r in rows]
                    chart.bars(range(len(rows)), values, f"over {name}")
            charts.append(chart)
        title = f"{isa}: generation, share of the read roof"
        roof = Chart(title, "", "", percent=True, names=names)
        roof.bars(range(len(rows)), [r.get("of_roof", float("nan")) for r in rows], "here")
        for peer, name in PEERS.items():
            if any(peer in r for r in rows):
                nan = float("nan")
                shares = [r.get("of_roof", nan) * r.get(peer, nan) / r["ours"] for r in rows]
                roof.bars(range(len(rows)), shares, name)
        roofs.append(roof)
    return charts_svg([*charts, *roofs], PLOT, title="Speed beside llama.cpp and the roof")


def _bar_name(r: Line) -> str:
    return r["model"] if r["test"] in ("pp512", "tg64") else f"{r['model']} {r['test']}"


def page() -> str:
    """The whole page, from what results there are; draws the plot too."""
    keys = ("file", "threads", "isa", "test")
    peers, models = newest("peers.jsonl", *keys), newest("model.jsonl", *keys)
    ops = [r for r in newest("ops.jsonl", "op", "case", "threads", "isa") if "gmac_per_s" in r]
    parts = [_HEAD]
    if peers:
        plot(peers)
        parts.append(
            "## Beside llama.cpp\n\n`python -m benchmarks.bench_peers`; "
            f"{peers[-1]['cpu']}. Native is a build for the machine; where the set is sse42 one "
            f"for SSE4.2 alone.\n\n![Speed](pictures/{PLOT.name})\n\n{peers_table(peers)}"
        )
    if models:
        parts.append(f"## Threads and instruction sets\n\n`python -m benchmarks.bench_model`.\n\n"
                     f"{models_table(models)}")  # fmt: skip
    parts += [profile_section(r) for r in newest("profile.jsonl", "model", "threads")]
    if ops:
        parts.append(f"## Matmuls alone\n\n`python -m benchmarks.bench_ops --save`.\n\n"
                     f"{ops_table(ops)}")  # fmt: skip
    return "\n".join(parts)


def main() -> None:
    argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0]).parse_args()
    PAGE.write_text(page(), encoding="utf-8")
    print(PAGE, PLOT)


if __name__ == "__main__":
    main()
