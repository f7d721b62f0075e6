// The names of units above their columns, shortened where columns are narrow.

import { tail } from "./format.js";

/**
 * @import { Ownership } from "./ownership.js"
 * @import { Palette } from "./palette.js"
 * @import { TextStyle, UnitPlace } from "./types.d.ts"
 */

/** @param {Ownership} pane @param {Palette} palette @param {string[]} lit the units that are told of now */
export function unitNames(pane, palette, lit) {
  const fitting = pane.places.filter(({ unit, width }) => pane.over.fits(tail(unit.name), { room: width }));
  if (2 * fitting.length < pane.places.length) someNames(pane, palette, lit[0]);
  else for (const place of pane.places) oneName(pane, palette, place, lit.includes(place.unit.name));
  shortened(pane, palette);
  if (!pane.places.length) {
    const style = { colour: palette.muted, size: 12 };
    pane.over.text("This recording says nothing about who holds which unit.", pane.gutter.left, 9, style);
  }
}

/** @param {Ownership} pane @param {Palette} palette @param {UnitPlace} given @param {boolean} now */
function oneName(pane, palette, { unit, x, width }, now) {
  /** @type {TextStyle} */
  const bold = { colour: now ? palette.ink : palette.muted, weight: now ? 700 : 400, align: "center", room: width };
  // In a narrow column the current unit gives up its bold type rather than the name that all the others have.
  const plain = { ...bold, weight: 400 };
  const style = !pane.over.fits(unit.name, bold) && pane.over.fits(unit.name, plain) ? plain : bold;
  pane.over.text(pane.over.fits(unit.name, style) ? unit.name : tail(unit.name), x + width / 2, 9, style);
}

/**
 * Where most columns are narrower than their numbers: every 5th, 10th or 20th number, and the current unit's name.
 * @param {Ownership} pane @param {Palette} palette @param {string} [lit]
 */
function someNames(pane, palette, lit) {
  const { over, places } = pane;
  /** @type {TextStyle} */
  const style = { colour: palette.muted, align: "center" };
  const numbers = places.filter(({ unit }) => Number.isInteger(Number(tail(unit.name))));
  const widest = Math.max(0, ...numbers.map(({ unit }) => over.widthOf(tail(unit.name), style))) + 6;
  const pitch = numbers.length > 1 ? (numbers[numbers.length - 1].x - numbers[0].x) / (numbers.length - 1) : widest;
  const every = [1, 2, 5, 10, 20, 50].find((count) => count * pitch >= widest) ?? 100;
  const now = places.find(({ unit }) => lit === unit.name);
  const room = over.width - pane.gutter.left;
  const half = now ? Math.min(room, over.widthOf(now.unit.name, { weight: 700 })) / 2 : 0;
  const centre = now ? now.x + now.width / 2 : 0;
  const middle = Math.max(pane.gutter.left + half, Math.min(over.width - half, centre));
  if (now) over.text(now.unit.name, middle, 9, { colour: palette.ink, weight: 700, align: "center", room });
  for (const { unit, x, width } of numbers) {
    const at = x + width / 2;
    const free = !now || Math.abs(at - middle) > half + widest / 2;
    if (Number(tail(unit.name)) % every === 0 && free) over.text(tail(unit.name), at, 9, style);
  }
}

/**
 * Where columns are too narrow for "blocks.12" and say "12", the gutter says "blocks." once.
 * @param {Ownership} pane @param {Palette} palette
 */
function shortened(pane, palette) {
  const short = pane.places.filter(
    ({ unit, width }) => tail(unit.name) !== unit.name && !pane.over.fits(unit.name, { room: width }),
  );
  if (!short.some(({ unit, width }) => short.length > 20 || pane.over.fits(tail(unit.name), { room: width }))) return;
  const heads = new Set(short.map(({ unit }) => unit.name.slice(0, -tail(unit.name).length)));
  if (heads.size !== 1) return;
  pane.over.text([...heads][0], pane.gutter.left - 10, 9, {
    colour: palette.muted,
    align: "right",
    room: pane.gutter.left - 20,
  });
}
