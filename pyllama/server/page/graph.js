// The page of the model's graph: a heat map of layers by nodes, and the drawing in a frame.

import { graphData, graphDrawing } from "./api.js";
import { $, announce, h, number } from "./dom.js";
import { isDark, startTheme } from "./theme.js";

const LISTED = 12;
const STEPS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
const PARTS = 5; // kinds of operations with a colour of their own

let data = null;
let drawn = false; // whether the frame shows the drawing of `data`
const model = new URLSearchParams(location.search).get("model"); // null without a router
let query = { tokens: 1, depth: 128, times: 0, model };

const timed = () => data.total_us !== null;
const value = (node) => (timed() ? node.us ?? 0 : node.bytes);
const duration = (us) => (us >= 1000 ? `${number(us / 1000, 2)} ms` : `${number(us, 1)} µs`);
const size = (bytes) =>
  bytes >= 2 ** 20 ? `${number(bytes / 2 ** 20, 1)} MiB` : `${number(bytes / 2 ** 10, 1)} KiB`;
const percent = (part, whole, digits = 1) => `${number((100 * part) / whole, digits)} %`;
const amount = (v) => (timed() ? duration(v) : size(v));

// --- reading the graph --------------------------------------------------------------------------

async function load(times) {
  query = { tokens: $("tokens").value, depth: $("depth").value, times, model };
  const button = $("query").querySelector("button");
  button.disabled = true;
  $("state").textContent = times ? "Measuring" : "Reading the graph";
  try {
    data = await graphData(query);
    drawn = false;
    showAll();
    $("state").textContent = "";
    if (times) announce(timed() ? `One step takes ${duration(data.total_us)}` : "No times");
  } catch (error) {
    $("state").textContent = error.status === 401
      ? "This server needs an API key: enter it in the settings of the conversations."
      : error.message;
    if (data === null) $("title").textContent = "No graph";
  }
  button.disabled = false;
}

function showAll() {
  $("title").textContent = data.title;
  const whole = data.nodes.reduce((sum, node) => sum + value(node), 0);
  showSummary();
  showFamilies(whole);
  showMap();
  showList(whole);
  showDetails(null);
  $("explanation").textContent = timed()
    ? "Each cell is one launch of a kernel, darker for longer. Fused nodes count with the node " +
      "that ends their launch."
    : "Each cell is one node, darker for more bytes of weights. Measure to see times.";
  $("list-title").textContent = timed() ? "Slowest nodes" : "Largest nodes";
  if (!$("drawing").hidden) showDrawing();
}

function showSummary() {
  const layers = new Set(data.nodes.map((node) => node.layer)).size - 1;
  const facts = [
    ["Nodes", number(data.n_nodes)],
    ["Layers", layers],
    ["Intermediate results", size(data.compute_bytes)],
  ];
  if (timed()) {
    facts.unshift(
      ["One step", duration(data.total_us)],
      ["Tokens per second", number((1e6 * data.tokens) / data.total_us)],
      ["Threads", data.threads],
    );
  }
  $("summary").replaceChildren(
    ...facts.map(([name, fact]) => h("div", {}, h("dt", {}, name), h("dd", {}, fact))),
  );
}


function showFamilies(whole) {
  const sums = new Map();
  for (const node of data.nodes) sums.set(node.family, (sums.get(node.family) ?? 0) + value(node));
  const all = [...sums].filter(([, sum]) => sum > 0).sort((a, b) => b[1] - a[1]);
  const shown = all.slice(0, PARTS);
  const rest = all.slice(PARTS).reduce((sum, [, part]) => sum + part, 0);
  if (rest) shown.push(["rest", rest]);
  $("families").hidden = !timed();
  const bar = h("div", { class: "stack", "aria-hidden": "true" });
  const legend = h("ul");
  for (const [i, [name, sum]] of shown.entries()) {
    const part = h("i", { title: name });
    const dot = h("i");
    part.style.width = percent(sum, whole, 3).replace(" ", "");
    part.style.background = dot.style.background = `var(--part-${i})`;
    bar.append(part);
    legend.append(h("li", {}, dot, `${name} `, h("b", {}, percent(sum, whole))));
  }
  $("families").replaceChildren(bar, legend);
}

