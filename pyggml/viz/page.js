"use strict";
// The page of pyggml.viz.html: pan, zoom, search, details, folding. No library, no network.
const { nodes, blocks } = JSON.parse(document.getElementById("data").textContent);
const $ = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";
const stage = $("graph");
const boxOf = Array.from(stage.querySelectorAll(".n"));
boxOf.sort((a, b) => a.dataset.n - b.dataset.n);
const groups = blocks.map((_, i) => $(`b${i}`));
const readers = nodes.map(() => []);
nodes.forEach((node, i) => node.src.forEach(([name, s]) => readers[s].push([name, i])));
let selected = -1;

// --- cameras: a group's transform in an svg ---------------------------------------------------
class Camera {
  constructor(svg, camera, bounds) {
    Object.assign(this, { svg, camera, bounds, x: 0, y: 0, k: 1, pointers: new Map() });
    svg.addEventListener("wheel", (e) => {
      e.preventDefault();
      const [x, y] = this.at(e);
      if (e.shiftKey && !e.ctrlKey) this.move(-(e.deltaY || e.deltaX), 0);
      else this.zoom(Math.exp(-e.deltaY * (e.deltaMode ? 0.05 : 0.0016)), x, y);
    }, { passive: false });
    svg.addEventListener("pointerdown", (e) => this.down(e));
    svg.addEventListener("pointermove", (e) => this.drag(e));
    for (const end of ["pointerup", "pointercancel"]) svg.addEventListener(end, (e) => this.up(e));
  }
  at(e) {
    const r = this.svg.getBoundingClientRect();
    return [e.clientX - r.left, e.clientY - r.top];
  }
  down(e) {
    this.pointers.set(e.pointerId, this.at(e));
    this.moved = 0;
  }
  drag(e) {
    const before = this.pointers.get(e.pointerId);
    if (!before) return;
    const now = this.at(e);
    this.moved += Math.hypot(now[0] - before[0], now[1] - before[1]);
    if (this.moved < 4) return;
    if (!this.svg.hasPointerCapture(e.pointerId)) this.svg.setPointerCapture(e.pointerId);
    this.svg.classList.add("moving");
    const other = [...this.pointers].find(([id]) => id !== e.pointerId);
    this.pointers.set(e.pointerId, now);
    if (other) {
      const o = other[1], was = Math.hypot(before[0] - o[0], before[1] - o[1]);
      this.zoom(Math.hypot(now[0] - o[0], now[1] - o[1]) / (was || 1), o[0], o[1]);
    } else this.move(now[0] - before[0], now[1] - before[1]);
  }
  up(e) {
    this.pointers.delete(e.pointerId);
    this.svg.classList.remove("moving");
  }
  show() { this.camera.setAttribute("transform", `translate(${this.x},${this.y}) scale(${this.k})`); }
  move(dx, dy) { this.x += dx; this.y += dy; this.show(); }
  zoom(f, x = this.svg.clientWidth / 2, y = this.svg.clientHeight / 2) {
    const k = Math.min(8, Math.max(0.01, this.k * f));
    this.x = x - (x - this.x) * k / this.k;
    this.y = y - (y - this.y) * k / this.k;
    this.k = k;
    this.show();
  }
  fit(whole = true) {
    const b = this.bounds(), w = this.svg.clientWidth, h = this.svg.clientHeight;
    if (!b.width || !w) return;
    const wide = (w - 32) / b.width, high = (h - 32) / b.height;
    this.k = Math.min(1.4, whole ? Math.min(wide, high) : Math.max(Math.min(wide, 1), high));
    this.x = w / 2 - (b.x + b.width / 2) * this.k;
    this.y = high <= this.k && !whole ? 16 - b.y * this.k : h / 2 - (b.y + b.height / 2) * this.k;
    this.show();
  }
}
// Bounds are known: asking the browser would make it lay everything out before it shows anything.
let height = groups.length ? +groups.at(-1).dataset.y + +groups.at(-1).dataset.h : 0;
let side = Math.max(150, ...blocks.map((b) => Math.max(-b.x0, b.x1)));
const graphView = new Camera(stage, stage.querySelector(".camera"),
  () => ({ x: -side, y: 0, width: 2 * side, height }));
