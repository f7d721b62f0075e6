// The players follow the page's theme. A sandboxed frame cannot see it, so it is told by its address.

/** Whether the page is light or dark now. */
function pageTheme() {
  const chosen = document.body.dataset.theme;
  if (chosen === "light" || chosen === "dark") return chosen;
  return window.matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
}

/** Tells a frame the theme: one that has loaded at once, one that has not through the address that it will load. */
function tell(frame) {
  const address = frame.src.replace(/#.*/, "") + `#theme=${pageTheme()}`;
  // Replaced, not set: a change of theme is no step for the back button.
  if (frame.dataset.loaded) frame.contentWindow.location.replace(address);
  else frame.src = address;
}

const frames = document.querySelectorAll("iframe.zl-frame");
for (const frame of frames) {
  tell(frame);
  frame.addEventListener("load", () => { frame.dataset.loaded = "yes"; });
}
const tellAll = () => frames.forEach(tell);
new MutationObserver(tellAll).observe(document.body, { attributes: true, attributeFilter: ["data-theme"] });
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", tellAll);
