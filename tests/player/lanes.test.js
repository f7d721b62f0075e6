import assert from "node:assert/strict";
import { test } from "node:test";
import { Lanes } from "../../zerolab/player/lanes.js";
import { Model } from "../../zerolab/player/model.js";
import { pass, payloadOf } from "./tiny.js";

const gather = (start, end, more = {}) =>
  pass(0, start, end, { kind: "collective", op: "all_gather", number: 0, ...more });
const lanesOf = (events, meta = {}) => {
  const payload = payloadOf(events);
  Object.assign(payload.meta, meta);
  const model = new Model(payload);
  return { model, lanes: new Lanes(model) };
};
const drawn = ({ model, lanes }) =>
  lanes.ofRank(model, 0).map(({ lane, start, end }) => [lanes.names[lane], start, end]);

test("without times of a device there are two lanes and no word of a clock", () => {
  const found = lanesOf([pass(0, 1, 4), gather(2, 9)]);
  assert.deepEqual(drawn(found), [
    ["computing", 1, 4],
    ["communication", 2, 9],
  ]);
  assert.equal(found.lanes.clock, null);
});

test("a GPU's recording without its times says that they are the host's", () => {
  assert.equal(lanesOf([pass(0, 1, 4)], { device: "cuda" }).lanes.clock, "host time");
});

const onGpu = [
  pass(0, 1, 2, { stream: "compute", device_start: 5, device_end: 9 }),
  gather(2, 3, { stream: "communication 2", device_start: 4, device_end: 8 }),
  gather(3, 4, { stream: "communication", device_start: 6, device_end: 7, number: 1 }),
  gather(4, 5, { number: 2 }),
];

test("the host has a lane, and so has each stream, computing first", () => {
  const { lanes } = lanesOf(onGpu, { device: "cuda" });
  assert.deepEqual(lanes.names, ["host", "compute", "communication", "communication 2"]);
  assert.equal(lanes.clock, "GPU time");
});

test("a pass is drawn where it was asked for and where it was run, a collective where it was executed", () => {
  assert.deepEqual(drawn(lanesOf(onGpu)), [
    ["host", 1, 2],
    ["communication 2", 4, 8],
    ["host", 4, 5],
    ["compute", 5, 9],
    ["communication", 6, 7],
  ]);
});

test("what a thread writes of a checkpoint has a lane below all others, what the training waits for has not", () => {
  const save = (op, start, end) => pass(0, start, end, { kind: "save", op });
  const waiting = [save("save", 1, 4)];
  assert.deepEqual(drawn(lanesOf(waiting)), [["computing", 1, 4]]);
  assert.deepEqual(drawn(lanesOf([save("copy", 1, 2), save("write", 2, 9), gather(4, 5)])), [
    ["computing", 1, 2],
    ["saving", 2, 9],
    ["communication", 4, 5],
  ]);
  assert.deepEqual(lanesOf([...onGpu, save("write", 2, 9)]).lanes.names.slice(-2), ["communication 2", "saving"]);
});

test("what is sent within a collective has no bar", () => {
  const part = pass(0, 2, 3, { kind: "collective", op: "send", parent: 0 });
  assert.deepEqual(drawn(lanesOf([gather(1, 4), part])), [["communication", 1, 4]]);
});

test("gathers that are under way at the same time lie one below the other, and alone a collective has its lane", () => {
  const all = [gather(0, 5), gather(3, 9, { number: 1 }), gather(6, 8, { number: 2 }), gather(20, 30, { number: 3 })];
  const { model, lanes } = lanesOf(all);
  const places = lanes.ofRank(model, 0).map(({ start, place, places }) => [start, place, places]);
  assert.deepEqual(places, [
    [0, 0, 2],
    [3, 1, 2],
    [6, 0, 2],
    [20, 0, 1],
  ]);
});
