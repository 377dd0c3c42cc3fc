// @ts-check
// Editing the better text of a pair in place: the edited text counts as much better than the original.
import { html } from '../shared/html.js';

const HINT =
  'Write it as it should be. Saving gives two labels: this text is better than the other one, and your version is ' +
  'much better than this text.';

// save(text): called with a text that differs from the original. cancel(): called for Escape, too.
export function answerEditor(original, save, cancel) {
  const field = html`<textarea
    class="lab-input" rows="8" dir="auto" aria-label="edited text" data-do="edit-text"
  ></textarea>`;
  field.value = original;
  const store = html`<button type="button" class="lab-button lab-main" data-do="edit-save">Save as better</button>`;
  const update = () => Object.assign(store, { disabled: !field.value.trim() || field.value.trim() === original });
  field.addEventListener('input', update);
  field.addEventListener('keydown', (event) => event.key === 'Escape' && cancel());
  store.addEventListener('click', () => save(field.value.trim()));
  update();
  return html`<div class="editor">
    ${field}
    <p class="muted">${HINT}</p>
    <div class="lab-row">
      ${store}
      <button type="button" class="lab-button" data-do="edit-cancel" onclick=${cancel}>Cancel</button>
    </div>
  </div>`;
}
