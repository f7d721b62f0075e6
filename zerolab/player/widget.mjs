// What a notebook runs to show a widget of ours: it fetches the code that draws it from a model beside the widget.
// These few lines are soon ready, and what the kernel says goes to another model: shell.py says why.

/** @import { CodeModel, Drawing, WidgetModel } from "./types.d.ts" */

/**
 * A text that shell.py has packed.
 * @param {string} packed
 */
function unpacked(packed) {
  const bytes = Uint8Array.from(atob(packed), (letter) => letter.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
}

/**
 * The code in a model, imported once for all widgets of the page: a page never lets go of a module.
 * @param {CodeModel} code
 * @returns {Promise<Drawing>}
 */
async function imported(code) {
  const style = document.createElement("style");
  style.textContent = await unpacked(code.get("style"));
  document.head.append(style);
  const script = await unpacked(code.get("script"));
  const address = URL.createObjectURL(new Blob([script], { type: "text/javascript" }));
  try {
    return (await import(address)).default;
  } finally {
    URL.revokeObjectURL(address);
  }
}

/**
 * @param {{ model: { get(name: string): string, widget_manager: { get_model(id: string): Promise<unknown> } },
 *   el: HTMLElement }} given
 */
async function show({ model, el }) {
  const beside = (/** @type {string} */ name) =>
    model.widget_manager.get_model(model.get(name).replace("IPY_MODEL_", ""));
  const code = /** @type {CodeModel} */ (await beside("_code"));
  window.zerolabCode ??= new WeakMap();
  const drawing = window.zerolabCode.get(code) ?? imported(code);
  window.zerolabCode.set(code, drawing);
  const told = /** @type {WidgetModel} */ (await beside("_told"));
  return (await drawing).render({ model: told, el, unpacked });
}

export default { render: show };
