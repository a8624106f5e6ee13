// The tokens of an answer, shaded by their probability; hover, focus or touch shows alternatives.
//
// A token is [text, probability, [[text, probability], ...]].

import { $, h } from "./dom.js";

const percent = (p) => (p >= 0.1 ? `${(100 * p).toFixed(0)} %` : `${(100 * p).toFixed(1)} %`);
const SIGNS = { "\n": "⏎", "\t": "⇥", " ": "␣" };
const visible = (text) =>
  text === "" ? "(part of a character)" : text.replace(/[\n\t ]/g, (character) => SIGNS[character]);

// From a chunk's `logprobs.content`.
export function readProbabilities(content) {
  const p = (entry) => Math.round(Math.exp(entry.logprob) * 1e4) / 1e4;
  return content.map((entry) => [
    entry.token,
    p(entry),
    (entry.top_logprobs ?? []).map((other) => [other.token, p(other)]),
  ]);
}

export function probabilitiesView(tokens) {
  const spans = tokens.map(([text, p, top], i) => {
    const others = top.filter(([other]) => other !== text).slice(0, 3)
      .map(([other, q]) => `${visible(other)} ${percent(q)}`);
    const instead = others.length ? `; instead ${others.join(", ")}` : "";
    const label = `${visible(text)}, ${percent(p)}${instead}`;
    const attributes = { class: "token", role: "img", "aria-label": label, tabindex: i ? -1 : 0 };
    const span = h("span", attributes, text);
    span.style.setProperty("--unlikely", (1 - p).toFixed(3));
    return span;
  });
  const name = "Tokens and probabilities. Arrow keys move.";
  const view = h("div", { class: "tokens", role: "group", "aria-label": name }, spans);
  const at = (event) => spans.indexOf(event.target.closest?.(".token"));
  const show = (event) => {
    const i = at(event);
    if (i >= 0) showAlternatives(spans[i], tokens[i]);
  };
  for (const type of ["pointerover", "focusin", "click"]) view.addEventListener(type, show);
  for (const type of ["pointerleave", "focusout"]) view.addEventListener(type, hideAlternatives);
  view.addEventListener("keydown", (event) => {
    const i = at(event);
    const next = {
      ArrowRight: i + 1, ArrowDown: i + 1, ArrowLeft: i - 1, ArrowUp: i - 1, Home: 0,
      End: spans.length - 1,
    }[event.key];
    if (event.key === "Escape") hideAlternatives();
    if (i < 0 || spans[next] === undefined) return;
    event.preventDefault();
    spans[i].tabIndex = -1;
    spans[next].tabIndex = 0;
    spans[next].focus();
  });
  return view;
}

function showAlternatives(span, [text, p, top]) {
  const box = $("alternatives");
  const rows = top.length ? top : [[text, p]];
  if (!rows.some(([other]) => other === text)) rows.push([text, p]);
  box.replaceChildren(
    ...rows.map(([other, q]) => {
      const bar = h("i");
      bar.style.width = percent(q).replace(" ", "");
      return h(
        "div",
        { class: other === text ? "chosen" : null },
        h("code", {}, visible(other)),
        h("span", {}, bar),
        h("b", {}, percent(q)),
      );
    }),
  );
  box.hidden = false;
  const token = span.getClientRects()[0];
  const { width, height } = box.getBoundingClientRect();
  const above = token.top > height + 12;
  box.style.left = `${Math.max(8, Math.min(innerWidth - width - 8, token.left))}px`;
  box.style.top = `${above ? token.top - height - 6 : token.bottom + 6}px`;
}

export function hideAlternatives() {
  $("alternatives").hidden = true;
}