let memoryView = null;
const memorySvg = document.querySelector("#tab-memory svg");
if (memorySvg) {
  const camera = document.createElementNS(SVG, "g");
  camera.append(...memorySvg.childNodes);
  memorySvg.append(camera);
  for (const name of ["width", "height", "viewBox"]) memorySvg.removeAttribute(name);
  memorySvg.setAttribute("tabindex", "0");
  memorySvg.setAttribute("aria-label", "The memory plan: addresses against the order of nodes");
  memoryView = new Camera(memorySvg, camera, () => camera.getBBox());
  memorySvg.addEventListener("click", (e) => {
    const block = e.target.closest("[data-n]");
    if (block && memoryView.moved < 4) select(+block.dataset.n, false);
  });
}
let view = graphView;

// --- folding: a block shrinks to one box, those below move up ----------------------------------
const FOLDED = 46, GAP = 44;
const folded = blocks.map(() => false);
blocks.forEach((block, i) => {
  if (block.layer === null) return;
  const inside = groups[i].querySelector(".inside"), frame = inside.querySelector(".frame");
  const title = inside.querySelector(".title");
  if (!frame) return;
  const handle = document.createElementNS(SVG, "g"), small = document.createElementNS(SVG, "g");
  handle.setAttribute("class", "fold");
  for (const [name, value] of [["tabindex", "0"], ["role", "button"], ["aria-expanded", "true"],
    ["aria-label", title.textContent]]) handle.setAttribute(name, value);
  const hint = document.createElementNS(SVG, "title");
  hint.textContent = "Fold or unfold (double click, Enter)";
  frame.before(handle);
  handle.append(hint, frame, title);
  title.textContent = `▾ ${title.textContent}`;
  small.setAttribute("class", "n folded");
  small.style.display = "none";
  small.setAttribute("tabindex", "0");
  small.setAttribute("role", "button");
  small.setAttribute("aria-expanded", "false");
  const name = title.textContent.slice(2).split(":")[0];
  small.innerHTML = `<rect x="-130" y="0" width="260" height="${FOLDED}" rx="7"/>` +
    '<path d="M-130 3h260"/><text class="name" x="-118" y="19"></text><text x="-118" y="35"></text>';
  const texts = small.querySelectorAll("text");
  texts[0].textContent = `▸ ${name}`;
  texts[1].textContent = block.said;
  const rect = small.querySelector("rect");
  if (block.paint) {
    rect.setAttribute("class", "k");
    rect.style.setProperty("--f", block.paint[0]);
    rect.style.setProperty("--l", block.paint[1]);
  }
  groups[i].append(small);
  const toggle = (e) => { setFolded([i], !folded[i]); e.preventDefault(); e.stopPropagation(); };
  title.addEventListener("click", toggle);
  handle.addEventListener("dblclick", toggle);
  small.addEventListener("click", toggle);
  for (const g of [handle, small]) g.addEventListener("keydown", (e) => {
    if (e.key !== "Enter" && e.key !== " ") return;
    toggle(e);
    (folded[i] ? small : handle).focus();
  });
  block.handle = handle;
  block.small = small;
});
function setFolded(which, on) {
  for (const i of which) if (blocks[i].handle) folded[i] = on;
  let y = 0;
  groups.forEach((g, i) => {
    g.setAttribute("transform", `translate(0,${y})`);
    y += (folded[i] ? FOLDED : +g.dataset.h) + GAP;
    g.querySelector(".inside").style.display = folded[i] ? "none" : "";
    if (blocks[i].small) blocks[i].small.style.display = folded[i] ? "" : "none";
    if (!i) return;
    for (const link of g.querySelectorAll(":scope > .link")) {
      const [from, to] = link.dataset.x.split(" ").map(Number);
      const a = folded[i - 1] ? 0 : from, b = folded[i] ? 0 : to, m = -GAP / 2;
      link.setAttribute("d", `M${a} ${-GAP}C${a} ${m} ${b} ${m} ${b} 0`);
    }
  });
  height = y - GAP;
  side = Math.max(150, ...blocks.map((b, i) => (folded[i] ? 0 : Math.max(-b.x0, b.x1))));
  for (const e of stage.querySelectorAll(".against")) e.style.display = folded.some(Boolean) ? "none" : "";
  $("fold").textContent = folded.some(Boolean) ? "Unfold layers" : "Fold layers";
}
const layerBlocks = blocks.map((b, i) => [b, i]).filter(([b]) => b.handle).map(([, i]) => i);
$("fold").hidden = layerBlocks.length === 0;
$("fold").addEventListener("click", () => {
  setFolded(layerBlocks, !folded.some(Boolean));
  graphView.fit(false);
});

