// What a notebook runs to show a player: it fetches the player itself from the widget when there is one to draw.
// anywidget gives a widget's code two seconds to be there, once, and a kernel cannot move a player that was later: on a
// slow machine these few lines are in time, which all of the player's were not.

/** @import { render } from "./index.js" */

/**
 * @param {Parameters<typeof render>[0]} given
 */
async function show(given) {
  const address = URL.createObjectURL(new Blob([given.model.get("_script")], { type: "text/javascript" }));
  try {
    /** @type {{ default: { render: typeof render } }} */
    const player = await import(address);
    return player.default.render(given);
  } finally {
    URL.revokeObjectURL(address);
  }
}

export default { render: show };
