// Builds and finds elements. No string is ever parsed as HTML on these pages.

export const $ = (id) => document.getElementById(id);

// An element with attributes (functions are listeners of an event) and children: nodes or text.
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name, value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) {
      element.setAttribute(name, value);
    }
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

const SVG = "http://www.w3.org/2000/svg";

export function icon(name) {
  const svg = document.createElementNS(SVG, "svg");
  const use = document.createElementNS(SVG, "use");
  use.setAttribute("href", `page/icons.svg#${name}`);
  svg.setAttribute("aria-hidden", "true");
  svg.append(use);
  return svg;
}

export function iconButton(name, label, click, attributes = {}) {
  return h(
    "button",
    { type: "button", class: "icon", "aria-label": label, title: label, click, ...attributes },
    icon(name),
  );
}

// Shows a short message; with an action, also its button.
let toastTimer = 0;
export function toast(text, action = null) {
  const box = $("toast");
  const close = () => {
    clearTimeout(toastTimer);
    box.replaceChildren();
  };
  close();
  box.append(h("span", {}, text));
  if (action !== null) {
    const run = () => {
      close();
      action.run();
    };
    box.append(h("button", { type: "button", click: run }, action.label));
  }
  toastTimer = setTimeout(close, action === null ? 4000 : 9000);
}

// Adds a line for screen readers.
export function announce(text) {
  const log = $("announcer");
  while (log.childElementCount > 40) log.firstElementChild.remove();
  log.append(h("p", {}, text));
}

// navigator.clipboard exists only over HTTPS and on localhost.
export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = h("textarea", { class: "hidden", readonly: true });
    const focused = document.activeElement;
    area.value = text;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    focused?.focus();
    return done;
  }
}

export function copyButton(label, text) {
  const button = iconButton("copy", label, async () => {
    const done = await copyText(text());
    button.replaceChildren(icon(done ? "check" : "close"));
    announce(done ? "Copied" : "Could not copy");
    setTimeout(() => button.replaceChildren(icon("copy")), 1600);
  });
  return button;
}

export function saveFile(name, text) {
  const url = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  h("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}

export const number = (value, digits = 0) =>
  value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });

// 12,300 as 12.3k
export const short = (value) =>
  value < 10000 ? String(value)
    : value < 1e6 ? `${(value / 1e3).toFixed(value < 1e5 ? 1 : 0)}k`
    : value < 1e9 ? `${(value / 1e6).toFixed(1)}M` : `${(value / 1e9).toFixed(1)}B`;
