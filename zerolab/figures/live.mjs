// Draws a figure in a panel, and again whenever the kernel sends another. Above this text live.py puts plotly.

/** @import { WidgetModel } from "../player/types.d.ts" */

/** @typedef {{ react(el: HTMLElement, figure: object): Promise<unknown>, purge(el: HTMLElement): void }} Plotly */
const plotly = /** @type {Plotly} */ (module.exports);

/** @param {{ model: WidgetModel, el: HTMLElement }} given */
async function render({ model, el }) {
  const draw = () => plotly.react(el, JSON.parse(model.get("figure")));
  model.on("change:figure", draw);
  await draw();
  return () => {
    model.off("change:figure", draw);
    plotly.purge(el);
  };
}

export default { render };
