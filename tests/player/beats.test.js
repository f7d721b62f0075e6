// How a recording is cut into beats, and what is said of each.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { Beats } from "../../zerolab/player/beats.js";
import { Model } from "../../zerolab/player/model.js";
import { rowsOf } from "../../zerolab/player/rows.js";
import { Steps } from "../../zerolab/player/steps.js";
import { Story } from "../../zerolab/player/story.js";
import { pass, payloadOf } from "./tiny.js";

function beatsOf(payload) {
  const model = new Model(payload);
  model.chooseRows(
    rowsOf(
      Array.from({ length: model.worldSize }, (_, rank) => rank),
      model.peaks,
    ),
  );
  return new Beats(model, new Story(model));
}

const gather = (rank, t_start, t_end, more = {}) => ({
  rank,
  t_start,
  t_end,
  kind: "collective",
  op: "all_gather",
  phase: "gather",
  step: 1,
  unit: "a",
  number: 0,
  numel: 8,
  group: [0, 1],
  ...more,
});

test("a collective over all its ranks is one beat, and computing before it another", () => {
  const { list } = beatsOf(
    payloadOf([pass(0, 0, 1000), gather(0, 1000, 2000), pass(1, 0, 1000), gather(1, 900, 2100)], { units: [["a", 8]] }),
  );
  assert.deepEqual(
    list.map(({ kind, t0, t1 }) => [kind, t0, t1]),
    [
      ["compute", 0, 1000],
      ["collective", 1000, 2101],
    ],
  );
  assert.equal(list[1].caption, "a: its 2 shards are gathered, so every rank has all of it.");
});

test("computing beside a collective leaves the rest of its time to that, and is no beat where nothing is left", () => {
  const events = [0, 1].flatMap((rank) => [pass(rank, 0, 1000), gather(rank, 50, 1200)]);
  assert.deepEqual(
    beatsOf(payloadOf(events)).list.map(({ kind, t0, t1 }) => [kind, t0, t1]),
    [["collective", 0, 1201]],
  );
});

/** Two steps of a gather and a pass; the fast ranks end the second pass while the last rank is in the first step. */
function ahead(ranks) {
  const group = Array.from({ length: ranks }, (_, rank) => rank);
  return payloadOf(
    group.flatMap((rank) => {
      const late = rank === ranks - 1 ? 2000 : 110; // when the second step begins
      return [
        gather(rank, 0, 50, { group }),
        pass(rank, 50, rank === ranks - 1 ? 2000 : 100),
        pass(rank, late, late + 100, { step: 2 }),
        gather(rank, late + 100, 2200, { step: 2, number: 1, group }),
      ];
    }),
  );
}

for (const ranks of [2, 3])
  test(`a pass that ${ranks - 1} of ${ranks} ranks ended while the last was still in the step before is a beat`, () => {
    assert.deepEqual(
      beatsOf(ahead(ranks)).list.map(({ kind, step }) => [step, kind]),
      [
        [1, "collective"],
        [1, "compute"],
        [2, "compute"],
        [2, "collective"],
      ],
    );
  });

test("page down and page up go to a step's first beat, where another rank is still in the step before, too", () => {
  const beats = beatsOf(ahead(2));
  const { model } = beats;
  const player = {
    model,
    beats,
    byBeats: true,
    pause() {},
    settle() {},
    lens: { choose() {} },
    time: 0,
    get beat() {
      return beats.list[beats.at(this.time)];
    },
    showTime(time) {
      this.time = time;
    },
  };
  const steps = new Steps(player);
  const shown = [1, 1, -1, -1].map((direction) => {
    steps.window(direction);
    return [player.beat.step, player.beat.kind];
  });
  const [first, second] = [
    [1, "collective"],
    [2, "compute"],
  ];
  assert.deepEqual(shown, [second, second, first, first]);
});

test("a collective of no unit, such as a check, is a tick and no beat", () => {
  const check = (rank) => gather(rank, 10, 20, { unit: undefined, numel: 2, step: 0, phase: "setup" });
  const { list, ticks } = beatsOf(payloadOf([0, 1].flatMap((rank) => [check(rank), pass(rank, 30, 100)])));
  assert.deepEqual(
    list.map(({ kind, step }) => [kind, step]),
    [
      ["keep", 0],
      ["compute", 1],
    ],
  );
  assert.deepEqual(ticks, [20]);
});

test("where a system does not say which unit it gathers, the order of the passes does", () => {
  const units = [
    ["a", 8],
    ["b", 8],
  ];
  const events = [0, 1].flatMap((rank) => [
    gather(rank, 0, 10, { unit: undefined, number: 0 }),
    pass(rank, 10, 20),
    gather(rank, 20, 30, { unit: undefined, number: 1 }),
    pass(rank, 30, 40, { unit: "b" }),
  ]);
  const { list } = beatsOf(payloadOf(events, { units }));
  assert.deepEqual(
    list.map(({ kind, units: of }) => [kind, of[0].name]),
    [
      ["collective", "a"],
      ["compute", "a"],
      ["collective", "b"],
      ["compute", "b"],
    ],
  );
});

test("a recording of collectives alone has a beat for each, and an empty one has none", () => {
  const events = [0, 1].flatMap((rank) => [
    gather(rank, 0, 10, { unit: undefined, step: 0 }),
    gather(rank, 20, 30, { unit: undefined, step: 0, number: 1, op: "all_reduce" }),
  ]);
  const { list } = beatsOf(payloadOf(events, { units: [] }));
  assert.deepEqual(
    list.map(({ caption }) => caption),
    ["8 elements: every rank gets the parts of all 2.", "8 elements: added up over all ranks, which all get the sum."],
  );
  const empty = { ...payloadOf([pass(0, 0, 1)]), count: 0 };
  for (const stored of Object.values(empty.columns)) stored.data = "";
  assert.deepEqual(beatsOf(empty).list, []);
});

test("one rank sends nothing, so its beats are what it computes", () => {
  const alone = gather(0, 0, 10, { group: [0] });
  const { list } = beatsOf(payloadOf([alone, pass(0, 10, 100)]));
  assert.deepEqual(
    list.map(({ caption }) => caption),
    ["a: the rank computes the forward of its own batch."],
  );
});

test("the beats of a real recording follow each other without a gap, and are read in their time", () => {
  const { list, model } = beatsOf(JSON.parse(readFileSync(process.env.ZEROLAB_TEST_PAYLOAD, "utf-8")).payload);
  assert.ok(list.length > 2);
  list.forEach((beat, k) => {
    if (k) assert.equal(beat.t0, list[k - 1].t1);
    assert.ok(beat.seconds >= 1.5 && beat.seconds <= 3);
    assert.ok(beat.first <= beat.last && beat.last < model.count);
  });
});
