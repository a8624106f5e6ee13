"""Generates docs/serving.md and its pictures from the results of bench_serve and soak_serve.

    python -m benchmarks.serving_page              # measures nothing

A section for each CPU. Of every file, mix, load and server of one CPU the newest line counts.
"""

from __future__ import annotations

import argparse
import re
from collections import Counter, defaultdict
from pathlib import Path

from benchmarks.bench_serve import MIXES, N_CTX_SLOT, N_SLOTS, TPOT_GOOD_S, TTFT_GOOD_S
from benchmarks.machine import describe, label
from benchmarks.performance_page import DOCS, PICTURES, Line, markdown, newest
from benchmarks.soak_serve import (
    CACHE_MIB,
    GONE,
    MAX_GAP_MS,
    MAX_GROWTH,
    MAX_HEALTH_MS,
    N_CLIENTS,
    N_SLOW,
    SHUTDOWN_S,
    WARM,
)
from pyggml.viz.chart import Chart, charts_svg

PAGE = DOCS / "serving.md"
_SERVERS = {"ours": "pyllama-server", "native": "llama-server, native", "pip": "xllamacpp"}
_COLORS = {"ours": 2, "native": 0, "pip": 1}
_MIXES = "\n".join(
    f"| {name} | {m.shared} | {m.words[0]} to {m.words[1]} | {m.answer[0]} to {m.answer[1]} |"
    for name, m in MIXES.items()
)
_HEAD = f"""\
# Serving under load

How fast [the server](server.md) is for many clients, beside llama.cpp: its `llama-server`, compiled
for the machine, and `xllamacpp`, which pip installs. All were started once with `-np {N_SLOTS}
-c {N_SLOTS * N_CTX_SLOT}` and the same number of threads, and were asked in turns.
{{summary}}

## Loads

| mix | shared words of the prompts | further words | tokens of an answer |
|---|---|---|---|
{_MIXES}

- In a **closed loop** each client sends its next request when it has its answer. It shows the
  throughput.
- In an **open loop** requests arrive at random times, a Poisson process, whether or not others are
  finished. It shows how long users wait. The rates are 0.5, 0.8 and 1.2 of what the native
  `llama-server` answers in the closed loop: at 1.2 its queue grows as long as the load lasts.
- The **time to the first token** (TTFT) counts from sending the request, the **time of a further
  token** (TPOT) is the mean of an answer. **Goodput** is the rate of requests whose first token
  came within {TTFT_GOOD_S:g} s and whose further tokens took {TPOT_GOOD_S * 1e3:g} ms each at most.
- Values are medians of three rounds; a percentile is one of each round's requests.
- The clients run on the same machine, and take about 2% of a core.
"""
_BAD = f"""\
## Under bad treatment

`benchmarks.soak_serve` starts the server with a tiny random model, so that requests follow each
other as fast as they can be answered, and asks `/health` every 100 ms on a connection of its own.

- **hang up**: {N_CLIENTS} clients at a time send completions, conversations, tools, grammars,
  embeddings and infill, streamed or not; {GONE:.0%} of them leave within their request, before the
  response or within it. The growth of the memory is that of a line through the samples of the last
  {1 - WARM:.0%} of the requests; up to {MAX_GROWTH:.0%} of the memory counts as none. The server's
  cache of prompts has {CACHE_MIB} MiB (`-cram`).
- **malformed**: wrong types, JSON, grammars, schemas, conversations, files, headers, lengths and
  bytes on {2 * N_CLIENTS} connections, then slow senders, {N_SLOW} at a time. All must get 4xx, 501
  for a path of these APIs that is not served, or a closed connection for what is no HTTP.
  *Valid* are requests that the change did not make wrong: a field that is not read, or a value
  that the API allows.
- **largest**: the largest allowed value of each field of a request, one request after the other
  and then all at once, while another client reads a stream. A *gap* is the time between two events
  of that stream. None may be over {MAX_GAP_MS:g} ms, and 99% of
  `/health` must come within {MAX_HEALTH_MS:g} ms.
- **exits**: a new server gets six of these requests, the clients of three hang up, and within a
  second it gets SIGTERM with `--shutdown-timeout {SHUTDOWN_S}`.
- Resident memory includes what the allocators of Python and of the C library keep for reuse, so it
  rises to what the busiest moment so far needed. From request 1,000 to 10,000 of *hang up*, with
  clients and server in one process, the memory in use stayed the same (`mallinfo2`: 57.2 to
  57.5 MiB; Python: 671,567 to 672,151 blocks). Free memory grew from 3.8 to 9.3 MiB, and with it
  resident memory from 210.6 to 216.0 MiB.
  The 2,700 *malformed* requests that need most memory (schemas, templates, huge bodies) were sent
  five times. Resident memory was 335, 329, 347, 339 and 334 MiB after each time, and `mallinfo2`
  told 42.2, 41.9, 42.6, 43.6 and 42.6 MiB in use. Python had 600,000 to 730,000 allocated blocks,
  without a trend. So this is memory kept for reuse, not a leak.
- After each run all slots must be free, the log silent, and a request must give the same bits as
  before. A *finding* is a request for which something was not as it must be, or one of these, or
  memory that grows.
- *Late* is how long after its time a sleeping process was woken: what the machine itself adds to
  the times of `/health`. The load is the system's (`uptime`), on the machine's cores.

{{tables}}"""
_AGAIN = """\
## Measure it again

```sh
python -m benchmarks.bench_serve                 # about 35 minutes on two cores
python -m benchmarks.bench_serve --mixes chat --clients 4 --rates none --peers native
python -m benchmarks.soak_serve                  # clients that hang up: some minutes
python -m benchmarks.soak_serve --malformed      # malformed requests and slow senders
python -m benchmarks.soak_serve --largest        # largest allowed values beside a stream
python -m benchmarks.soak_serve --exits 100      # servers that are ended while they work
python -m benchmarks.serving_page                # this page
```

llama.cpp's sources come from pip and are compiled, once, as for
[the other comparisons](performance.md#add-a-machine).
"""