// --- selection and details -------------------------------------------------------------------
function element(tag, text, attributes = {}) {
  const made = document.createElement(tag);
  made.textContent = text;
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}
function links(heading, list, into) {
  if (!list.length) return;
  into.append(element("h3", heading));
  const ul = element("ul", "");
  for (const [name, i] of list) {
    const li = element("li", `${name}: `);
    li.append(element("button", nodes[i].name, { class: "go", "data-n": i }));
    ul.append(li);
  }
  into.append(ul);
}
function details() {
  const pane = $("details");
  pane.replaceChildren();
  if (selected < 0) {
    pane.append(element("h2", "How to read this"));
    for (const text of ["An edge leads from a source to its reader. A box says its name, its place " +
      "in the order of execution, its symbol (X*Y is a matrix product), type and sizes; the first " +
      "size is contiguous.", "Click a box for strides, memory and times. Click a layer’s name to fold it."])
      pane.append(element("p", text));
    const keys = [["/", "search"], ["Enter", "next match"], ["↑ ↓", "to first source, first reader"],
      ["← →", "node before, behind"], ["+ −", "zoom"], ["0", "show everything"],
      ["f", "fold the node’s layer"], ["Shift + arrows", "pan"], ["Esc", "let go"]];
    const dl = element("dl", "");
    for (const [key, what] of keys) {
      const dt = element("dt", "");
      dt.append(element("kbd", key));
      dl.append(dt, element("dd", what));
    }
    pane.append(element("h3", "Keys"), dl);
    return;
  }
  const node = nodes[selected], dl = element("dl", "");
  for (const [name, value] of node.facts) dl.append(element("dt", name), element("dd", value));
  pane.append(element("h2", node.name), dl);
  links("Sources", node.src, pane);
  links("Readers", readers[selected], pane);
  pane.scrollTop = 0;
}
function select(i, reveal = true) {
  for (const e of document.querySelectorAll(".sel,.on,.onr")) e.classList.remove("sel", "on", "onr");
  selected = i;
  details();
  if (i < 0) return;
  boxOf[i].classList.add("sel");
  for (const e of stage.querySelectorAll(`.e[data-s="${i}"]`)) e.classList.add("on");
  for (const e of stage.querySelectorAll(`.e[data-r="${i}"]`)) e.classList.add("onr");
  if (!reveal) return;
  if (folded[nodes[i].block]) setFolded([nodes[i].block], false);
  const r = boxOf[i].getBoundingClientRect(), s = stage.getBoundingClientRect();
  const away = r.left < s.left || r.right > s.right || r.top < s.top || r.bottom > s.bottom;
  if (graphView.k < 0.7) {
    graphView.zoom(0.9 / graphView.k);
    return center(i);
  }
  if (away) center(i);
}
function center(i) {
  const r = boxOf[i].getBoundingClientRect(), s = stage.getBoundingClientRect();
  graphView.move(s.left + s.width / 2 - r.left - r.width / 2, s.top + s.height / 2 - r.top - r.height / 2);
}
stage.addEventListener("click", (e) => {
  if (graphView.moved >= 4) return;
  const box = e.target.closest("[data-n]");
  select(box ? +box.dataset.n : -1, false);
});
document.addEventListener("click", (e) => {
  const go = e.target.closest(".go");
  if (!go) return;
  openTab("graph");
  select(+go.dataset.n);
});

