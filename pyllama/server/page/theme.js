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

const system = matchMedia("(prefers-color-scheme: dark)");

export function isDark() {
  const theme = chosenTheme();
  return theme === "system" ? system.matches : theme === "dark";
}

export function applyTheme() {
  const theme = chosenTheme();
  document.documentElement.dataset.theme = theme;
  const button = $("toggle-theme");
  button.setAttribute("aria-label", `Theme: ${theme}`);
  button.title = `Theme: ${theme}`;
  dispatchEvent(new Event("theme"));
}

export function startTheme() {
  applyTheme();
  $("toggle-theme").addEventListener("click", () => {
    setTheme(THEMES[(THEMES.indexOf(chosenTheme()) + 1) % THEMES.length]);
    announce(`Theme: ${chosenTheme()}`);
  });
  system.addEventListener("change", applyTheme);
  addEventListener("storage", (event) => event.key === "theme" && applyTheme());
}