// --- the heat map -------------------------------------------------------------------------------

const cells = (node) => (timed() ? node.us !== null : true);

function showMap() {
  const layers = new Map();
  const labels = [];
  const nodes = data.nodes.filter(cells);
  const spread = new Map(); // label -> layers that have it
  for (const { label, layer } of nodes) {
    spread.set(label, (spread.get(label) ?? new Set()).add(layer));
  }
  const isCommon = (node) => node.layer !== null && spread.get(node.label).size > 1;
  for (const node of nodes.filter(isCommon)) {
    const row = layers.get(node.layer) ?? new Map();
    layers.set(node.layer, row);
    let label = node.label;
    for (let i = 2; row.has(label); i++) label = `${node.label} ${i}`;
    row.set(label, node);
    if (!labels.includes(label)) labels.push(label);
  }
  const outside = nodes.filter((node) => !isCommon(node) && value(node) > 0);
  const values = [...layers.values()].flatMap((row) => [...row.values()].map(value));
  const most = Math.max(...values, 1e-9);
  const column = (label) => h("th", { scope: "col" }, h("span", {}, label));
  const head = h("tr", {}, h("th", { scope: "col" }, "Layer"), labels.map(column));
  const rows = [...layers].sort((a, b) => a[0] - b[0]).map(([layer, row]) => {
    const shown = labels.map((label) => cell(row.get(label), most));
    return h("tr", {}, h("th", { scope: "row" }, String(layer)), shown);
  });
  $("map").replaceChildren(h("thead", {}, head), h("tbody", {}, rows));
  const first = $("map").querySelector("td[data-i]");
  if (first) first.tabIndex = 0;
  const title = h("span", {}, "Not in every layer");
  const strip = h("div", { class: "outside" }, title, outside.map(chip));
  $("heat").querySelector(".outside")?.remove();
  $("heat").querySelector(".map").after(strip);
}

function chip(node) {
  const name = /^node_\d+$/.test(node.name) ? node.label : node.name;
  const share = timed() ? `, ${percent(node.us, data.total_us)}` : "";
  const text = h("b", {}, `${amount(value(node))}${share}`);
  return h("button", { type: "button", click: () => showDetails(node) }, name, text);
}

function cell(node, most) {
  if (node === undefined) return h("td", { class: "none" });
  const label = `${node.name}, ${amount(value(node))}`;
  const made = h("td", { "data-i": node.i, tabindex: -1, "aria-label": label });
  made.style.setProperty("--heat", Math.sqrt(value(node) / most).toFixed(3));
  return made;
}

function showDetails(node) {
  for (const old of $("map").querySelectorAll(".chosen")) old.classList.remove("chosen");
  if (node === null) {
    const hint = "Choose a cell, or walk with the arrow keys.";
    $("details").replaceChildren(h("p", { class: "note" }, hint));
    return;
  }
  $("map").querySelector(`[data-i="${node.i}"]`)?.classList.add("chosen");
  const { us } = node;
  const facts = [
    us === null ? null : ["Time", `${duration(us)}, ${percent(us, data.total_us, 2)}`],
    ["Operation", node.symbol],
    ["Result", `${node.type} [${node.ne.join(", ")}]`],
    node.bytes ? ["Weights", size(node.bytes)] : null,
    node.bytes && us ? ["Bandwidth", `${number(node.bytes / us / 1000, 1)} GB/s`] : null,
    node.kernels.length ? ["Kernels", node.kernels.join(", ")] : null,
    node.fused.length ? ["Fused into it", node.fused.join(", ")] : null,
    node.fused_into ? ["Fused into", node.fused_into] : null,
  ].filter(Boolean);
  $("details").replaceChildren(
    h("h3", {}, node.name),
    h("dl", {}, facts.flatMap(([name, fact]) => [h("dt", {}, name), h("dd", {}, fact)])),
  );
}

