"""The page: whole in one file, the same on every run, safe for any name, and alive in a browser."""

from __future__ import annotations

import html.parser
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from pyggml.alloc import GraphAllocator
from pyggml.buffer import HOST
from pyggml.cgraph import CGraph
from pyggml.viz import NodeTime, graph_html
from pyggml.viz.picture import Picture

from .graphs import llama_graph, random_graphs

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip
HOSTILE = ["</script><script>boom()</script>", '"><img src=x onerror=boom()>', "a\nb\u2028c",
           "'&quot;\\", "<!--", "]]>", "名前 ü 🙂", "\ud800\0"]  # fmt: skip


class Page(html.parser.HTMLParser):
    """Elements with their attributes, and the text of scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data: str) -> None:
        if self.cdata_elem == "script":
            self.scripts[-1] += data

    def data(self) -> Any:
        return json.loads(self.scripts[0])

    def boxes(self) -> list[dict[str, str | None]]:
        return [a for tag, a in self.elements if tag == "g" and "data-n" in a]


def test_one_file_with_every_box_and_no_address() -> None:
    graph = llama_graph(2)
    picture = Picture(graph)
    page = Page(graph_html(graph, title="two layers", plan=GraphAllocator(HOST).plan(graph)))
    assert sum((b["class"] or "").split()[0] == "n" for b in page.boxes()) == len(picture.boxes)
    outside = {a.get(n) for _, a in page.elements for n in ("src", "href") if a.get(n)}
    assert not outside and not [tag for tag, _ in page.elements if tag in ("link", "img")]
    names = [node["name"] for node in page.data()["nodes"]]
    assert names == [box.tensor.name for box in picture.boxes.values()]
    node = page.data()["nodes"][names.index("Qcur_rope-1")]
    facts = dict(node["facts"])
    assert facts["op"] == "ROPE: rope(x, pos)" and facts["shape"].startswith("[64, 9, 5, 1]")
    assert facts["strides"] == "[4, 256, 2304, 11520] bytes" and "planned at" in facts
    assert [name for name, _ in node["src"]] == ["x", "pos"]
    assert names[node["src"][1][1]] == "inp_pos"


def test_a_page_can_open_folded() -> None:
    graph = llama_graph(2)
    assert 'data-folded="0"' in graph_html(graph)
    text = graph_html(graph, fold="layers")
    assert 'data-folded="1"' in text and "ffn_up-1" in text
    assert "alike, drawn once" in graph_html(graph, fold="repeats")


def test_the_same_file_on_every_run(tmp_path: Path) -> None:
    pages = []
    for _ in range(2):
        graph = llama_graph(2)
        plan = GraphAllocator(HOST).plan(graph)
        pages.append(graph_html(graph, tmp_path / "x.html", plan=plan, title="x"))
    assert pages[0] == pages[1] == (tmp_path / "x.html").read_text(encoding="utf-8")
    assert "0x" not in re.sub(r"#\w+|\w+0x\w+", "", Page(pages[0]).scripts[0])


def test_hostile_names() -> None:
    graph = llama_graph(1)
    for tensor, name in zip(graph.nodes, HOSTILE, strict=False):
        tensor.set_name(name)
    times = {n: NodeTime(1e3, 1e3, 0.1, 1, ("</script>",), (graph.nodes[0],)) for n in graph.nodes}
    plan = GraphAllocator(HOST).plan(graph)
    text = graph_html(graph, title=HOSTILE[0], plan=plan, times=times)
    text.encode("utf-8")
    page = Page(text)
    assert len(page.scripts) == 2 and not any("boom" in s for s in page.scripts[1:])
    assert not [tag for tag, a in page.elements if tag == "img" or "onerror" in a]
    assert HOSTILE[0] in [node["name"] for node in page.data()["nodes"]]


def test_times_and_memory_are_tabs() -> None:
    graph = llama_graph(1)
    glu = next(n for n in graph.nodes if n.op and n.op.name == "GLU")
    times = {glu: NodeTime(12300.0, 2e4, 0.5, 8, ("glu_kernel",), (graph.nodes[3],))}
    plain = graph_html(graph)
    assert 'id="for-memory"' not in plain and 'id="for-times"' not in plain
    text = graph_html(graph, times=times, plan=GraphAllocator(HOST).plan(graph))
    assert 'id="for-memory"' in text and 'id="for-times"' in text
    assert re.search(r"12\.3 us.*50\.00 %.*glu_kernel.*" + graph.nodes[3].name, text)
    facts = [dict(node["facts"]) for node in Page(text).data()["nodes"]]
    assert sum(f.get("time") == "12.3 us, 50.00 % of the run" for f in facts) == 1
    assert sum("which it is fused into" in f.get("time", "") for f in facts) == 1


@settings(max_examples=30, suppress_health_check=[HealthCheck.too_slow])
@given(graph=random_graphs())
def test_any_graph(graph: CGraph) -> None:
    page = Page(graph_html(graph, title="x"))
    assert len(page.data()["nodes"]) == len(page.boxes()) and len(page.scripts) == 2


PROBE = """
<script>addEventListener("load", () => {
  const done = {};
  done.boxes = document.querySelectorAll("#graph .n[data-n]").length;
  done.edges = document.querySelectorAll("#graph .e[data-r]").length;
  $("search").value = "FFN_up-3 "; $("search").dispatchEvent(new Event("input"));
  done.hits = hits.map((i) => nodes[i].name);
  $("search").dispatchEvent(new KeyboardEvent("keydown", { key: "Enter" }));
  done.found = $("found").textContent;
  done.details = $("details").textContent;
  stage.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowDown", bubbles: true }));
  done.reader = nodes[selected].name;
  $("fold").click();
  done.folded = document.querySelectorAll(".folded").length;
  done.hidden = [...groups].filter((g) => g.querySelector(".inside").style.display).length;
  openTab("memory");
  done.memory = document.querySelectorAll("#tab-memory .block").length;
  done.height = $("tab-memory").getBoundingClientRect().height;
  done.ready = document.documentElement.dataset.ready;
  const out = document.createElement("pre");
  out.id = "probe"; out.textContent = JSON.stringify(done);
  document.body.append(out);
});</script></body>"""


@pytest.mark.long
@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
def test_a_thousand_nodes_in_a_browser(tmp_path: Path, record_property: Any) -> None:
    graph = llama_graph(40)
    assert len(graph.nodes) > 1000
    plan = GraphAllocator(HOST).plan(graph)
    path = tmp_path / "x.html"
    path.write_text(graph_html(graph, plan=plan).replace("</body>", PROBE), encoding="utf-8")
    command = [str(CHROMIUM), *FLAGS, f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom"]
    done = subprocess.run(
        [*command, path.as_uri()], capture_output=True, timeout=120, check=True
    )  # fmt: skip
    found = re.search(r'<pre id="probe">(.*?)</pre>', done.stdout.decode("utf-8"))
    assert found, done.stderr.decode("utf-8", "replace")[-2000:]
    seen = json.loads(html.unescape(found[1]))
    picture = Picture(graph)
    assert seen["boxes"] == len(picture.boxes)
    assert seen["edges"] == len({(a.source, a.reader) for a in picture.arrows})
    assert seen["hits"] == [f"ffn_up-{i}" for i in (3, *range(30, 40))]
    assert seen["found"] == f"1 of {len(seen['hits'])}" and "MUL_MAT" in seen["details"]
    assert graph.get_tensor(seen["reader"]).op.name == "GLU"
    assert seen["folded"] == seen["hidden"] == 40
    assert seen["memory"] == len(plan.blocks) and seen["height"] > 100
    record_property("load_ms", seen["ready"])
    assert float(seen["ready"]) < 10_000
