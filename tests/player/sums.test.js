import assert from "node:assert/strict";
import { test } from "node:test";
import { textOf } from "../../zerolab/player/find.js";
import { messages } from "../../zerolab/player/messages.js";
import { Model } from "../../zerolab/player/model.js";
import { inOneLine, sumsIn } from "../../zerolab/player/sums.js";
import { pass, payloadOf } from "./tiny.js";

const collective = { kind: "collective", op: "all_gather", number: 0, logical_bytes: 80 };
const modelOf = (events) => new Model(payloadOf(events));

test("the sums of a stretch say what was sent and what went on, what lies within another counted once", () => {
  const events = [pass(0, 0, 40), pass(0, 10, 30), pass(0, 40, 60, { kind: "wait", op: "wait" })];
  const model = modelOf([...events, pass(0, 20, 60, collective)]);
  const found = sumsIn(model, [0], { t0: 0, t1: 80 });
  assert.deepEqual(found, { sent: 80, computing: 0.5, collectives: 0.5, waiting: 0.25 });
  assert.match(inOneLine(model, [0], { t0: 0, t1: 80 }), /^80 ns, rank 0: 80 B sent; computing 50 %, /);
});

test("a collective's bytes belong to the stretch in which it began", () => {
  const model = modelOf([pass(0, 20, 60, collective)]);
  assert.equal(sumsIn(model, [0], { t0: 30, t1: 80 }).sent, 0);
  assert.equal(sumsIn(model, [0], { t0: 0, t1: 30 }).sent, 80);
});

test("each send belongs to its receive on the other rank", () => {
  const part = (rank, op, peer, t_start) =>
    pass(rank, t_start, t_start + 4, { kind: "collective", op, peer, parent: 0, seq: 1 });
  const of = (rank) => pass(rank, 0, 20, { ...collective, group: [0, 1], seq: 0 });
  const model = modelOf([of(0), part(0, "isend", 1, 2), of(1), part(1, "irecv", 0, 8)]);
  const [only, ...more] = messages(model, model.sameCollective(model.ofRank[0].at(-1)));
  assert.equal(more.length, 0);
  assert.deepEqual(
    [only.send, only.receive].map((k) => [model.columns.rank[k], model.columns.t_start[k]]),
    [
      [0, 2],
      [1, 8],
    ],
  );
});

test("an event is found by what it does, its unit, its phase and its step", () => {
  const text = textOf(modelOf([pass(0, 1, 4, { unit: "a", op: "backward", phase: "backward", step: 2 })]), 0);
  for (const word of ["backward", " a ", "step 2", "module"]) assert.ok(text.includes(word), word);
});
