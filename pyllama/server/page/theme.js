// The colour scheme: the system's, or the one chosen here, kept in this browser.

import { $, announce } from "./dom.js";

const THEMES = ["system", "light", "dark"];

export function chosenTheme() {
  const kept = localStorage.getItem("theme");
  return THEMES.includes(kept) ? kept : "system";
}

export function setTheme(theme) {
  localStorage.setItem("theme", theme);
  applyTheme();
}

export function applyTheme() {
  const theme = chosenTheme();
  document.documentElement.dataset.theme = theme;
  const button = $("toggle-theme");
  button.setAttribute("aria-label", `Theme: ${theme}`);
  button.title = `Theme: ${theme}`;
}

export function startTheme() {
  applyTheme();
  $("toggle-theme").addEventListener("click", () => {
    setTheme(THEMES[(THEMES.indexOf(chosenTheme()) + 1) % THEMES.length]);
    announce(`Theme: ${chosenTheme()}`);
  });
  addEventListener("storage", (event) => event.key === "theme" && applyTheme());
}
