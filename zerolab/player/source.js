// The line of source that caused the current event, lit in the file or the learner's cell it stands in.

import { element, say } from "./dom.js";

/**
 * @import { Model } from "./model.js"
 * @import { Frame, Source } from "./types.d.ts"
 */

const COMMENT = /#.*$/;
const STRING = /"""[\s\S]*?(?:"""|$)|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'/;
const KEYWORDS = [
  "and|as|assert|async|await|break|class|continue|def|del|elif|else|except|finally|for|from|global|if|import|in|is",
  "lambda|None|nonlocal|not|or|pass|raise|return|True|False|try|while|with|yield",
];
const TOKENS = new RegExp(`(${COMMENT.source})|(${STRING.source})|\\b(${KEYWORDS.join("|")})\\b`, "gm");

/**
 * Splits Python source into pieces `[text, class]`; the class is "comment", "string", "keyword" or "".
 * @param {string} text
 */
export function pieces(text) {
  /** @type {[text: string, kind: string][]} */
  const out = [];
  let at = 0;
  for (const match of text.matchAll(TOKENS)) {
    if (match.index > at) out.push([text.slice(at, match.index), ""]);
    out.push([match[0], match[1] ? "comment" : match[2] ? "string" : "keyword"]);
    at = match.index + match[0].length;
  }
  if (at < text.length) out.push([text.slice(at), ""]);
  return out;
}

/**
 * Python source as lines of DOM nodes; everything is set as text, so nothing in it can become markup.
 * @param {string} text
 */
function lines(text) {
  /** @type {(Node | string)[][]} */
  const rows = [[]];
  for (const [piece, kind] of pieces(text)) {
    piece.split("\n").forEach((part, k) => {
      if (k) rows.push([]);
      if (part) rows[rows.length - 1].push(kind ? element("span", { class: `zl-${kind}` }, part) : part);
    });
  }
  return rows;
}

/** Pixels of a line, and of the space above the first, as layout.css sets them: known here, nothing is measured. */
const LINE = 17;
const ABOVE = 6;

/** Lines that are shown or left out together: a file has some hundred lines, and a pane room for twenty. */
const BLOCK = 16;

/** One file or cell, a scroller of its own: showing another one, and coming back, lays out nothing within it. */
class Text {
  /** @param {string} text */
  constructor(text) {
    this.rows = lines(text).map((parts, k) =>
      element("div", { "data-line": k + 1, "data-number": `${k + 1} `.padStart(6) }, ...parts),
    );
    /** @type {HTMLElement[]} */
    this.blocks = [];
    for (let k = 0; k < this.rows.length; k += BLOCK)
      this.blocks.push(element("div", { class: "zl-block zl-far" }, ...this.rows.slice(k, k + BLOCK)));
    // A block that is left out has no size of its own, and the scroll bars must not change as blocks come and go.
    const longest = Math.max(...text.split("\n").map((line) => line.length));
    for (const block of this.blocks)
      Object.assign(block.style, { width: `${longest + 8}ch`, height: `${LINE * block.children.length}px` });
    this.scroller = element("code", { class: "zl-shut" }, ...this.blocks);
    this.scroller.addEventListener("scroll", () => this.reveal(this.scroller.scrollTop, this.scroller.clientHeight), {
      passive: true,
    });
    this.scrolled = 0;
    this.first = Number.NaN;
    this.last = Number.NaN;
    this.reveal(0, 0);
  }

  /**
   * Brings a line into view in a pane `height` pixels high.
   * @param {HTMLElement} row @param {number} height
   */
  bring(row, height) {
    const top = ABOVE + (Number(row.dataset.line) - 1) * LINE;
    const seen = top >= this.scrolled + 40 && top <= this.scrolled + height - 60;
    this.reveal(seen ? this.scrolled : Math.max(0, top - height / 2), height);
    if (!seen) this.scroller.scrollTop = this.scrolled;
  }

