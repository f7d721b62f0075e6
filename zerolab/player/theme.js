// Light or dark: as chosen in the player, else as in the surrounding page, else as the system prefers; light on paper.

/** @import { Player } from "./player.js" */

/** The theme of the surrounding page: JupyterLab's and VS Code's marks on the body, else the system's preference. */
export function surroundingTheme() {
  const { body } = document;
  const lab = body.dataset.jpThemeLight;
  if (lab !== undefined) return lab === "true" ? "light" : "dark";
  if (body.classList.contains("vscode-dark")) return "dark";
  if (body.classList.contains("vscode-high-contrast"))
    return body.classList.contains("vscode-high-contrast-light") ? "light" : "dark";
  if (body.classList.contains("vscode-light")) return "light";
  return window.matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
}

/** What asks for high contrast; a player on a page of forced colours draws in its own, the strongest that it has. */
const CONTRAST = "(prefers-contrast: more), (forced-colors: active)";

/** Whether the system or VS Code asks for high contrast. */
export function contrast() {
  return document.body.className.includes("vscode-high-contrast") || window.matchMedia(CONTRAST).matches;
}

/** Pixels across a sheet of A4 between margins of a centimetre: a page is not told how wide its paper is. */
const PAPER = "718px";

/**
 * Has a player follow what is around it, and lie on paper as on a light page of its width; returns what ends that.
 * @param {Player} player
 */
export function watchTheme(player) {
  const changed = () => player.setTheme(player.chosenTheme);
  /** @type {Element | null} */
  let pair = null;
  const print = (/** @type {Event} */ { type }) => {
    player.printed = type === "beforeprint";
    pair ??= player.root.closest(".zl-pair"); // on paper they are one below the other
    pair?.classList.toggle("zl-pair", !player.printed);
    player.root.style.width = player.printed ? PAPER : "";
    changed();
  };
  const observer = new MutationObserver(changed);
  observer.observe(document.body, { attributes: true, attributeFilter: ["class", "data-jp-theme-light"] });
  const asked = ["(prefers-color-scheme: dark)", CONTRAST].map((query) => window.matchMedia(query));
  for (const query of asked) query.addEventListener("change", changed);
  for (const one of ["beforeprint", "afterprint"]) window.addEventListener(one, print);
  return () => {
    observer.disconnect();
    for (const query of asked) query.removeEventListener("change", changed);
    for (const one of ["beforeprint", "afterprint"]) window.removeEventListener(one, print);
  };
}