function showList(whole) {
  const groups = new Map(); // nodes of one name in all layers
  for (const node of data.nodes.filter((one) => value(one) > 0)) {
    const group = groups.get(node.label) ?? { sum: 0, nodes: [] };
    group.sum += value(node);
    group.nodes.push(node);
    groups.set(node.label, group);
  }
  const rows = [...groups].sort((a, b) => b[1].sum - a[1].sum).slice(0, LISTED);
  $("list").replaceChildren(
    h("tbody", {}, rows.map(([label, { sum, nodes }]) => {
      const bar = h("i");
      bar.style.width = `${(100 * sum) / rows[0][1].sum}%`;
      const largest = nodes.reduce((a, b) => (value(b) > value(a) ? b : a));
      const choose = () => {
        showDetails(largest);
        $("details").scrollIntoView({ block: "nearest" });
      };
      const count = h("small", {}, nodes.length > 1 ? ` × ${nodes.length}` : "");
      const button = h("button", { type: "button", click: choose }, label);
      return h(
        "tr", {},
        h("th", { scope: "row" }, button, count),
        h("td", { class: "meter", "aria-hidden": "true" }, bar),
        h("td", {}, amount(sum)),
        h("td", {}, percent(sum, whole)),
      );
    })),
  );
}

// --- the drawing --------------------------------------------------------------------------------

// A sandboxed frame without this page's origin: it cannot read what the browser keeps for it.
async function showDrawing() {
  if (drawn) return;
  drawn = true;
  $("state").textContent = "Drawing";
  try {
    $("frame").srcdoc = await graphDrawing(query);
    $("state").textContent = "";
  } catch (error) {
    drawn = false;
    $("state").textContent = error.message;
  }
}

function passTheme() {
  $("frame").contentWindow.postMessage({ dark: isDark() }, "*"); // its origin is opaque
}

function openTab(name) {
  for (const tab of document.querySelectorAll("[role=tab]")) {
    const here = tab.id === `tab-${name}`;
    tab.setAttribute("aria-selected", here);
    tab.tabIndex = here ? 0 : -1;
    $(tab.getAttribute("aria-controls")).hidden = !here;
    if (here) tab.focus();
  }
  if (name === "drawing") showDrawing();
}

function bind() {
  $("frame").addEventListener("load", passTheme);
  addEventListener("theme", passTheme);
  $("query").addEventListener("submit", (event) => {
    event.preventDefault();
    load(1);
  });
  $("tokens").addEventListener("change", () => load(0));
  for (const tab of document.querySelectorAll("[role=tab]")) {
    tab.addEventListener("click", () => openTab(tab.id.slice(4)));
    tab.addEventListener("keydown", (event) => {
      if (event.key !== "ArrowLeft" && event.key !== "ArrowRight") return;
      openTab(tab.id === "tab-heat" ? "drawing" : "heat");
    });
  }
  const map = $("map");
  const nodeOf = (td) => data.nodes.find((node) => node.i === Number(td.dataset.i));
  for (const name of ["pointerover", "focusin", "click"]) {
    map.addEventListener(name, (event) => {
      const td = event.target.closest("td[data-i]");
      if (td) showDetails(nodeOf(td));
    });
  }
  map.addEventListener("keydown", (event) => {
    const td = event.target.closest("td[data-i]");
    if (td === null || STEPS[event.key] === undefined) return;
    event.preventDefault();
    const [down, right] = STEPS[event.key];
    const next = map.rows[td.parentNode.rowIndex + down]?.cells[td.cellIndex + right];
    if (!next?.matches("td[data-i]")) return;
    td.tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  });
}

startTheme();
bind();
load(0).then(() => (document.documentElement.dataset.ready = "1"));