  /**
   * Lays out the blocks in view at a place; the others stay in the page, and cost nothing.
   * @param {number} scrolled @param {number} height
   */
  reveal(scrolled, height) {
    this.scrolled = scrolled;
    const first = Math.floor((scrolled - ABOVE - LINE) / (LINE * BLOCK));
    const last = Math.floor((scrolled + height + LINE) / (LINE * BLOCK));
    if (first === this.first && last === this.last) return;
    for (const [k, block] of this.blocks.entries()) block.classList.toggle("zl-far", k < first || k > last);
    this.first = first;
    this.last = last;
  }
}

/** The pane: a heading with the file's name and the text below it. */
export class SourcePane {
  /** @param {HTMLElement} heading @param {HTMLElement} box */
  constructor(heading, box) {
    this.heading = heading;
    this.box = box;
    /** @type {number | null} */
    this.shown = null;
    /** @type {HTMLElement | null} */
    this.lit = null;
    /** @type {Map<number | null, Text>} */
    this.texts = new Map();
    this.height = 200;
  }

  /**
   * Takes in how high the pane is now and brings the lit line into it, and builds the texts ahead while nothing else
   * is to be done.
   * @param {Model} model
   */
  layout(model) {
    this.height = this.box.clientHeight;
    // A player beside another one is narrowed after its first draw.
    if (this.lit) this.texts.get(this.shown)?.bring(this.lit, this.height);
    /** @type {IdleRequestCallback} */
    const ahead = (deadline) => {
      const next = model.payload.sources.findIndex((_, key) => !this.texts.has(key));
      if (next < 0 || !this.box.isConnected) return;
      if (deadline.timeRemaining() > 4 || deadline.didTimeout) this.#text(next, model.payload.sources[next]);
      requestIdleCallback(ahead, { timeout: 1000 });
    };
    window.requestIdleCallback?.(ahead, { timeout: 1000 });
  }

  /** @param {Pick<Frame, "model" | "event">} given */
  draw({ model, event }) {
    const own = event && model.lineOf(event.index);
    const cause = own ?? (event && model.lastLine(event.index));
    if (!cause || cause.source === null) {
      this.#light(null);
      this.#open(null);
      say(this.heading, event ? `no line of source recorded yet on rank ${event.rank}` : "");
      return;
    }
    const source = model.payload.sources[cause.source];
    const note = own ? (own.fromAutograd ? " (from autograd)" : "") : " (last line before it)";
    const text = this.#text(cause.source, source);
    if (this.shown !== cause.source) this.#open(cause.source);
    say(this.heading, `${source.label}:${cause.line}${note}`);
    this.#light(text.rows[cause.line - 1] ?? null);
    if (this.lit) text.bring(this.lit, this.height);
  }

  /**
   * The next event after `index`, and around the end, that a line of the shown source caused; null if none did.
   * @param {Model} model @param {HTMLElement | null} row @param {number} index
   */
  eventOf(model, row, index) {
    if (!row || this.shown === null) return null;
    for (let k = 1; k <= model.count; k++) {
      const i = (index + k) % model.count;
      if (model.columns.source[i] === this.shown + 1 && model.columns.line[i] === Number(row.dataset.line)) return i;
    }
    return null;
  }

  /**
   * Shows the text of source `key` and shuts the one before.
   * @param {number | null} key
   */
  #open(key) {
    const [before, now] = [this.texts.get(this.shown), this.texts.get(key)];
    before?.scroller.classList.add("zl-shut");
    before?.scroller.removeAttribute("tabindex");
    now?.scroller.classList.remove("zl-shut");
    now?.scroller.setAttribute("tabindex", "0");
    this.shown = key;
  }

  /** @param {number} key @param {Source} source */
  #text(key, source) {
    const known = this.texts.get(key);
    if (known) return known;
    // All texts stay in the page, and all but one shut: opening one again is far cheaper than putting it in again.
    const text = new Text(source.text);
    this.texts.set(key, text);
    this.box.append(text.scroller);
    return text;
  }

  /** @param {HTMLElement | null} row */
  #light(row) {
    if (row === this.lit) return;
    this.lit?.classList.remove("zl-lit");
    this.lit = row;
    row?.classList.add("zl-lit");
  }
}
