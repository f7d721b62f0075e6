// Colours and patterns. One meaning each: saturated hues are ranks (owners), muted ones are categories of memory,
// greys are computing, ink is "lit" (the current event), red hatching is waiting. No two meanings share a colour,
// and every rank and category also has a pattern, so that nothing depends on colour alone.

import { drawing } from "./dom.js";

/** @import { Category, Fill, Inks, Look, Paint, Pattern, Theme } from "./types.d.ts" */

/** Okabe and Ito's colours (safe for the common colour blindnesses), eight ranks; a ninth starts over. */
const RANKS = {
  light: ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#a89400", "#5b6270"],
  dark: ["#3d9bd6", "#efb440", "#2fbf97", "#dc96bd", "#7cc8f2", "#ea7f3c", "#d3c13c", "#98a1b0"],
};
/** @type {Pattern[]} */
const RANK_PATTERNS = ["plain", "rising", "falling", "dots", "level", "upright", "cross", "checks"];

/** @type {Record<Theme, Record<Category, string>>} */
// biome-ignore format: a table
const CATEGORY_COLOURS = {
  light: {
    parameters: "#6d4f3b", gradients: "#b7957a", optimizer_state: "#dfcebb",
    communication: "#7f6a9e", activations: "#b5c4b1", other: "#dcdcd8",
  },
  dark: {
    parameters: "#85644d", gradients: "#b08c70", optimizer_state: "#dac8b2",
    communication: "#a48fc6", activations: "#5f7460", other: "#45484b",
  },
};
/** @type {Record<Category, Pattern>} */
// biome-ignore format: a table
const CATEGORY_PATTERNS = {
  parameters: "plain", gradients: "rising", optimizer_state: "dots",
  communication: "falling", activations: "plain", other: "level",
};

/**
 * The share of a unit that a rank holds, from the least to all of it: one hue that is no rank's, by lightness.
 * @type {Record<Theme, [least: string, whole: string]>}
 */
const SHARES = { light: ["#6488ae", "#1b3857"], dark: ["#5b7ea3", "#c4d9ee"] };

/**
 * The order in which memory is stacked: the state at the bottom, where the formula's line can be read against it.
 * @type {Category[]}
 */
export const STACK = ["parameters", "gradients", "optimizer_state", "communication", "activations", "other"];

/** @type {Record<Theme, Inks>} */
// biome-ignore format: a table
const INKS = {
  light: {
    paper: "#ffffff", ink: "#1d2430", muted: "#5d6675", faint: "#8b93a0", hair: "#e3e4e1", hollow: "#c3c8cf",
    lit: "#10141c", wait: "#c23b22", forward: "#aeb4bd", backward: "#6b7380",
    optimizer: "#454c58", onDark: "#ffffff", copy: "#8d97a5", formula: "#c2185b", reduction: "#4f3676",
    ghost: "#f1f2ef",
  },
  dark: {
    paper: "#14171c", ink: "#e9ebee", muted: "#a3abb8", faint: "#7a8391", hair: "#2b3038", hollow: "#4b525d",
    lit: "#ffffff", wait: "#ff7a5c", forward: "#59616c", backward: "#838c99",
    optimizer: "#c3c9d2", onDark: "#14171c", copy: "#7a8492", formula: "#ff6f9f", reduction: "#d7c6f5",
    ghost: "#1f242b",
  },
};

/**
 * What changes where high contrast is asked for: no greys for words, darker frames.
 * @type {Record<Theme, Partial<Inks>>}
 */
// biome-ignore format: a table
const STRONG = {
  light: {
    ink: "#000000", muted: "#000000", faint: "#333333", hair: "#b5b5b5", hollow: "#555555", wait: "#a00000",
    lit: "#000000", forward: "#c4c8ce", backward: "#7d8591", optimizer: "#1d2430", formula: "#a00047",
  },
  dark: {
    paper: "#000000", ink: "#ffffff", muted: "#ffffff", faint: "#cccccc", hair: "#555555", hollow: "#aaaaaa",
    wait: "#ff8f75", lit: "#ffffff", forward: "#4a515b", backward: "#a5adb9", formula: "#ff8fb5",
  },
};