// --- search and legend -----------------------------------------------------------------------
let hits = [], hit = -1;
function mark(found) {
  for (const i of hits) boxOf[i].classList.remove("hit");
  hits = found;
  hit = -1;
  for (const i of hits) boxOf[i].classList.add("hit");
  stage.classList.toggle("dim", hits.length > 0);
}
function search(step = 0) {
  const words = $("search").value.trim().toLowerCase().split(/\s+/).filter(Boolean);
  if (!step) {
    for (const b of document.querySelectorAll(".legend button")) b.setAttribute("aria-pressed", "false");
    const found = [];
    if (words.length) nodes.forEach((n, i) => {
      if (words.every((w) => n.name.toLowerCase().includes(w))) found.push(i);
    });
    mark(found);
    $("found").textContent = words.length ? `${found.length} found` : "";
  } else if (hits.length) {
    hit = (hit + step + hits.length) % hits.length;
    openTab("graph");
    select(hits[hit]);
    $("found").textContent = `${hit + 1} of ${hits.length}`;
  }
}
$("search").addEventListener("input", () => search());
$("search").addEventListener("keydown", (e) => {
  if (e.key === "Enter") search(e.shiftKey ? -1 : 1);
  if (e.key === "Escape") { $("search").value = ""; search(); stage.focus(); }
});
document.querySelector(".legend").addEventListener("click", (e) => {
  const button = e.target.closest("button");
  if (!button) return;
  const on = button.getAttribute("aria-pressed") !== "true";
  $("search").value = "";
  search();
  button.setAttribute("aria-pressed", on);
  const found = nodes.map((n, i) => i).filter((i) => on && nodes[i].look === +button.dataset.k);
  mark(found);
  $("found").textContent = on ? `${found.length} marked` : "";
});

// --- tabs, tools, keys -----------------------------------------------------------------------
function openTab(id) {
  for (const tab of document.querySelectorAll("[role=tab]")) {
    const on = tab.id === `for-${id}`;
    tab.setAttribute("aria-selected", on);
    $(tab.getAttribute("aria-controls")).hidden = !on;
  }
  view = id === "memory" ? memoryView : graphView;
  if (id === "memory" && !memoryView.fitted) { memoryView.fit(); memoryView.fitted = true; }
}
for (const tab of document.querySelectorAll("[role=tab]"))
  tab.addEventListener("click", () => openTab(tab.id.slice(4)));
$("in").addEventListener("click", () => view.zoom(1.3));
$("out").addEventListener("click", () => view.zoom(1 / 1.3));
$("fit").addEventListener("click", () => view.fit());
const dark = (on) => { document.documentElement.dataset.theme = on ? "dark" : "light"; };
dark(matchMedia("(prefers-color-scheme: dark)").matches);
addEventListener("message", (e) => {  // a page that shows this one in a frame
  if (e.source === parent && typeof e.data?.dark === "boolean") dark(e.data.dark);
});
$("theme").addEventListener("click", () => dark(document.documentElement.dataset.theme !== "dark"));
function key(e) {
  const way = { ArrowUp: [0, 60], ArrowDown: [0, -60], ArrowLeft: [60, 0], ArrowRight: [-60, 0] }[e.key];
  if (way && e.shiftKey) return view.move(...way);
  if (way && view === graphView) {
    const next = selected < 0 ? 0 : e.key === "ArrowUp" ? nodes[selected].src[0]?.[1]
      : e.key === "ArrowDown" ? readers[selected][0]?.[1]
      : selected + (e.key === "ArrowLeft" ? -1 : 1);
    return nodes[next] && select(next);
  }
  if (e.key === "+" || e.key === "=") view.zoom(1.3);
  else if (e.key === "-") view.zoom(1 / 1.3);
  else if (e.key === "0") view.fit();
  else if (e.key === "f" && selected >= 0) setFolded([nodes[selected].block], !folded[nodes[selected].block]);
  else if (e.key === "Escape") select(-1);
  else return false;
  return true;
}
document.addEventListener("keydown", (e) => {
  if (e.ctrlKey || e.metaKey || e.altKey || e.target.matches("input")) return;
  if (e.key === "/") { e.preventDefault(); $("search").focus(); }
  else if (key(e) !== false) e.preventDefault();
});
details();
if (stage.dataset.folded === "1") setFolded(layerBlocks, true);
graphView.fit(false);
addEventListener("load", () => {
  document.documentElement.dataset.ready = Math.round(performance.now());
});
