// Numbers as words: one place decides how a figure is written, so that every pane writes it the same way.

/** Units, largest first, and how many of the smallest each has; what rounds to 1,000 of one is 1 of the next. */
const BYTES = /** @type {const} */ ([
  ["TB", 1e12],
  ["GB", 1e9],
  ["MB", 1e6],
  ["kB", 1e3],
]);
const ROUNDS_UP = 0.9995;
const SECONDS = /** @type {const} */ ([
  ["s", 1e9],
  ["ms", 1e6],
  ["µs", 1e3],
]);

/**
 * An integer with thousands separators: 12352 -> "12,352".
 * @param {number} number
 */
export function exact(number) {
  return String(Math.round(number)).replace(/\B(?=(\d{3})+(?!\d))/g, ",");
}

/**
 * A text of the recording with thousands separators in its bytes: "212400 bytes existed" -> "212,400 bytes existed".
 * @param {string} text
 */
export function readableBytes(text) {
  return text.replace(/(?<!\S)\d+(?= bytes?\b)/g, (digits) => exact(Number(digits)));
}

/**
 * Three significant digits without an exponent: 1.8432 -> "1.84", 184.32 -> "184".
 * @param {number} value
 */
function three(value) {
  return value >= 99.95 ? value.toFixed(0) : value >= 9.995 ? value.toFixed(1) : value.toFixed(2);
}

/**
 * Bytes in decimal units (GB is 1e9): 1234567 -> "1.23 MB". Below 1,000 the exact number.
 * @param {number} number
 */
export function bytes(number) {
  for (const [name, size] of BYTES) if (number >= ROUNDS_UP * size) return `${three(number / size)} ${name}`;
  return `${exact(number)} B`;
}

/**
 * A duration in nanoseconds: 312000 -> "312 µs".
 * @param {number} ns
 */
export function duration(ns) {
  for (const [name, size] of SECONDS) if (ns >= ROUNDS_UP * size) return `${three(ns / size)} ${name}`;
  return `${Math.round(ns)} ns`;
}

/**
 * A time among others that are `step` nanoseconds apart, to that step and without needless decimals: "3.22 ms".
 * @param {number} ns @param {number} step
 */
export function toTheStep(ns, step) {
  const [name, size] = SECONDS.find(([, size]) => ns >= size) ?? ["ns", 1];
  const decimals = Math.max(0, Math.ceil(-Math.log10(step / size)));
  return `${Number((ns / size).toFixed(decimals))} ${name}`;
}

/**
 * "1 rank", "4 ranks".
 * @param {number} number @param {string} word
 */
export function count(number, word) {
  return `${exact(number)} ${word}${number === 1 ? "" : "s"}`;
}

/**
 * The last part of a dotted name: "encoder.blocks.3" -> "3"; other names stay.
 * @param {string} name
 */
export function tail(name) {
  return name.slice(name.lastIndexOf(".") + 1) || name;
}

/**
 * A category or an operation in plain words: "optimizer_state" -> "optimizer state".
 * @param {string} name
 */
export function words(name) {
  return name.replaceAll("_", " ");
}

/**
 * "blocks.1's", but "blocks.1 matrices'".
 * @param {string} name
 */
export function possessive(name) {
  return name.endsWith("s") ? `${name}'` : `${name}'s`;
}

/**
 * A unit's name within a sentence, where "2", as nn.Sequential has it, would be read as a number: "unit 2".
 * @template {string | null} Name
 * @param {Name} name
 */
export function spoken(name) {
  return name && /^\d/.test(name) ? `unit ${name}` : name;
}

/**
 * Sentences in which a spoken unit may come first: "Unit 2 was freed".
 * @param {string} text
 */
export function atStart(text) {
  return text.replace(/(^|\. )unit (?=\d)/g, "$1Unit ");
}

/** @param {string} text */
export function capital(text) {
  return text[0].toUpperCase() + text.slice(1);
}
