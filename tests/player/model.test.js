import assert from "node:assert/strict";
import { test } from "node:test";
import { ownersOf, partOf } from "../../zerolab/player/derived.js";
import { lastAtMost, Model } from "../../zerolab/player/model.js";
import { nextPhase, nextUnit } from "../../zerolab/player/steps.js";
import { tops } from "../../zerolab/player/strata.js";
import { pass, payloadOf } from "./tiny.js";

const hold = (t, spans, more = {}) =>
  pass(0, t, t, { kind: "memory", op: "hold", category: "parameters", spans, ...more });
const gather = (rank, start, end, more = {}) =>
  pass(rank, start, end, { kind: "collective", op: "all_gather", number: 0, ...more });

test("the last place at most a value is found, before the first there is none", () => {
  assert.deepEqual(
    [0, 1, 2, 5, 9].map((value) => lastAtMost([1, 2, 2, 5], value)),
    [-1, 0, 2, 3, 3],
  );
  assert.equal(lastAtMost([], 3), -1);
});

test("a rank's own whole is the one that it has a part of, wherever in the unit that begins", () => {
  const pairs = [
    [[0, 4, 0], [4, 8, 2]],
    [[8, 12, 1], [12, 16, 3]],
  ]; // biome-ignore format: a table
  for (const rank of [0, 1, 2, 3]) assert.equal(ownersOf({ owners: pairs, padded: 16 }, rank, 4), pairs[rank % 2]);
});

test("what a rank holds is what the last change up to an event said", () => {
  const model = new Model(payloadOf([hold(1, [0, 4]), hold(2, [0, 8]), hold(3, undefined)]));
  assert.deepEqual(
    [0, 1, 2].map((i) => model.held(0, "parameters", "a", i)),
    [[0, 4], [0, 8], []],
  );
  assert.deepEqual(
    [0, 1, 2].map((i) => model.heldElements(0, "parameters", i)),
    [4, 8, 0],
  );
  assert.deepEqual(model.held(0, "gradients", "a", 2), []);
  assert.equal(model.heldElements(0, "gradients", 2), 0);
});

test("elements held are added up over units", () => {
  const units = [
    ["a", 8],
    ["b", 4],
  ];
  const model = new Model(
    payloadOf([hold(1, [0, 8]), hold(2, [0, 2, 3, 4], { unit: "b" }), hold(3, [0, 1])], { units }),
  );
  assert.deepEqual(
    [0, 1, 2].map((i) => model.heldElements(0, "parameters", i)),
    [8, 11, 4],
  );
});

test("live bytes are those of the rank's own last event, none before its first; its peak is the first highest", () => {
  const live = (parameters) => ({ live: { parameters, other: 1 } });
  const model = new Model(
    payloadOf([pass(0, 0, 1, live(5)), pass(0, 1, 3, live(9)), pass(0, 3, 5, live(9)), pass(1, 0, 2)]),
  );
  assert.equal(model.live(1, 0), null);
  assert.equal(model.live(0, 1)?.parameters, 5);
  assert.deepEqual(model.peaks[0], { index: 2, bytes: 10 });
  assert.equal(model.total(2), 10);
});

test("main memory beside a GPU has levels, a highest moment and a scale of its own", () => {
  const at = (live, host) => ({ live: { parameters: live }, host: { optimizer_state: host } });
  const events = [pass(0, 0, 1, at(5, 1)), pass(0, 1, 3, at(9, 2)), pass(0, 3, 5, at(2, 30))];
  const payload = payloadOf(events);
  payload.meta.formula = { parameters: 6, gradients: 7, optimizer_state: 8 };
  const model = new Model(payload);
  assert.deepEqual(model.devices, ["live", "host"]);
  assert.equal(model.live(0, 1, "host")?.optimizer_state, 2);
  assert.deepEqual(
    [model.peaks[0], model.peaksOn("host")[0]],
    [
      { index: 1, bytes: 9 },
      { index: 2, bytes: 30 },
    ],
  );
  assert.deepEqual(tops(model), [21, 30]);
  assert.deepEqual([model.formulaOn("live"), model.formulaOn("host")], [21, null]);
  payload.meta.offload = true;
  assert.deepEqual([model.formulaOn("live"), model.formulaOn("host")], [13, 8]);
  assert.deepEqual(new Model(payloadOf([pass(0, 0, 1)])).devices, ["live"]);
});

