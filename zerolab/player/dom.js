// Building and finding the player's elements. Text is always set as text, never parsed as HTML.

/** @import { Attributes, Look } from "./types.d.ts" */

/**
 * `element("button", { class: "zl-play", title: "Play" }, ...children)`; a child may be a string.
 * @template {keyof HTMLElementTagNameMap} Name
 * @param {Name} name @param {Attributes} [attributes] @param {...(Node | string)} children
 * @returns {HTMLElementTagNameMap[Name]}
 */
export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) if (value !== null) made.setAttribute(key, String(value));
  made.append(...children);
  return made;
}

/**
 * The context in which a canvas is drawn on, which every browser has.
 * @param {HTMLCanvasElement} canvas
 */
export function drawing(canvas) {
  return /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
}

/** The magnifying glass of both zooms. */
const LENS = "m0 1.7a3.8 3.8 0 1 1 0 7.6 3.8 3.8 0 0 1 0-7.6z";
const GLASS = `M7.5 2a5.5 5.5 0 1 0 3.2 10l3.9 3.9 1.3-1.3-3.9-3.9A5.5 5.5 0 0 0 7.5 2z${LENS}`;

const ICONS = {
  play: "M5 3.2v11.6L14.5 9z",
  pause: "M4.5 3h3.2v12H4.5zM10.3 3h3.2v12h-3.2z",
  funnel: "M2.5 3h13l-5 6.4V15l-3-1.6V9.4z",
  zoomIn: `${GLASS}M6.7 5.2v1.5H5.2v1.6h1.5v1.5h1.6V8.3h1.5V6.7H8.3V5.2z`,
  zoomOut: `${GLASS}M5.2 6.7v1.6h4.6V6.7z`,
  next: "M4 3.4 11.2 9 4 14.6zM11.8 3.4H14v11.2h-2.2z",
  previous: "M14 3.4 6.8 9l7.2 5.6zM4 3.4h2.2v11.2H4z",
  nextPhase: "M2 3.4 8.5 9 2 14.6zM8.5 3.4 15 9l-6.5 5.6zM15 3.4h1.6v11.2H15z",
  previousPhase: "M16 3.4 9.5 9l6.5 5.6zM9.5 3.4 3 9l6.5 5.6zM1.4 3.4H3v11.2H1.4z",
};

/**
 * As `element`, of SVG.
 * @param {string} name @param {Attributes} attributes @param {...Node} children
 */
function vector(name, attributes, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, String(value));
  made.append(...children);
  return made;
}

/**
 * An icon of 18 by 18 pixels, drawn in the text's colour.
 * @param {keyof typeof ICONS} name
 */
export function icon(name) {
  return vector(
    "svg",
    { viewBox: "0 0 18 18", width: 18, height: 18, "aria-hidden": "true" },
    vector("path", { d: ICONS[name], fill: "currentColor" }),
  );
}

/**
 * A button that shows a text or an icon; its title is its name, unless `more` says that its text is.
 * @param {string | null} title @param {Node | string} shown @param {() => void} action @param {Attributes} [more]
 */
export function button(title, shown, action, more = {}) {
  const made = element("button", { type: "button", title, "aria-label": title, ...more }, shown);
  made.addEventListener("click", action);
  return made;
}

/**
 * A pane: a section with a heading, a place for a legend, and its body.
 * @param {string} name @param {string} title @param {...Node} body
 */
export function pane(name, title, ...body) {
  const heading = element("h3", {}, title);
  const legend = element("div", { class: "zl-legend" });
  const section = element(
    "section",
    { class: `zl-pane zl-${name}`, "data-pane": name, "aria-label": title },
    element("header", {}, heading, legend),
    ...body,
  );
  return { section, heading, legend };
}

/**
 * Two canvases on top of each other: what stays, and what moves with the cursor.
 * @param {string} label
 */
export function layers(label) {
  const still = element("canvas", { role: "img", "aria-label": label });
  const moving = element("canvas", { class: "zl-over", "aria-hidden": "true" });
  return { still, moving, box: element("div", { class: "zl-layers" }, still, moving) };
}

/**
 * One entry of a legend for a line that stands dashed in the picture.
 * @param {string} text @param {string} colour
 */
export function dashed(text, colour) {
  return key(text, vector("path", { d: "M0 5H13", stroke: colour, "stroke-width": 1.5, "stroke-dasharray": "4 2" }));
}

/**
 * One entry of a legend, filled: `look` is `{ colour, marks, stroke, strength, solid }` as the palette gives it.
 * @param {string} text @param {Look} given
 */
export function swatch(text, { colour, marks = "", stroke = "none", strength = 1, solid = false }) {
  const paint = { [solid ? "fill" : "stroke"]: stroke, "stroke-width": 1.2, opacity: strength };
  return key(text, vector("path", { d: "M0 0H13V10H0Z", fill: colour }), vector("path", { d: marks, ...paint }));
}

/**
 * One entry of a legend, empty within its frame.
 * @param {string} text @param {string} colour @param {string} [dash]
 */
export function framed(text, colour, dash = "none") {
  return key(
    text,
    vector("rect", {
      x: 0.5,
      y: 0.5,
      width: 12,
      height: 9,
      fill: "none",
      stroke: colour,
      "stroke-width": dash === "none" ? 1 : 2,
      "stroke-dasharray": dash,
    }),
  );
}

/**
 * A small picture and its meaning in words. Not a canvas: the browser would composite each one again with every frame.
 * @param {string} text @param {...Node} shapes
 */
function key(text, ...shapes) {
  return element(
    "span",
    { class: "zl-key" },
    vector("svg", { viewBox: "0 0 13 10", width: 13, height: 10, "aria-hidden": "true" }, ...shapes),
    text,
  );
}

/**
 * Makes `text` what an element says; writing the same again would still cost a layout.
 * @param {HTMLElement} target @param {string} text
 */
export function say(target, text) {
  if (target.textContent !== text) target.textContent = text;
}

/**
 * Calls `action` once the browser has nothing to draw, within a second; Safari has no such moments, and does it next.
 * @param {() => void} action
 */
export function whenIdle(action) {
  if (window.requestIdleCallback) window.requestIdleCallback(action, { timeout: 1000 });
  else setTimeout(action, 0);
}
