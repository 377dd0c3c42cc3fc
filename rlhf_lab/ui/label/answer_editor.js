// Editing the better text of a pair in place: the edited text counts as much better than the original.
import { actionButton, html, isKey } from '../shared/dom.js';

const HINT =
  'Write it as it should be. Saving gives two labels: this text is better than the other one, and your version is ' +
  'much better than this text.';

// save(text): called with a text that differs from the original. cancel(): called for Escape, too.
export function answerEditor(original, save, cancel) {
  const field = html`<textarea
    class="lab-input" rows="8" dir="auto" aria-label="edited text" data-do="edit-text"
  ></textarea>`;
  field.value = original;
  const store = actionButton('edit-save', 'Save as better', () => save(field.value.trim()), 'lab-main');
  const update = () => Object.assign(store, { disabled: !field.value.trim() || field.value.trim() === original });
  field.addEventListener('input', update);
  field.addEventListener('keydown', (event) => isKey(event, 'Escape') && cancel());
  update();
  return html`<div class="editor">
    ${field}
    <p class="muted">${HINT}</p>
    <div class="lab-row">
      ${store} ${actionButton('edit-cancel', 'Cancel', cancel, '')}
    </div>
  </div>`;
}