def _rows() -> dict[str, list[Line]]:
    """The newest lines by the label of their CPU."""
    cpus: dict[str, list[Line]] = defaultdict(list)
    for line in newest("serve.jsonl", "cpu", "file", "mix", "clients", "share", "server"):
        cpus[label(line)].append(line)
    return cpus


def _summary(lines: list[Line]) -> str:
    """A sentence with the ratios of all closed loops."""
    closed = [r for r in lines if r["clients"]]
    parts = []
    for peer in ("native", "pip"):
        ratios = [r["ours_over_tokens_per_s"] for r in closed if r["server"] == peer]
        if ratios:
            parts.append(
                f"{min(ratios):.1f} to {max(ratios):.1f} times as many tokens as {_SERVERS[peer]}"
            )
    return f"It generates {' and '.join(parts)}." if parts else ""


def _table(lines: list[Line]) -> str:
    rows = (
        [_SERVERS[r["server"]], f"{r['tokens_per_s']:.0f}", f"{r['prompt_tokens_per_s']:.0f}",
         f"{r['goodput_per_s']:.2f}/{r['requests_per_s']:.2f}",
         *(f"{r[f'ttft_p{p}'] * 1e3:.0f}" for p in (50, 95, 99)),
         *(f"{r[f'tpot_p{p}'] * 1e3:.1f}" for p in (50, 95)),
         f"{r['ours_over_tokens_per_s']:.2f}" if r["server"] != "ours" else ""]
        for r in lines
    )  # fmt: skip
    names = "server | tokens/s | prompt tokens/s | good/all requests a second"
    times = "TTFT ms: 50% | 95% | 99% | TPOT ms: 50% | 95% | ours / theirs, tokens"
    return markdown(f"{names} | {times}", rows)


def _plot(lines: list[Line], mix: str, path: Path, title: str) -> None:
    """Throughput by clients; waiting and goodput by rate of arrivals."""
    clients = sorted({r["clients"] for r in lines if r["clients"]})
    charts = [
        Chart(f"{mix}: tokens/s of a closed loop", "", "",
              names=[f"{n} client{'s' * (n > 1)}" for n in clients]),
        Chart(f"{mix}: 95% of first tokens within", "requests/s", "s"),
        Chart(f"{mix}: 95% of further tokens within", "requests/s", "ms"),
        Chart(f"{mix}: goodput", "requests/s", "good requests/s"),
    ]  # fmt: skip
    for server, name in _SERVERS.items():
        mine = [r for r in lines if r["server"] == server]
        closed = sorted((r for r in mine if r["clients"]), key=lambda r: r["clients"])
        arriving = sorted((r for r in mine if not r["clients"]), key=lambda r: r["rate"])
        color = _COLORS[server]
        if closed:
            at = [clients.index(r["clients"]) for r in closed]
            charts[0].bars(at, [r["tokens_per_s"] for r in closed], name, color)
        for chart, key, scale in (
            (charts[1], "ttft_p95", 1.0), (charts[2], "tpot_p95", 1e3),
            (charts[3], "goodput_per_s", 1.0),
        ):  # fmt: skip
            if len(arriving) > 1:  # else the table says it
                values = [r[key] * scale for r in arriving]
                chart.line([r["rate"] for r in arriving], values, name, color)
    charts_svg([chart for chart in charts if chart.series], path, title=title)


def section(cpu: str, lines: list[Line]) -> str:
    """One CPU: pictures and tables; draws the pictures too."""
    slug = _slug(cpu)
    names = dict.fromkeys(r["name"] for r in lines if r["server"] != "ours")
    parts = [f"## {cpu}\n", f"{describe(lines[-1])}; {', '.join(names)}.\n"]
    for file in dict.fromkeys(r["file"] for r in lines):
        parts.append(f"### {file}\n")
        for mix in dict.fromkeys(r["mix"] for r in lines if r["file"] == file):
            mine = [r for r in lines if r["file"] == file and r["mix"] == mix]
            stem = re.sub("[^a-z0-9]+", "-", f"{file.removesuffix('.gguf')} {mix}".lower())
            picture = PICTURES / f"serving-{slug}-{stem}.svg"
            _plot(mine, mix, picture, f"{file}, {mix}")
            parts.append(f"![{file}, {mix}, on {cpu}](pictures/{picture.name})\n")
            loads = {(r["clients"], r["share"]) for r in mine}
            for clients, share in sorted(loads, key=lambda load: (not load[0], *load)):
                of_load = [r for r in mine if (r["clients"], r["share"]) == (clients, share)]
                load = f"{clients} client{'s' * (clients > 1)}"
                if not clients:
                    load = f"{of_load[0]['rate']:.2f} requests a second arrive"
                parts += [f"**{mix}, {load}**\n", _table(of_load)]
    return "\n".join(parts)


