import assert from "node:assert/strict";
import { test } from "node:test";
import { Lens } from "../../zerolab/player/lens.js";

const WINDOWS = [
  { step: 0, t0: 0, t1: 1000 },
  { step: 1, t0: 1000, t1: 101_000 },
  { step: 2, t0: 101_000, t1: 151_000 },
];

/** A lens over three windows; event `i` belongs to window `i`. */
function lens() {
  return new Lens({ windows: WINDOWS, windowOf: (index) => WINDOWS[index] });
}

test("it shows the event's step, and the same object as long as the time lies on it", () => {
  const one = lens();
  assert.equal(one.at(1, 5000), WINDOWS[1]);
  assert.equal(one.at(2, 100_999), WINDOWS[1]); // ranks alternate near the seam
  assert.equal(one.at(2, 102_000), WINDOWS[2]);
});

test("steps are shown as long as the longest of two players, and as one object each", () => {
  const one = lens();
  one.setLength(200_000);
  const view = one.at(2, 102_000);
  assert.deepEqual([view.t0, view.t1], [101_000, 301_000]);
  assert.equal(one.at(2, 103_000), view);
});

test("zooming keeps the time under the pointer, and is neither closer than 2 µs nor wider than everything", () => {
  const one = lens();
  one.at(1, 5000);
  one.zoomBy(0.5, 51_000);
  assert.deepEqual(one.zoom, { t0: 26_000, t1: 76_000 });
  one.zoomBy(1e-9, 51_000);
  one.at(1, 51_000);
  assert.equal(one.view.t1 - one.view.t0, 2000);
  one.zoomBy(1e9, 51_000);
  assert.deepEqual(one.zoom, { t0: 0, t1: 151_000 });
});

test("panning stops at the ends of the recording", () => {
  const one = lens();
  one.at(1, 5000);
  one.zoomBy(0.5, 51_000);
  one.at(1, 51_000);
  one.panBy(-9);
  assert.deepEqual(one.zoom, { t0: 0, t1: 50_000 });
  one.at(1, 10_000);
  one.panBy(9);
  assert.deepEqual(one.zoom, { t0: 101_000, t1: 151_000 });
});

test("a zoomed view moves along with a time that leaves it, and keeps its width", () => {
  const one = lens();
  one.at(1, 5000);
  one.zoomBy(0.5, 51_000);
  assert.deepEqual(one.at(2, 120_000), { t0: 95_000, t1: 145_000 });
  one.reset();
  assert.equal(one.at(2, 120_000), WINDOWS[2]);
});

test("a recording without events has some view all the same", () => {
  const empty = new Lens({ windows: [], windowOf: () => undefined });
  assert.ok(empty.at(0, 0).t1 > 0);
});
