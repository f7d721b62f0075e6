import assert from "node:assert/strict";
import { test } from "node:test";
import { contrastOf, Palette } from "../../zerolab/player/palette.js";

const channels = (colour) => [1, 3, 5].map((at) => Number.parseInt(colour.slice(at, at + 2), 16));
const apart = (a, b) => Math.hypot(...channels(a).map((c, k) => c - channels(b)[k]));

for (const theme of ["light", "dark"])
  for (const strong of [false, true])
    test(`the mark of the current event is no rank's colour and is seen on its ground: ${theme}, ${strong}`, () => {
      const palette = new Palette(theme, strong);
      assert.ok(contrastOf(palette.lit, palette.paper) >= 3);
      for (let rank = 0; rank < 8; rank++) assert.ok(apart(palette.lit, palette.rankColour(rank)) > 90, `rank ${rank}`);
    });

test("contrast is as WCAG 2.2 computes it", () => {
  assert.equal(contrastOf("#000000", "#ffffff"), 21);
  assert.equal(contrastOf("#777777", "#ffffff").toFixed(2), "4.48"); // the example that everybody knows
});

for (const theme of ["light", "dark"])
  for (const strong of [false, true])
    test(`words on a bar have the contrast that WCAG asks of text: ${theme}, ${strong}`, () => {
      const palette = new Palette(theme, strong);
      for (const [name, bar] of Object.entries(palette.bars))
        assert.ok(contrastOf(palette.on(bar), bar) >= 4.5, `${name} ${bar} ${contrastOf(palette.on(bar), bar)}`);
    });

test("waiting is quieter than work", () => {
  for (const theme of ["light", "dark"]) assert.equal(new Palette(theme).look().strength, 0.3);
});
