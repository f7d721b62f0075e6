// Where pieces are drawn on their way, and for how long those that have come lie there.

import assert from "node:assert/strict";
import { test } from "node:test";
import { Beats } from "../../zerolab/player/beats.js";
import { boxes, Flights } from "../../zerolab/player/flight.js";
import { Model } from "../../zerolab/player/model.js";
import { indexOf, Moments, timeOf } from "../../zerolab/player/moments.js";
import { Pace } from "../../zerolab/player/pace.js";
import { Pieces } from "../../zerolab/player/pieces.js";
import { rowsOf } from "../../zerolab/player/rows.js";
import { Story } from "../../zerolab/player/story.js";
import { pass, payloadOf } from "./tiny.js";

const cell = { x: 10, y: 0, width: 64, height: 8 };

test("a piece is never drawn so narrow that it looks as if nothing travelled", () => {
  assert.deepEqual(boxes(cell, 6400, [100, 110]), [{ x: 11, width: 1 }]);
  assert.deepEqual(boxes(cell, 6400, [0, 10, 1000, 1200]), [
    { x: 10, width: 1 },
    { x: 20, width: 2 },
  ]);
});

for (const ranks of [2, 4, 8])
  test(`of a matrix that ${ranks} ranks cut by columns a piece is striped on its way, too, as wide as it is`, () => {
    const stripes = Array.from({ length: 128 }, (_, row) => [row * 80, row * 80 + 80 / ranks]).flat();
    const drawn = boxes(cell, 10_240, stripes).slice(0, -1);
    for (const { width } of drawn) assert.equal(width, 0.5 / ranks);
  });

/** On which ranks something lies in the only unit's parameters at a time, beyond what each holds. */
function lyingAt(model, time) {
  const beats = new Beats(model, new Story(model));
  const pieces = new Pieces(model, beats);
  const found = new Set();
  const pane = {
    cell: (row) => ({ ...cell, y: 10 * row }),
    fill: () => "",
    over: { box: (_x, y) => found.add(y / 10), frame() {} },
  };
  new Flights(pieces, new Pace(beats, pieces)).draw(pane, { model, palette: {}, index: model.at(time), time });
  return [...found].sort();
}

test("a piece that has come lies there until its rank holds it, and not again once that has given it back", () => {
  const events = [0, 1].flatMap((rank) => {
    const own = [4 * rank, 4 * rank + 4];
    const gather = (t_start, t_end, number) => ({
      ...{ rank, t_start, t_end, kind: "collective", op: "all_gather", phase: "gather", step: 1, unit: "a" },
      ...{ number, numel: 8, group: [0, 1] },
    });
    const hold = (time, spans) => ({
      ...{ rank, t_start: time, t_end: time, kind: "memory", op: "hold", phase: "forward", step: 1, unit: "a" },
      ...{ category: "parameters", spans, numel: 8 },
    });
    return [
      hold(0, own),
      gather(10, 100, 0),
      hold(rank ? 120 : 110, [0, 8]),
      pass(rank, 120, rank ? 200 : 150),
      hold(rank ? 210 : 160, own), // while the other still computes, and what was gathered for that is told
      gather(300, 400, 1), // once more, for the backward
      hold(420, [0, 8]),
      pass(rank, 420, 500, { op: "backward", phase: "backward" }),
      hold(510, own),
    ];
  });
  const model = new Model(payloadOf(events));
  model.chooseRows(rowsOf([0, 1], model.peaks));
  const lying = [105, 115, 140, 180, 250, 410, 450, 520].map((time) => lyingAt(model, time));
  assert.deepEqual(lying, [[0, 1], [1], [], [], [], [0, 1], [], []]);
});

test("a beat shows no rank in a backward that comes after its own part of the beat, of two in a step too", () => {
  const ahead = (rank) => (rank ? 1000 : 0); // by which the second rank is late
  const backward = { op: "backward", phase: "backward" };
  const events = [0, 1].flatMap((rank) =>
    [0, 200].flatMap((again) => {
      const from = again + ahead(rank);
      return [pass(rank, from, from + 50), pass(rank, from + 100, from + 150, backward)];
    }),
  );
  const model = new Model(payloadOf(events));
  model.chooseRows(rowsOf([0, 1], model.peaks));
  const story = new Story(model);
  const { list } = new Beats(model, story);
  const moments = new Moments(model, story.acts);
  assert.deepEqual(
    list.map((beat) => [beat.op, ...[0, 1].map((rank) => moments.of(beat).get(rank))]),
    [
      ["forward", 99, 1099],
      ["backward", 299, 1299],
      ["forward", 299, 1299],
      ["backward", undefined, undefined],
    ],
  );
  const shown = { model, index: model.at(1020), time: 1020, until: moments.of(list[0]) };
  assert.deepEqual([timeOf(shown, 0), timeOf(shown, 1)], [99, 1020]);
  assert.equal(model.event(indexOf(shown, 0)).end, 50);
  assert.equal(indexOf({ ...shown, until: null }, 0), shown.index);
});
