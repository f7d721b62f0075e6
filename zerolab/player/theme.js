// Light or dark: as chosen in the player, else as in the surrounding page, else as the system prefers.

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

/** Whether the system or VS Code asks for high contrast. */
export function contrast() {
  return (
    document.body.className.includes("vscode-high-contrast") || window.matchMedia("(prefers-contrast: more)").matches
  );
}

/**
 * Calls `changed` whenever the surrounding theme may have changed; returns a function that stops it.
 * @param {() => void} changed
 */
export function watchTheme(changed) {
  const observer = new MutationObserver(changed);
  observer.observe(document.body, { attributes: true, attributeFilter: ["class", "data-jp-theme-light"] });
  const asked = ["(prefers-color-scheme: dark)", "(prefers-contrast: more)"].map((query) => window.matchMedia(query));
  for (const query of asked) query.addEventListener("change", changed);
  return () => {
    observer.disconnect();
    for (const query of asked) query.removeEventListener("change", changed);
  };
}
