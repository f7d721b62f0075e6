// What the guided walk reads from a step in which ranks are not in the same place at a time.

import assert from "node:assert/strict";
import { test } from "node:test";
import { Beats } from "../../zerolab/player/beats.js";
import { Facts } from "../../zerolab/player/facts.js";
import { Model } from "../../zerolab/player/model.js";
import { rowsOf } from "../../zerolab/player/rows.js";
import { Story } from "../../zerolab/player/story.js";
import { pass, payloadOf } from "./tiny.js";

const GROUP = [0, 1];

/** A rank's step: it has all gradients, adds them up, keeps its half and updates it; it frees the rest at `freed`. */
function stepOf(rank, freed) {
  const hold = (time, ...spans) => ({
    rank,
    t_start: time,
    t_end: time,
    kind: "memory",
    op: "hold",
    step: 1,
    unit: "a",
    category: "gradients",
    spans,
  });
  const sum = { kind: "collective", op: "reduce_scatter", phase: "reduce", step: 1, unit: "a", number: 0, numel: 8 };
  return [
    pass(rank, 0, 100, { op: "backward", phase: "backward" }),
    hold(100, 0, 8),
    { rank, t_start: 100, t_end: 200, group: GROUP, ...sum },
    hold(freed, 4 * rank, 4 * rank + 4),
    { rank, t_start: freed, t_end: freed + 50, kind: "optimizer", op: "step", phase: "step", step: 1 },
  ];
}

test("what a slow rank frees after a fast one has begun its update is freed all the same", () => {
  const model = new Model(payloadOf([...stepOf(0, 210), ...stepOf(1, 400)]));
  model.chooseRows(rowsOf(GROUP, model.peaks));
  const facts = new Facts(model, new Beats(model, new Story(model)), null);
  assert.equal(facts.freed("gradients", 150, facts.updates()), 400);
});

test("the unit that is followed is no root, which is computed around all others, however large it is", () => {
  const units = [
    ["root", 16],
    ["a", 8],
    ["b", 8],
  ];
  const chosen = (units) => {
    const model = new Model(payloadOf([...stepOf(0, 210), ...stepOf(1, 400)], { units }));
    model.chooseRows(rowsOf(GROUP, model.peaks));
    return new Facts(model, new Beats(model, new Story(model)), null).unit.name;
  };
  assert.equal(chosen(units), "a");
  assert.equal(chosen(units.slice(0, 1)), "root");
});
