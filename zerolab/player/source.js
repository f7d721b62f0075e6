// The line of source that caused the current event, lit in the file or the learner's cell it stands in.

const TOKENS = /(#.*$)|("""[\s\S]*?(?:"""|$)|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')|\b(and|as|assert|async|await|break|class|continue|def|del|elif|else|except|finally|for|from|global|if|import|in|is|lambda|None|nonlocal|not|or|pass|raise|return|True|False|try|while|with|yield)\b/gm;

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
      if (!part) return;
      const span = document.createElement("span");
      span.textContent = part;
      if (kind) span.className = `zl-${kind}`;
      rows.at(-1).push(span);
    });
  }
  return rows;
}

/** Pixels of a line, and of the space above the first, as layout.css sets them: known here, nothing need be measured. */
const LINE = 17;
const ABOVE = 6;

/** The pane: a heading with the file's name and the text below it. */
export class SourcePane {
  constructor(heading, box) {
    Object.assign(this, { heading, box, shown: null, lit: null, texts: new Map(), scrolled: 0, height: 200 });
    box.addEventListener("scroll", () => { this.scrolled = box.scrollTop; }, { passive: true });
  }

  /** Takes in how high the pane is now, and builds the texts ahead while nothing else is to be done. */
  layout(model) {
    const { height } = this;
    this.height = this.box.clientHeight;
    if (height !== this.height && this.lit) this.#bring(this.lit); // a player beside another one is narrowed after its first draw
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
      this.#shut();
      this.#head(event ? `no line of source recorded yet on rank ${event.rank}` : "", "");
      return;
    }
    const source = model.payload.sources[cause.source];
    this.#show(cause.source, source);
    this.#head(`${source.label}:${cause.line}`, own ? (own.fromAutograd ? "from autograd" : "") : "last line before it");
    this.#light(this.texts.get(cause.source).children[cause.line - 1] ?? null);
  }

  /** Shows no text. */
  #shut() {
    this.#light(null);
    this.texts.get(this.shown)?.classList.add("zl-shut");
    this.shown = null;
  }

  #head(label, note) {
    const text = note ? `${label} (${note})` : label;
    if (this.heading.textContent !== text) this.heading.textContent = text;
  }

  #show(key, source) {
    if (this.shown === key) return;
    const text = this.#text(key, source);
    this.#light(null);
    for (const other of this.texts.values()) other.classList.toggle("zl-shut", other !== text);
    this.shown = key;
    this.scrolled = -Infinity; // another text: wherever it stands, its line is brought into view
  }

  #text(key, source) {
    if (!this.texts.has(key)) {
      // All texts stay in the page, and all but one shut: opening one again is far cheaper than putting it in again.
      this.texts.set(key, this.#build(source.text));
      this.texts.get(key).classList.add("zl-shut");
      this.box.append(this.texts.get(key));
    }
    return this.texts.get(key);
  }

  #build(text) {
    const code = document.createElement("code");
    lines(text).forEach((spans, k) => {
      const row = document.createElement("div");
      row.dataset.line = String(k + 1);
      row.append(...spans);
      code.append(row);
    });
    return code;
  }

  #light(row) {
    if (row === this.lit) return;
    this.lit?.classList.remove("zl-lit");
    this.lit = row;
    if (!row) return;
    row.classList.add("zl-lit");
    this.#bring(row);
  }

  /** Scrolls so that a line stands well within the pane; not at all where it does already. */
  #bring(row) {
    const top = ABOVE + (Number(row.dataset.line) - 1) * LINE;
    if (top >= this.scrolled + 40 && top <= this.scrolled + this.height - 60) return;
    this.box.scrollTop = this.scrolled = Math.max(0, top - this.height / 2);
  }
}
