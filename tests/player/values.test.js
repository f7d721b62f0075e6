// Whether what a rank holds is its own, a mean, up to date or not.

import assert from "node:assert/strict";
import { test } from "node:test";
import { Beats } from "../../zerolab/player/beats.js";
import { Model } from "../../zerolab/player/model.js";
import { rowsOf } from "../../zerolab/player/rows.js";
import { Story } from "../../zerolab/player/story.js";
import { Values } from "../../zerolab/player/values.js";
import { pass, payloadOf } from "./tiny.js";

const backward = { op: "backward", phase: "backward" };
const units = [
  ["a", 8],
  ["b", 8],
];

/** An all-reduce within backward, and a hold of gradients. */
const reduce = (rank, t_start, t_end, more) => ({
  ...{ rank, t_start, t_end, kind: "collective", op: "all_reduce", phase: "reduce", step: 1, group: [0, 1] },
  ...more,
});
const hold = (rank, time, unit) => ({
  ...{ rank, t_start: time, t_end: time, kind: "memory", op: "hold", phase: "backward", step: 1, unit },
  ...{ category: "gradients", spans: [[0, 8]], numel: 8 },
});

test("gradients that DDP sends in several buckets of many units are a rank's own until the last has arrived", () => {
  const events = [0, 1].flatMap((rank) => [
    pass(rank, 0, 100, { unit: "b", ...backward }),
    hold(rank, 100, "b"),
    reduce(rank, 110, 150, { number: 0, numel: 6, from_autograd: 1 }),
    pass(rank, 160, 200, { unit: "a", ...backward }),
    hold(rank, 200, "a"),
    reduce(rank, 210, 300, { number: 1, numel: 10, from_autograd: 1 }),
    { rank, t_start: 400, t_end: 500, kind: "optimizer", op: "step", phase: "step", step: 1 },
  ]);
  const model = new Model(payloadOf(events, { units }));
  model.chooseRows(rowsOf([0, 1], model.peaks));
  const values = new Values(model, new Beats(model, new Story(model)));
  const worth = (name, time) =>
    values.of(
      1,
      "gradients",
      model.units.find((unit) => unit.name === name),
      1,
      time,
    );
  assert.deepEqual([worth("b", 155), worth("b", 250), worth("a", 250)], ["local", "local", "local"]);
  assert.deepEqual([worth("a", 350), worth("b", 350)], ["plain", "plain"]);
});