/**
 * How each pattern crosses an 8 by 8 tile: line segments `[x0, y0, x1, y1]`, or discs `[x, y]`.
 * @type {Record<Pattern, number[][]>}
 */
// biome-ignore format: a table
const TILES = {
  plain: [],
  rising: [[-2, 2, 2, -2], [-2, 10, 10, -2], [6, 10, 10, 6]],
  falling: [[-2, 6, 2, 10], [-2, -2, 10, 10], [6, -2, 10, 2]],
  dots: [[2, 2], [6, 6]],
  level: [[0, 2, 8, 2], [0, 6, 8, 6]],
  upright: [[2, 0, 2, 8], [6, 0, 6, 8]],
  cross: [[0, 4, 8, 4], [4, 0, 4, 8]],
  checks: [[1, 2, 3, 2], [5, 6, 7, 6]],
};

/**
 * A pattern as one path of SVG over 16 by 16 pixels, four tiles.
 * @param {Pattern} name
 */
function marks(name) {
  /** @type {(shape: number[], x: number, y: number) => string} */
  const mark = ([x0, y0, x1, y1], x, y) =>
    x1 === undefined
      ? `M${x + x0 - 1} ${y + y0}a1 1 0 1 0 2 0a1 1 0 1 0 -2 0`
      : `M${x + x0} ${y + y0}L${x + x1} ${y + y1}`;
  return [0, 8].flatMap((x) => [0, 8].flatMap((y) => TILES[name].map((shape) => mark(shape, x, y)))).join("");
}

/**
 * How light a colour is, from 0 to 1: the relative luminance of WCAG 2.2.
 * @param {string} colour
 */
