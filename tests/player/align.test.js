// Two recordings beside each other: which of their beats belong together, and what is said of the one that rests.

import assert from "node:assert/strict";
import { test } from "node:test";
import { align, resting } from "../../zerolab/player/align.js";
import { Beats } from "../../zerolab/player/beats.js";
import { Model } from "../../zerolab/player/model.js";
import { rowsOf } from "../../zerolab/player/rows.js";
import { Story } from "../../zerolab/player/story.js";
import { pass, payloadOf } from "./tiny.js";

const UNITS = [
  ["a", 8],
  ["b", 8],
];

/** A recording of two ranks, a beat after the other: `[op, unit, more]`. */
function beatsOf(deeds, { units = UNITS, ranks = 2 } = {}) {
  const everybody = Array.from({ length: ranks }, (_, rank) => rank);
  const events = deeds.flatMap(([op, unit, more = {}], k) =>
    everybody.map((rank) => {
      const [start, end] = [1000 * k, 1000 * k + 900];
      if (op === "forward" || op === "backward") return pass(rank, start, end, { op, phase: op, unit, ...more });
      const group = everybody;
      const wire = { kind: "collective", op, unit, number: k, numel: 8, group, phase: "gather", step: 1 };
      return { rank, t_start: start, t_end: end, ...wire, ...more };
    }),
  );
  const model = new Model(payloadOf(events, { units }));
  model.chooseRows(rowsOf(everybody, model.peaks));
  return new Beats(model, new Story(model));
}

const places = (first, second) => align(first, second).map(({ beats }) => beats);

test("what both do with a unit in an act is one stop, and where one sends nothing it rests", () => {
  const first = beatsOf([
    ["forward", "a"],
    ["forward", "b"],
  ]);
  const second = beatsOf([
    ["all_gather", "a"],
    ["forward", "a"],
    ["all_gather", "b"],
    ["forward", "b"],
  ]);
  assert.deepEqual(places(first, second), [
    [-1, 0],
    [0, 1],
    [-1, 2],
    [1, 3],
  ]);
  assert.deepEqual(places(second, first), [
    [0, -1],
    [1, 0],
    [2, -1],
    [3, 1],
  ]);
});

test("what one computes goes with what the other gathers where that computes meanwhile", () => {
  const first = beatsOf([["forward", "a"]]);
  const second = beatsOf([["all_gather", "a"]]);
  assert.deepEqual(places(first, second), [[0, 0]]);
});

test("reducing goes with reducing, whatever the operation, and never with a gather", () => {
  const backward = { phase: "backward" };
  const first = beatsOf([["all_reduce", "a", backward]]);
  const second = beatsOf([
    ["all_gather", "a", backward],
    ["reduce_scatter", "a", backward],
  ]);
  assert.deepEqual(places(first, second), [
    [-1, 0],
    [0, 1],
  ]);
});

test("two gathers in another order are two stops, of which each says when the other does it", () => {
  const first = beatsOf([
    ["all_gather", "a"],
    ["forward", "a"],
    ["all_gather", "b"],
    ["forward", "b"],
  ]);
  const second = beatsOf([
    ["all_gather", "a"],
    ["all_gather", "b"],
    ["forward", "a"],
    ["forward", "b"],
  ]);
  const stops = places(first, second);
  assert.deepEqual(stops.filter((pair) => pair.includes(-1)).length, 2);
  const said = [];
  const last = [-1, -1];
  for (const [left, right] of stops) {
    if (left < 0) said.push(resting(first, "one", second.list[right], last[0]));
    if (right < 0) said.push(resting(second, "other", first.list[left], last[1]));
    if (left >= 0) last[0] = left;
    if (right >= 0) last[1] = right;
  }
  assert.deepEqual(
    new Set(said.map((text) => text.replace(/^\w+ /, ""))),
    new Set(["does this later.", "has done this already."]),
  );
});

test("every beat of either is in one stop, in its order, step by step", () => {
  const one = beatsOf([
    ["forward", "a"],
    ["forward", "b", { step: 2 }],
  ]);
  const other = beatsOf([["forward", "a"]]);
  const stops = align(one, other);
  assert.deepEqual(stops, [
    { step: 1, beats: [0, 0] },
    { step: 2, beats: [1, -1] },
  ]);
  assert.equal(resting(other, "other", one.list[1], 0), "other has no step 2.");
});

test("units that the other lacks, and other numbers of ranks, are no reason to stop", () => {
  const one = beatsOf([["forward", "a"]], { ranks: 3 });
  const other = beatsOf([["forward", "head"]], { units: [["head", 8]] });
  assert.deepEqual(places(one, other), [
    [0, -1],
    [-1, 0],
  ]);
  assert.equal(resting(other, "other", one.list[0], -1), "other has no unit a.");
});

test("beside a recording without events the other plays alone", () => {
  const one = beatsOf([["forward", "a"]]);
  const none = { list: [], model: one.model, story: one.story };
  assert.deepEqual(places(one, none), [[0, -1]]);
  assert.deepEqual(places(none, none), []);
  assert.match(resting(none, "other", one.list[0], -1), /^other has no beats/);
});
