import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { Model } from "../../zerolab/player/model.js";

const file = process.env.ZEROLAB_TEST_PAYLOAD;

test("every field of every event that Python wrote is read again", {
  skip: !file && "test_javascript.py writes the file",
}, () => {
  const { payload, events } = JSON.parse(readFileSync(file, "utf8"));
  const model = new Model(payload);
  const read = events.map((_, i) => {
    const { index, source, line, fromAutograd, ...rest } = model.event(i);
    assert.equal(index, i);
    const text = source === null ? null : { label: payload.sources[source].label, line, fromAutograd };
    return { ...rest, source: text, live: model.liveAt(i), host: model.liveAt(i, "host") };
  });
  assert.deepEqual(read, events);
});