def _outcomes(line: Line) -> str:
    """What came of the requests of a soak."""
    totals: Counter[str] = Counter()
    for what, n in line["counts"].items():
        totals[what.rpartition(": ")[2]] += n
    parts = [f"{n:,} {what}" for what, n in totals.most_common()]
    if line.get("slow"):
        parts.append(f"{line['slow_408']} of {line['slow']} slow senders 408")
    return ", ".join(parts)


def soak_table(lines: list[Line]) -> str:
    """The newest run of each kind on one CPU."""
    rows = (
        [r["run"], f"{r['requests']:,}", _outcomes(r), r["findings"],
         f"{r['rss_end_mib']:.0f} ({r['growth']:+.1%})",
         *("/".join(f"{r[f'{key}_{p}_ms']:.0f}" for p in ("p50", "p99", "max"))
           for key in ("health", "late")),
         f"{r['load_before']:.0f} to {r['load_after']:.0f}", r["time"][:10]]
        for r in lines
    )  # fmt: skip
    names = "run | requests | came of them | findings | MiB at the end (growth)"
    return markdown(f"{names} | `/health` ms: 50/99/100% | late ms | load | date", rows)


def huge_table(lines: list[Line]) -> str:
    """Gaps of a stream beside the largest requests, and times of exits."""
    rows = []
    for r in lines:
        gaps = dict(r.get("gaps_ms", {}))
        together = gaps.pop("all at once", None)
        worst = max(gaps, key=gaps.__getitem__, default="")
        rows.append([
            r["run"], f"{r['requests']:,}", str(r["findings"]),
            f"{r['gap_p99_ms']:.1f}" if gaps else "",
            f"{gaps[worst]:.0f} ({worst})" if gaps else "",
            f"{together:.0f}" if together is not None else "",
            f"{r['health_p99_ms']:.1f}" if gaps else "",
            f"{r['exit_p50_s']:.1f}/{r['exit_max_s']:.1f}" if "exit_p50_s" in r else "",
            f"{r['load_before']:.0f} to {r['load_after']:.0f}", r["time"][:10],
        ])  # fmt: skip
    names = "run | requests | findings | gap ms: 99% | longest, one request | all at once"
    return markdown(f"{names} | `/health` ms: 99% | exit s: 50/100% | load | date", rows)


def soak_section(lines: list[Line]) -> str:
    """Tables and pictures of the soaks of all CPUs; draws the pictures too."""
    cpus: dict[str, list[Line]] = defaultdict(list)
    for line in lines:
        cpus[label(line)].append(line)
    parts = []
    for cpu, all_of_cpu in cpus.items():
        parts.append(f"**{cpu}**, {describe(all_of_cpu[-1])}:\n")
        mine = [line for line in all_of_cpu if line["run"] not in ("largest", "exits")]
        if huge := [line for line in all_of_cpu if line["run"] in ("largest", "exits")]:
            parts.append(huge_table(huge))
        if not mine:
            continue
        picture = PICTURES / f"serving-soak-{_slug(cpu)}.svg"
        charts = []
        for r in mine:
            xs, _, mib, files, threads = zip(*r["samples"], strict=True)
            charts.append(
                Chart(f"{r['run']}: resident memory", "requests", "MiB").line(xs, mib)
            )  # fmt: skip
            counts = Chart(f"{r['run']}: open files and threads", "requests", "number")
            charts.append(counts.line(xs, files, "files").line(xs, threads, "threads"))
        charts_svg(charts, picture, title=f"Under bad treatment, {cpu}")
        parts.append(soak_table(mine))
        parts.append(f"![memory, files and threads on {cpu}](pictures/{picture.name})\n")
    return _BAD.format(tables="\n".join(parts)) if parts else ""


def _slug(text: str) -> str:
    return re.sub("[^a-z0-9]+", "-", text.lower()).strip("-")


def page() -> str:
    """The whole page, from what results there are; draws the pictures too."""
    cpus = _rows()
    summary = _summary([line for lines in cpus.values() for line in lines])
    sections = [section(cpu, lines) for cpu, lines in cpus.items()]
    soaks = soak_section(newest("soak.jsonl", "cpu", "file", "run"))
    return "\n".join([_HEAD.format(summary=summary), *sections, soaks, _AGAIN])


def main() -> None:
    argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0]).parse_args()
    for old in PICTURES.glob("serving-*.svg"):
        old.unlink()
    PAGE.write_text(page(), encoding="utf-8")
    print(PAGE, *sorted(PICTURES.glob("serving-*.svg")))


if __name__ == "__main__":
    main()
