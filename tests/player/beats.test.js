// How a recording is cut into beats, and what is said of each.

import assert from "node:assert/strict";
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

test("a collective that was broken off is not told as done, and who called another one is told", () => {
  const captionOf = (events) => beatsOf(payloadOf(events, { cut: 2000 })).list[0].caption;
  const first = gather(0, 0, 2000);
  assert.equal(captionOf([first, gather(1, 0, 2000)]), "a: all gather between 2 ranks. It never ended.");
  assert.equal(captionOf([first, gather(1, 0, 1000)]), "a: all gather between 2 ranks. It never ended on rank 0.");
  const other = gather(1, 0, 2000, { op: "broadcast" });
  assert.equal(captionOf([first, other]), "a: all gather on rank 0, broadcast on rank 1. It never ended.");
});

test("a unit that is gathered twice in one act, as a root, is two beats, and one where that goes part by part", () => {
  const gathers = (numel) =>
    [0, 1].flatMap((rank) => [
      gather(rank, 0, 100, { numel }),
      pass(rank, 100, 1000, { unit: "b" }),
      gather(rank, 1000, 1100, { number: 1, numel }),
    ]);
  const units = [
    ["a", 8],
    ["b", 8],
  ];
  const kinds = (numel) => beatsOf(payloadOf(gathers(numel), { units })).list.map(({ kind }) => kind);
  assert.deepEqual(kinds(8), ["collective", "compute", "collective"]);
  assert.equal(kinds(4).filter((kind) => kind === "collective").length, 1);
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

/** A player of beats, of which nothing is drawn. */
function playerOf(beats) {
  const player = {
    model: beats.model,
    beats,
    byBeats: true,
    pause() {},
    settle() {},
    lens: { choose() {} },
    clock: { time: 0 },
    get beat() {
      return beats.list[beats.at(player.clock.time)];
    },
    showTime(time) {
      player.clock.time = time;
    },
  };
  return player;
}

test("page down and page up go to a step's first beat, where another rank is still in the step before, too", () => {
  const player = playerOf(beatsOf(ahead(2)));
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

test("the phase before is this one's beginning, also within its first beat, and from there the one before", () => {
  const beats = beatsOf(ahead(2));
  const player = playerOf(beats);
  const steps = new Steps(player);
  const begins = [0, 2].map((place) => beats.list[place].t0); // of the forwards of both steps
  for (const place of [2, 3]) {
    player.clock.time = beats.list[place].t0 + 10;
    const shown = [1, 2, 3].map(() => {
      steps.phase(-1);
      return player.clock.time;
    });
    assert.deepEqual(shown, [begins[1], begins[0], begins[0]]);
  }
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
    [
      "8 elements: every rank gets the parts of all 2.",
      "8 elements: combined over all ranks, which all get the result.",
    ],
  );
  const empty = { ...payloadOf([pass(0, 0, 1)]), count: 0 };
  for (const stored of Object.values(empty.columns)) stored.data = "";
  assert.deepEqual(beatsOf(empty).list, []);
});

test("only what names a unit, or autograd called, or is as much as is trained, is called a sum of gradients", () => {
  const captionOf = (more) => {
    const sent = { op: "all_reduce", phase: "reduce", unit: undefined, ...more };
    const events = [0, 1].flatMap((rank) => [
      pass(rank, 0, 10, { op: "backward", phase: "backward" }),
      gather(rank, 10, 20, sent),
    ]);
    return beatsOf(payloadOf(events)).list.at(-1).caption.split(": ")[1];
  };
  const sum = "gradients are added up, and all ranks get the sum.";
  assert.equal(captionOf({ unit: "a", numel: 16 }), sum);
  assert.equal(captionOf({ from_autograd: 1, numel: 16 }), sum);
  assert.equal(captionOf({ numel: 9 }), sum);
  assert.equal(captionOf({ numel: 16 }), "combined over all ranks, which all get the result.");
  const own = "combined over all ranks, each of which gets its own part of the result.";
  assert.equal(captionOf({ numel: 16, op: "reduce_scatter" }), own);
});

test("ranks that wait at a barrier are not said to move elements, and one number is not called them", () => {
  const events = [0, 1].flatMap((rank) => [
    gather(rank, 0, 10, { unit: undefined, step: 0, op: "barrier", numel: 0 }),
    gather(rank, 20, 30, { unit: undefined, step: 0, number: 1, op: "broadcast", numel: 1 }),
  ]);
  const { list } = beatsOf(payloadOf(events, { units: [] }));
  assert.deepEqual(
    list.map(({ caption }) => caption),
    ["All ranks wait for each other.", "1 element: one rank sends its values to all others."],
  );
});

test("of one rank without a training step nobody says that it holds everything before its first", () => {
  const alone = gather(0, 0, 10, { group: [0], unit: undefined, step: 0 });
  const [beat] = beatsOf(payloadOf([alone], { units: [] })).list;
  assert.equal(beat.caption, "There is no training step here: this rank is alone, and has nobody to send to.");
});

test("of ranks that did nothing nobody says that they send each other tensors", () => {
  const note = (rank) => ({ rank, t_start: 0, t_end: 0, kind: "note", op: "before recording" });
  const [beat] = beatsOf(payloadOf([note(0), note(1)], { units: [] })).list;
  assert.equal(beat.caption, "There is no training step here, and nothing is sent.");
});

test("what not every rank computed, as where one failed before, is not said of every rank", () => {
  const { list } = beatsOf(payloadOf([pass(0, 0, 10), pass(1, 0, 10), gather(2, 0, 10, { step: 0 })]));
  assert.equal(list.at(-1).caption, "a: 2 of 3 ranks compute the forward of their own batch.");
});

/** The caption of an update of two units, the second of which is frozen or replicated; each rank has `spans` of "a". */
function updating(more, spans, op = "all_reduce") {
  const sum = { op, phase: "reduce" };
  const events = [0, 1].flatMap((rank) => [
    pass(rank, 0, 50),
    {
      rank,
      t_start: 50,
      t_end: 50,
      kind: "memory",
      op: "hold",
      step: 1,
      unit: "a",
      category: "optimizer_state",
      spans,
    },
    ...(op ? [gather(rank, 50, 100, sum)] : []),
    { rank, t_start: 100, t_end: 110, kind: "optimizer", op: "step", phase: "step", step: 1 },
  ]);
  const units = [
    ["a", 8],
    ["a other", 8],
  ];
  const payload = payloadOf(events, { units });
  Object.assign(payload.units[1], more);
  return beatsOf(payload).list.at(-1).caption;
}

test("an update is not said to change what is frozen", () => {
  const all = "Update: every rank changes all parameters";
  assert.equal(updating({}, [0, 8]), `${all}, each in the same way.`);
  assert.equal(updating({ frozen: true }, [0, 8]), `${all} that are not frozen, each in the same way.`);
});

test("updates by gradients that nobody added up are not said to be the same", () => {
  const all = "Update: every rank changes all parameters";
  assert.equal(updating({}, [0, 8], null), `${all}, each by its own gradients alone.`);
  assert.equal(updating({}, [0, 8], "all_to_all"), `${all}.`);
});

test("where some units are whole on all ranks, each is said to change them beside its own part", () => {
  assert.equal(updating({}, [0, 4]), "Update: each rank changes only the half that it owns.");
  const both = "Update: each rank changes only the half that it owns, and what all ranks keep whole.";
  assert.equal(updating({ replicated: true }, [0, 4]), both);
});

test("the only rank changes all parameters, and nobody speaks of others", () => {
  const update = { rank: 0, t_start: 100, t_end: 110, kind: "optimizer", op: "step", phase: "step", step: 1 };
  const { list } = beatsOf(payloadOf([pass(0, 10, 100), update]));
  const broken = beatsOf(payloadOf([pass(0, 10, 100), update], { cut: 110 })).list.at(-1);
  assert.equal(broken.caption, `${list.at(-1).caption} It never ended.`);
  assert.equal(list.at(-1).caption, "Update: the rank changes all parameters.");
});

test("one rank sends nothing, so its beats are what it computes", () => {
  const alone = gather(0, 0, 10, { group: [0] });
  const { list } = beatsOf(payloadOf([alone, pass(0, 10, 100)]));
  assert.deepEqual(
    list.map(({ caption }) => caption),
    ["a: the rank computes the forward of its own batch."],
  );
});

/** What is recorded of a rank that has half of each unit alone, and computes with that. */
const parted = (rank) =>
  ["a", "b"].map((unit) => {
    const of = { kind: "memory", op: "hold", unit, category: "parameters", spans: [0, 4] };
    return { rank, t_start: 0, t_end: 0, step: 1, ...of };
  });

const PAIR = [
  ["a", 8],
  ["b", 8],
];

test("what is sent within a unit that ranks have parts of is not said to be a sum, nor to be computed by it", () => {
  const captionsOf = (op, numel, group) => {
    const events = [0, 1, 2].flatMap((rank) => [
      ...parted(rank),
      pass(rank, 0, 1000),
      gather(rank, 100, 200, { op, phase: "reduce", unit: undefined, numel, group }),
      pass(rank, 1000, 2000, { op: "backward", phase: "backward" }),
      gather(rank, 1100, 1200, { op, phase: "reduce", unit: undefined, numel, group, number: 1 }),
    ]);
    const own = events.filter(({ kind, rank }) => kind !== "collective" || group.includes(rank));
    const { list } = beatsOf(payloadOf(own));
    return list.filter(({ kind }) => kind === "collective").map(({ caption }) => caption);
  };
  assert.deepEqual(captionsOf("all_reduce", 32, [0, 1, 2]), [
    "a: within its forward, 32 elements are combined over all ranks, which all get the result.",
    "a: within its backward, 32 elements are combined over all ranks, which all get the result.",
  ]);
  const [one] = captionsOf("reduce_scatter", 1, [0, 1]);
  const own = "each of which gets its own part of the result.";
  assert.equal(one, `a: within its forward, 1 element is combined over the 2 ranks of a group, ${own}`);
  const [gathered] = captionsOf("all_gather", 32, [0, 1]);
  const all = "so every rank of the group has all of them.";
  assert.equal(gathered, `a: within its forward, 32 elements are gathered, ${all}`);
});

test("sums of one size within a pass, over ranks that share a unit and over those with other batches, are two", () => {
  const groups = (rank) => [rank < 2 ? [0, 1] : [2, 3], rank % 2 ? [1, 3] : [0, 2]];
  const events = [0, 1, 2, 3].flatMap((rank) => {
    const sent = { op: "all_reduce", phase: "reduce", unit: undefined };
    const [shared, data] = groups(rank);
    return [
      ...parted(rank),
      pass(rank, 0, 1000),
      gather(rank, 100, rank < 2 ? 200 : 500, { ...sent, group: shared }), // the second pair is slow
      gather(rank, 150, 400, { ...sent, group: data }),
      gather(rank, 600, 700, { ...sent, group: shared, number: 1 }),
    ];
  });
  const { list, model } = beatsOf(payloadOf(events));
  const sums = list.filter(({ kind }) => kind === "collective");
  const told = sums.map(({ places }) => places.map((i) => model.event(i)));
  assert.deepEqual(
    told.map((of) => [of.map(({ rank }) => rank).sort(), new Set(of.map(({ group }) => group[1] - group[0])).size]),
    [0, 1, 2].map(() => [[0, 1, 2, 3], 1]),
  );
});

/** The beats of a backward of two units; the first rank leaves what is sent in it earlier, and the last one later. */
function backwards(lead, lag) {
  const backward = { op: "backward", phase: "backward" };
  const events = [0, 1, 2, 3].flatMap((rank) => {
    const then = 2000 + ({ 0: -lead, 3: lag }[rank] ?? 0);
    const sent = { op: "all_reduce", phase: "reduce", unit: undefined, group: [0, 1, 2, 3] };
    return [
      ...parted(rank),
      pass(rank, 0, 10),
      pass(rank, 10, 20, { unit: "b" }),
      pass(rank, 20, then + 10, { ...backward, unit: "b" }),
      gather(rank, 100, then, sent),
      pass(rank, then + 10, then + 100, backward),
      { rank, t_start: 3000, t_end: 3100, kind: "optimizer", op: "step", phase: "step", step: 1 },
    ];
  });
  const { list } = beatsOf(payloadOf(events, { units: PAIR }));
  return list.filter(({ act }) => act === "backward").map(({ kind, units, amid }) => [kind, (amid ?? units[0]).name]);
}

const ALL_TOLD = [
  ["compute", "b"],
  ["collective", "b"],
  ["compute", "a"],
];

test("a pass that most ranks ended while one was still sending within the pass before is a beat", () => {
  assert.deepEqual(backwards(0, 200), ALL_TOLD);
});

test("a pass behind one in which ranks wait for each other is a beat, however early one of them began it", () => {
  assert.deepEqual(backwards(1500, 0), ALL_TOLD);
});

test("so is one of a unit that every rank has whole, though the first to get a core begins it early", () => {
  const events = [0, 1, 2, 3].flatMap((rank) => {
    const then = rank ? 1900 : 100;
    return [
      pass(rank, 0, then),
      pass(rank, then, 2000, { unit: "b" }),
      gather(rank, 2000, 2100, { op: "all_reduce", phase: "reduce", unit: "b", group: [0, 1, 2, 3] }),
    ];
  });
  const { list } = beatsOf(payloadOf(events, { units: PAIR }));
  assert.deepEqual(
    list.map(({ kind, units }) => [kind, units[0].name]),
    [
      ["compute", "a"],
      ["compute", "b"],
      ["collective", "b"],
    ],
  );
});

test("the beats of two steps follow each other without a gap, and are read in their time", () => {
  const [names, steps] = [
    ["a", "b"],
    [1, 2],
  ];
  const events = [0, 1].flatMap((rank) =>
    steps.flatMap((step) =>
      names.flatMap((unit, k) => {
        const [start, number] = [10_000 * step + 1000 * k + 37 * rank, 2 * step + k];
        return [
          gather(rank, start, start + 300, { step, unit, number }),
          pass(rank, start + 300, start + 900, { step, unit }),
        ];
      }),
    ),
  );
  const { list, model } = beatsOf(payloadOf(events, { units: names.map((name) => [name, 8]) }));
  assert.ok(list.length > 6);
  list.forEach((beat, k) => {
    if (k) assert.equal(beat.t0, list[k - 1].t1);
    assert.ok(beat.seconds >= 1.5 && beat.seconds <= 3);
    assert.ok(beat.first <= beat.last && beat.last < model.count);
  });
});