test("an event between two steps belongs to the one before it, whose axis ends with the step itself", () => {
  const model = new Model(
    payloadOf([pass(0, 0, 10, { step: 0 }), pass(0, 10, 5000), pass(0, 5000, 9000, { step: 0 })]),
  );
  assert.deepEqual(
    model.windows.map(({ step, t0, t1, events }) => [step, t0, t1, events]),
    [
      [0, 0, 1000, 1],
      [1, 10, 5000, 2],
    ],
  );
  assert.equal(model.windowOf(2).step, 1);
});

test("steps by phase and by unit stay on the event's rank", () => {
  const units = [
    ["a", 8],
    ["b", 4],
  ];
  const events = [
    pass(0, 0, 1),
    pass(0, 1, 3),
    pass(0, 3, 5, { phase: "backward", unit: "b" }),
    pass(1, 0, 2, { unit: "b" }),
  ];
  const model = new Model(payloadOf(events, { units }));
  assert.equal(nextPhase(model, 0, 1), 3);
  assert.equal(nextPhase(model, 3, -1), 0);
  assert.equal(nextUnit(model, 0, 1), 3);
  assert.equal(nextUnit(model, 3, 1), 3);
});

test("a collective is found on every rank, and under way only while it is", () => {
  const model = new Model(payloadOf([gather(0, 0, 4), gather(1, 1, 6)]));
  assert.deepEqual(model.sameCollective(0), [0, 1]);
  assert.deepEqual(
    [3, 4].map((t) => model.inFlight(0, t)),
    [[0], []],
  );
  assert.deepEqual(model.inFlight(1, 5), [1]);
});

test("a second send to the same peer is of an all-reduce's second half", () => {
  const whole = gather(0, 0, 9, { op: "all_reduce" });
  const send = (start) => pass(0, start, start + 1, { kind: "collective", op: "send", peer: 1, parent: 0 });
  const model = new Model(payloadOf([whole, send(1), send(5)]));
  assert.deepEqual(model.partsOf(2), [0, 1]);
  assert.deepEqual([model.half(0), model.half(1)], [0, 1]);
  assert.equal(model.secondHalf(2), 5);
});

test("what was under way when a recording was cut off never ended", () => {
  const wait = pass(0, 2, 9, { kind: "wait", op: "wait", parent: 0 });
  const model = new Model(payloadOf([gather(0, 1, 9), wait, pass(0, 0, 9), pass(0, 0, 8)], { cut: 9 }));
  assert.deepEqual([...model.cut].sort(), [1, 2, 3]);
  assert.equal(new Model(payloadOf([gather(0, 1, 9), wait])).cut.size, 0);
});

test("the last event that had ended by a time; the first before any has", () => {
  const model = new Model(payloadOf([pass(0, 0, 4), pass(0, 4, 8)]));
  assert.deepEqual(
    [0, 4, 7, 8, 99].map((t) => model.at(t)),
    [0, 0, 0, 1, 1],
  );
});

test("who owns nothing among others' parts has no part, and equal parts are told where nobody owns one", () => {
  const rows = {
    padded: 16,
    owners: [
      [
        [0, 6, 0],
        [6, 12, 1],
        [12, 15, 2],
      ],
    ],
  }; // 5 rows of 3 over 4 ranks
  assert.deepEqual(partOf(rows, 2, null, 4), [12, 15]);
  assert.deepEqual(partOf(rows, 3, null, 4), [0, 0]);
  assert.deepEqual(partOf({ padded: 16, owners: null }, 3, null, 4), [12, 16]);
  const flat = {
    padded: 16,
    owners: [
      [
        [0, 4, 0],
        [4, 8, 1],
        [8, 11, 2],
      ],
    ],
  }; // the last has only padding
  assert.deepEqual(partOf(flat, 3, null, 4), [12, 16]);
});
