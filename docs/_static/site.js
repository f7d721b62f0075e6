// The players follow the page's theme. A sandboxed frame cannot see it, so it is told by its address.

const system = window.matchMedia("(prefers-color-scheme: dark)");

/**
 * Tells a frame the page's theme: one that has loaded at once, one that has not through the address that it will load.
 * @param {HTMLIFrameElement} frame
 */
function tell(frame) {
  const own = system.matches ? "dark" : "light";
  const chosen = document.body.dataset.theme;
  const theme = chosen === "light" || chosen === "dark" ? chosen : own;
  // A frame that follows the system does so by itself; a second address would only make it load twice.
  if (theme === own && !frame.dataset.told) return;
  frame.dataset.told = theme;
  const [page, opened] = frame.src.split("#");
  const options = new URLSearchParams(opened);
  options.set("theme", theme);
  const address = `${page}#${options.toString().replace(/=(?=&|$)/g, "")}`;
  // Replaced, not set: a change of theme is no step for the back button.
  if (frame.dataset.loaded) frame.contentWindow?.location.replace(address);
  else frame.src = address;
}

// What the theme leaves out for screen readers and keyboards: levels of headings, names of asides, and the focus
// without which only a mouse could scroll a wide output.
/** @type {(selector: string, change: (found: HTMLElement) => void) => void} */
const each = (selector, change) => {
  /** @type {NodeListOf<HTMLElement>} */
  const found = document.querySelectorAll(selector);
  for (const one of found) change(one);
};
each(".caption[role=heading]", (caption) => caption.setAttribute("aria-level", "2"));
each(".sidebar-drawer", (aside) => aside.setAttribute("aria-label", "All pages"));
each(".toc-drawer", (aside) => aside.setAttribute("aria-label", "On this page"));
each(".cell_output, article pre, .table-wrapper", (box) => {
  if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
});

/** @type {NodeListOf<HTMLIFrameElement>} */
const playerFrames = document.querySelectorAll("iframe.zl-frame");
for (const frame of playerFrames) {
  tell(frame);
  frame.addEventListener("load", () => {
    frame.dataset.loaded = "yes";
  });
}
const tellAll = () => playerFrames.forEach(tell);
new MutationObserver(tellAll).observe(document.body, { attributes: true, attributeFilter: ["data-theme"] });
system.addEventListener("change", tellAll);
