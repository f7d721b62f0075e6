// Draws a figure in a panel, and again whenever the kernel sends another.

/** @import { WidgetModel } from "../player/types.d.ts" */

/**
 * plotly, loaded once for all figures of the page.
 * @param {string} text
 */
function plotly(text) {
  const parts = ["const module = { exports: {} };\n", text, "\nexport default module.exports;"];
  window.zerolabPlotly ??= import(URL.createObjectURL(new Blob(parts, { type: "text/javascript" })));
  return window.zerolabPlotly;
}

/** @param {{ model: WidgetModel, el: HTMLElement }} given */
async function render({ model, el }) {
  const { default: drawing } = await plotly(model.get("plotly"));
  const draw = () => drawing.react(el, JSON.parse(model.get("figure")));
  model.on("change:figure", draw);
  await draw();
  return () => {
    model.off("change:figure", draw);
    drawing.purge(el);
  };
}

export default { render };
