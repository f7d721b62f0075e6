import assert from "node:assert/strict";
import { test } from "node:test";
import { Ghost } from "../../zerolab/player/ghost.js";
import { Model } from "../../zerolab/player/model.js";
import { pass, payloadOf } from "./tiny.js";

/** Two steps of two ranks; each holds `own` of unit a's parameters, and all of it for a while in the second step. */
function run(own) {
  const of = (rank) => {
    const live = (elements) => ({ live: { parameters: 4 * elements } });
    const held = own[rank][1] - own[rank][0];
    const hold = (t, spans, more) =>
      pass(rank, t, t, { kind: "memory", op: "hold", category: "parameters", unit: "a", spans, ...more });
    return [
      hold(1, own[rank], { ...live(held) }),
      pass(rank, 10, 12, { step: 1, kind: "optimizer", ...live(held) }),
      hold(20, [0, 8], { step: 2, ...live(8) }),
      hold(22, own[rank], { step: 2, ...live(held) }),
      pass(rank, 30, 32, { step: 2, kind: "optimizer", ...live(held) }),
    ];
  };
  return new Model(payloadOf([...of(0), ...of(1)]));
}

test("a rank with half of a unit is missing the other half, until it has all of it", () => {
  const model = run([
    [0, 4],
    [4, 8],
  ]);
  const ghost = new Ghost(model);
  assert.ok(ghost.known);
  const at = (t) => model.at(t);
  assert.deepEqual(
    [1, 20, 22, 32].map((t) => ghost.missing(0, at(t))),
    [16, 0, 16, 16],
  );
  assert.equal(ghost.whole(1, at(32)), 32);
});

test("where every rank has everything nothing is saved, and nothing is drawn", () => {
  assert.equal(
    new Ghost(
      run([
        [0, 8],
        [0, 8],
      ]),
    ).known,
    false,
  );
});

test("before a second step nobody knows what the state is", () => {
  const hold = {
    kind: "memory",
    op: "hold",
    category: "parameters",
    unit: "a",
    spans: [0, 4],
    live: { parameters: 16 },
  };
  const model = new Model(payloadOf([pass(0, 1, 1, hold), pass(1, 1, 1, hold), pass(1, 2, 3, { kind: "optimizer" })]));
  const ghost = new Ghost(model);
  assert.equal(ghost.known, false);
  assert.equal(ghost.missing(0, 2), 0);
});
