// The line of source that caused the current event, lit in the file or the learner's cell it stands in.

import { element, say } from "./dom.js";

const TOKENS =
  /(#.*$)|("""[\s\S]*?(?:"""|$)|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')|\b(and|as|assert|async|await|break|class|continue|def|del|elif|else|except|finally|for|from|global|if|import|in|is|lambda|None|nonlocal|not|or|pass|raise|return|True|False|try|while|with|yield)\b/gm;

/** Splits Python source into pieces `[text, class]`; the class is "comment", "string", "keyword" or "". */
export function pieces(text) {
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

/** Python source as lines of DOM nodes; everything is set as text, so nothing in it can become markup. */
function lines(text) {
  const rows = [[]];
  for (const [piece, kind] of pieces(text)) {
    piece.split("\n").forEach((part, k) => {
      if (k) rows.push([]);
      if (part) rows.at(-1).push(kind ? element("span", { class: `zl-${kind}` }, part) : part);
    });
  }
  return rows;
}

/** Pixels of a line, and of the space above the first, as layout.css sets them: known here, nothing need be measured. */
const LINE = 17;
const ABOVE = 6;

/** Lines that are shown or left out together: a file has some hundred lines, and a pane room for twenty. */
const BLOCK = 16;

/** One file or cell, a scroller of its own: showing another one, and coming back, moves and lays out nothing within it. */
class Text {
  constructor(text) {
    this.rows = lines(text).map((parts, k) =>
      element("div", { "data-line": k + 1, "data-number": `${k + 1} `.padStart(6) }, ...parts),
    );
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
    this.reveal(0, 0);
  }

  /** Brings a line into view in a pane `height` pixels high. */
  bring(row, height) {
    const top = ABOVE + (Number(row.dataset.line) - 1) * LINE;
    const seen = top >= this.scrolled + 40 && top <= this.scrolled + height - 60;
    this.reveal(seen ? this.scrolled : Math.max(0, top - height / 2), height);
    if (!seen) this.scroller.scrollTop = this.scrolled;
  }

  /** Lays out the blocks in view at a place; the others stay in the page, and cost nothing. */
  reveal(scrolled, height) {
    this.scrolled = scrolled;
    const first = Math.floor((scrolled - ABOVE - LINE) / (LINE * BLOCK));
    const last = Math.floor((scrolled + height + LINE) / (LINE * BLOCK));
    if (first === this.first && last === this.last) return;
    this.blocks.forEach((block, k) => block.classList.toggle("zl-far", k < first || k > last));
    Object.assign(this, { first, last });
  }
}

/** The pane: a heading with the file's name and the text below it. */
export class SourcePane {
  constructor(heading, box) {
    Object.assign(this, { heading, box, shown: null, lit: null, texts: new Map(), height: 200 });
  }

  /** Takes in how high the pane is now and brings the lit line into it, and builds the texts ahead while nothing else is to be done. */
  layout(model) {
    this.height = this.box.clientHeight;
    if (this.lit) this.texts.get(this.shown).bring(this.lit, this.height); // a player beside another one is narrowed after its first draw
    const ahead = (deadline) => {
      const next = model.payload.sources.findIndex((_, key) => !this.texts.has(key));
      if (next < 0 || !this.box.isConnected) return;
      if (deadline.timeRemaining() > 4 || deadline.didTimeout) this.#text(next, model.payload.sources[next]);
      requestIdleCallback(ahead, { timeout: 1000 });
    };
    window.requestIdleCallback?.(ahead, { timeout: 1000 });
  }

  draw({ model, event }) {
    const own = event && model.lineOf(event.index);
    const cause = own ?? (event && model.lastLine(event.index));
    if (!cause) {
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

  /** The next event after `index`, and around the end, that a line of the shown source caused; null if none did. */
  eventOf(model, row, index) {
    if (!row || this.shown === null) return null;
    for (let k = 1; k <= model.count; k++) {
      const i = (index + k) % model.count;
      if (model.columns.source[i] === this.shown + 1 && model.columns.line[i] === Number(row.dataset.line)) return i;
    }
    return null;
  }

  /** Shows the text of source `key` and shuts the one before. */
  #open(key) {
    const [before, now] = [this.texts.get(this.shown), this.texts.get(key)];
    before?.scroller.classList.add("zl-shut");
    before?.scroller.removeAttribute("tabindex");
    now?.scroller.classList.remove("zl-shut");
    now?.scroller.setAttribute("tabindex", 0);
    this.shown = key;
  }

  #text(key, source) {
    if (!this.texts.has(key)) {
      // All texts stay in the page, and all but one shut: opening one again is far cheaper than putting it in again.
      this.texts.set(key, new Text(source.text));
      this.box.append(this.texts.get(key).scroller);
    }
    return this.texts.get(key);
  }

  #light(row) {
    if (row === this.lit) return;
    this.lit?.classList.remove("zl-lit");
    this.lit = row;
    row?.classList.add("zl-lit");
  }
}
