import assert from "node:assert/strict";
import { test } from "node:test";
import { Axis, gutter } from "../../zerolab/player/axis.js";

test("from time to pixels and back is where one began", () => {
  const axis = new Axis(1000, 5000, 800);
  for (const t of [1000, 1234, 4999, 5000]) assert.ok(Math.abs(axis.t(axis.x(t)) - t) < 1e-6);
});

test("a pixel beside the axis counts as its end", () => {
  const axis = new Axis(0, 100, 800);
  assert.equal(axis.t(-50), 0);
  assert.ok(Math.abs(axis.t(10_000) - 100) < 1e-9);
});

test("an extent is cut to the view, at least a pixel wide, and null outside", () => {
  const axis = new Axis(100, 200, 800);
  assert.equal(axis.extent(0, 99), null);
  assert.equal(axis.extent(201, 300), null);
  assert.deepEqual(axis.extent(0, 300), [axis.left, axis.right - axis.left]);
  assert.equal(axis.extent(150, 150)?.[1], 1);
});

test("ticks stand at round times, about one per 110 pixels, from the start of the view on", () => {
  const ticks = new Axis(7_000_000, 17_000_000, 152 + 110 + 1100).ticks();
  assert.deepEqual(
    ticks.slice(0, 3).map(({ text }) => text),
    ["0", "+1 ms", "+2 ms"],
  );
  assert.equal(ticks.length, 11);
  assert.equal(ticks[0].x, 152);
});

test("where the view is a part of a step, ticks count from the start of the step, however close they are", () => {
  const ticks = new Axis(10_003_210_000, 10_003_260_000, 152 + 110 + 1100, 10_000_000_000).ticks();
  assert.deepEqual(
    ticks.slice(0, 3).map(({ text }) => text),
    ["+3.21 ms", "+3.215 ms", "+3.22 ms"],
  );
  assert.equal(ticks[0].x, 152);
  const [first] = new Axis(10_000_000_500, 10_000_001_500, 152 + 110 + 1100, 10_000_000_000).ticks();
  assert.equal(first.text, "+500 ns");
});

test("a phone has less room beside the axis, and no names there", () => {
  assert.deepEqual(gutter(400), { left: 76, right: 10, named: false });
  assert.ok(gutter(800).named);
});

test("however narrow, some axis is left", () => {
  const { left, right } = new Axis(0, 1, 10);
  assert.equal(right - left, 50);
});
