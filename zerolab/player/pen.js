// A canvas to draw on: sharp at any pixel ratio, with text that is cut to fit and remembers where it stands.

import { drawing } from "./dom.js";

/**
 * @import { Palette } from "./palette.js"
 * @import { Box, Fill, TextStyle } from "./types.d.ts"
 */

const FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif';

/** The canvas of one pane. `labels` lists every text drawn since the last `clear`, so that a test can see overlaps. */
export class Pen {
  /** @param {HTMLCanvasElement} canvas */
  constructor(canvas) {
    this.canvas = canvas;
    this.context = drawing(canvas);
    /** @type {(Box & { text: string })[]} */
    this.labels = [];
    this.width = 0;
    this.height = 0;
    this.scale = 0;
    this.showText = true;
    /** @type {Map<string, number>} */
    this.widths = new Map();
  }

  /**
   * Gives the canvas a size in CSS pixels; true if that changed anything.
   * @param {number} width @param {number} height @param {number} [scale]
   */
  resize(width, height, scale = (window.devicePixelRatio || 1) * (window.zerolabScale ?? 1)) {
    if (width === this.width && height === this.height && scale === this.scale) return false;
    this.width = width;
    this.height = height;
    this.scale = scale;
    this.canvas.width = Math.round(width * scale);
    this.canvas.height = Math.round(height * scale);
    this.canvas.style.width = `${width}px`;
    this.canvas.style.height = `${height}px`;
    this.context.setTransform(scale, 0, 0, scale, 0, 0);
    return true;
  }

  clear() {
    this.context.clearRect(0, 0, this.width, this.height);
    this.labels = [];
  }

  /**
   * Clears a box, and all of the pixels in which its edges lie: of a part of one a trace would be left.
   * @param {Box} box
   */
  wipe({ x, y, width, height }) {
    const { scale } = this;
    const [left, top] = [x, y].map((edge) => Math.floor(edge * scale) / scale);
    const [right, bottom] = [x + width, y + height].map((edge) => Math.ceil(edge * scale) / scale);
    this.context.clearRect(left, top, right - left, bottom - top);
  }

  /** @param {number} x @param {number} y @param {number} width @param {number} height @param {Fill} fill */
  box(x, y, width, height, fill) {
    this.context.fillStyle = fill;
    this.context.fillRect(x, y, width, height);
  }

  /**
   * @param {number} x @param {number} y @param {number} width @param {number} height @param {string} stroke
   * @param {number} [lineWidth] @param {number[]} [dash]
   */
  frame(x, y, width, height, stroke, lineWidth = 1, dash) {
    const { context } = this;
    const [left, top] = [x + lineWidth / 2, y + lineWidth / 2];
    context.strokeStyle = stroke;
    context.lineWidth = lineWidth;
    if (dash) context.setLineDash(dash);
    context.strokeRect(left, top, Math.max(0, width - lineWidth), Math.max(0, height - lineWidth));
    if (dash) context.setLineDash([]);
  }

  /**
   * A filled shape through points, flat: `[x, y, x, y, ...]`.
   * @param {number[]} points @param {Fill} fill
   */
  shape(points, fill) {
    const { context } = this;
    context.fillStyle = fill;
    context.beginPath();
    for (let k = 0; k < points.length; k += 2) context.lineTo(points[k], points[k + 1]);
    context.fill();
  }

  /**
   * @param {number} x0 @param {number} y0 @param {number} x1 @param {number} y1 @param {string} stroke
   * @param {number} [lineWidth] @param {number[]} [dash]
   */
  line(x0, y0, x1, y1, stroke, lineWidth = 1, dash = []) {
    const { context } = this;
    context.strokeStyle = stroke;
    context.lineWidth = lineWidth;
    context.setLineDash(dash);
    context.beginPath();
    context.moveTo(x0, y0);
    context.lineTo(x1, y1);
    context.stroke();
    context.setLineDash([]);
  }

  /**
   * Writes `text` at (x, middle of the line y), cut with an ellipsis to `room` pixels; nothing if not even three
   * letters fit. `align` is "left", "center" or "right". Returns the width that was written.
   * @param {string} text @param {number} x @param {number} y @param {TextStyle} [style]
   */
  text(text, x, y, style = {}) {
    const { colour = "#000000", size = 12, weight = 400, align = "left", room = Infinity } = style;
    const shown = this.#cut(text, { size, weight, room });
    if (!shown) return 0;
    const { context } = this;
    const width = this.#measure(shown, size, weight);
    const left = align === "center" ? x - width / 2 : align === "right" ? x - width : x;
    this.labels.push({ text: shown, x: left, y: y - size * 0.55, width, height: size * 1.1 });
    if (this.showText) {
      context.font = `${weight} ${size}px ${FONT}`;
      context.fillStyle = colour;
      context.textBaseline = "middle";
      context.fillText(shown, left, y + 0.5);
    }
    return width;
  }

  /**
   * How wide a text is, in pixels.
   * @param {string} text @param {TextStyle} style
   */
  widthOf(text, { size = 12, weight = 400 }) {
    return this.#measure(text, size, weight);
  }

  /**
   * Whether a text fits its room uncut.
   * @param {string} text @param {TextStyle} style
   */
  fits(text, { size = 12, weight = 400, room = Infinity }) {
    return this.#measure(text, size, weight) <= room;
  }

  /** @param {string} text @param {Required<Pick<TextStyle, "size" | "weight" | "room">>} style */
  #cut(text, style) {
    if (this.fits(text, style)) return text;
    for (let length = text.length - 1; length >= 3; length--) {
      const shorter = `${text.slice(0, length)}…`;
      if (this.fits(shorter, style)) return shorter;
    }
    return "";
  }

  /**
   * A text's width; remembered, because measuring is the slowest thing a pane does and names come again and again.
   * @param {string} text @param {number} size @param {number} weight
   */
  #measure(text, size, weight) {
    const key = `${weight} ${size} ${text}`;
    const known = this.widths.get(key);
    if (known !== undefined) return known;
    this.context.font = `${weight} ${size}px ${FONT}`;
    if (this.widths.size > 5000) this.widths.clear();
    const { width } = this.context.measureText(text);
    this.widths.set(key, width);
    return width;
  }
}

/**
 * Marks a box as the current event's: framed in ink, and the frame edged with paper so that it shows on any colour.
 * @param {Pen} pen @param {Palette} palette @param {Box} box @param {number} lineWidth
 */
export function ring(pen, palette, { x, y, width, height }, lineWidth) {
  pen.frame(x - 3, y - 3, width + 6, height + 6, palette.paper, lineWidth + 2);
  pen.frame(x - 2, y - 2, width + 4, height + 4, palette.lit, lineWidth);
}
