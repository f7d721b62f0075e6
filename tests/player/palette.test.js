import assert from "node:assert/strict";
import { test } from "node:test";
import { Palette } from "../../zerolab/player/palette.js";

const channels = (colour) => [1, 3, 5].map((at) => Number.parseInt(colour.slice(at, at + 2), 16));
const luminance = (colour) => {
  const [r, g, b] = channels(colour).map((c) => (c <= 10 ? c / 3295 : ((c / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const contrast = (a, b) => {
  const [low, high] = [luminance(a), luminance(b)].sort((x, y) => x - y);
  return (high + 0.05) / (low + 0.05);
};
const apart = (a, b) => Math.hypot(...channels(a).map((c, k) => c - channels(b)[k]));

for (const theme of ["light", "dark"])
  for (const strong of [false, true])
    test(`the mark of the current event is no rank's colour and is seen on its ground: ${theme}, ${strong}`, () => {
      const palette = new Palette(theme, strong);
      assert.ok(contrast(palette.lit, palette.paper) >= 3);
      for (let rank = 0; rank < 8; rank++) assert.ok(apart(palette.lit, palette.rankColour(rank)) > 90, `rank ${rank}`);
    });

test("waiting is quieter than work", () => {
  for (const theme of ["light", "dark"]) assert.equal(new Palette(theme).look().strength, 0.3);
});