function luminance(colour) {
  const [r, g, b] = [1, 3, 5].map((at) => {
    const share = Number.parseInt(colour.slice(at, at + 2), 16) / 255;
    return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

/**
 * The contrast of two colours, from 1 to 21.
 * @param {string} one @param {string} other
 */
export function contrastOf(one, other) {
  const [low, high] = [luminance(one), luminance(other)].sort((a, b) => a - b);
  return (high + 0.05) / (low + 0.05);
}

/** One theme's colours, and its pattern fills, made once per canvas scale. */
export class Palette {
  /** @param {Theme} theme @param {boolean} [contrast] */
  constructor(theme, contrast = false) {
    Object.assign(this, INKS[theme], contrast ? STRONG[theme] : {});
    this.theme = theme;
    this.contrast = contrast;
    /** @type {Map<string, Fill>} */
    this.fills = new Map();
  }

  get communicationColour() {
    return CATEGORY_COLOURS[this.theme].communication;
  }

  /**
   * The colour of words on a bar.
   * @param {string} bar
   */
  on(bar) {
    return contrastOf(this.ink, bar) > contrastOf(this.onDark, bar) ? this.ink : this.onDark;
  }

  /** The colours of bars that have words on them. */
  get bars() {
    const { forward, backward, optimizer, copy, reduction, communicationColour } = this;
    return { forward, backward, optimizer, copy, reduction, communicationColour };
  }

  /** @param {number} rank */
  rankColour(rank) {
    return RANKS[this.theme][rank % 8];
  }

  /**
   * The fill of what `rank` owns.
   * @param {CanvasRenderingContext2D} context @param {number} rank
   */
  rank(context, rank) {
    return this.#pattern(context, this.rankColour(rank), RANK_PATTERNS[rank % 8], this.paper, 0.5);
  }

  /**
   * The fill of a gradient of `rank`'s own batch: pale, in the rank's own pattern.
   * @param {CanvasRenderingContext2D} context @param {number} rank
   */
  local(context, rank) {
    return this.#pattern(context, this.paper, "rising", this.rankColour(rank), 0.75);
  }

  /**
   * The fill of a stale copy, where `owner` has a newer value: its colour very faint, crossed out.
   * @param {CanvasRenderingContext2D} context @param {number} owner
   */
  stale(context, owner) {
    return this.#pattern(context, this.hair, "checks", this.rankColour(owner), 0.9);
  }

  /**
   * The colour of a share of a unit: by its order of magnitude between one of `ranks` parts and all of them.
   * @param {number} share @param {number} ranks
   */
  share(share, ranks) {
    const [least, whole] = SHARES[this.theme];
    const place = Math.min(1, Math.max(0, 1 + Math.log(share) / Math.log(ranks)));
    const channel = (/** @type {number} */ k) => {
      const [from, to] = [least, whole].map((colour) => Number.parseInt(colour.slice(k, k + 2), 16));
      return Math.round(from + place * (to - from));
    };
    return `rgb(${[1, 3, 5].map(channel)})`;
  }

  /**
   * The fill of a category of memory.
   * @param {CanvasRenderingContext2D} context @param {Category} category
   */
  category(context, category) {
    return this.#pattern(context, ...this.#ofCategory(category));
  }

  /**
   * The fill of waiting: red hatching over paper, faint and never a solid colour, because nothing is done.
   * @param {CanvasRenderingContext2D} context
   */
  waiting(context) {
    return this.#pattern(context, ...this.#ofWaiting());
  }

  /**
   * The same two for a legend, as shapes: a category's, or of waiting without one.
   * @param {Category | null} [category]
   * @returns {Look}
   */
  look(category = null) {
    const [colour, name, stroke, strength] = category ? this.#ofCategory(category) : this.#ofWaiting();
    return { colour, marks: marks(name), stroke, strength, solid: name === "dots" };
  }

  /**
   * The look of a value that is not plainly what it should be, for a legend: of rank 0.
   * @param {"local" | "stale"} worth
   * @returns {Look}
   */
  worth(worth) {
    const stroke = this.rankColour(0);
    return worth === "local"
      ? { colour: this.paper, marks: marks("rising"), stroke, strength: 0.75 }
      : { colour: this.hair, marks: marks("checks"), stroke, strength: 0.9 };
  }

  /**
   * @param {Category} category
   * @returns {Paint}
   */
  #ofCategory(category) {
    return [CATEGORY_COLOURS[this.theme][category], CATEGORY_PATTERNS[category], this.ink, 0.28];
  }

  /** @returns {Paint} */
  #ofWaiting() {
    return [this.paper, "rising", this.wait, 0.3];
  }

  /**
   * @param {CanvasRenderingContext2D} context @param {string} colour @param {Pattern} name @param {string} stroke
   * @param {number} strength
   */
  #pattern(context, colour, name, stroke, strength) {
    if (name === "plain") return colour;
    const key = `${colour}:${name}:${stroke}`;
    const fill = this.fills.get(key) ?? this.#tile(context, colour, name, stroke, strength);
    this.fills.set(key, fill);
    return fill;
  }

  /**
   * @param {CanvasRenderingContext2D} context @param {string} colour @param {Pattern} name @param {string} stroke
   * @param {number} strength
   */
  #tile(context, colour, name, stroke, strength) {
    const scale = 2;
    const canvas = document.createElement("canvas");
    canvas.width = 8 * scale;
    canvas.height = 8 * scale;
    const tile = drawing(canvas);
    tile.scale(scale, scale);
    tile.fillStyle = colour;
    tile.fillRect(0, 0, 8, 8);
    tile.globalAlpha = strength;
    tile.strokeStyle = stroke;
    tile.fillStyle = stroke;
    tile.lineWidth = 1.2;
    tile.beginPath();
    for (const [x0, y0, x1, y1] of TILES[name]) {
      if (x1 === undefined) {
        tile.moveTo(x0 + 1, y0);
        tile.arc(x0, y0, 1, 0, 7);
      } else {
        tile.moveTo(x0, y0);
        tile.lineTo(x1, y1);
      }
    }
    if (name === "dots") tile.fill();
    else tile.stroke();
    const pattern = /** @type {CanvasPattern} */ (context.createPattern(canvas, "repeat"));
    pattern.setTransform(new DOMMatrix([1 / scale, 0, 0, 1 / scale, 0, 0]));
    return pattern;
  }
}
