// A setting that can be changed during a run: its field, Set, and Automatic.
import { actionButton, html, isKey } from '../shared/dom.js';
import { formatNumber } from '../shared/format.js';
import { term } from '../shared/glossary.js';

export class LiveSetting {
  /** @param {string} name @param {(value: string) => void} set */
  constructor(name, set) {
    this.name = name;
    this.shownText = '';
    this.isDirty = false; // typed, and not set yet
    const submit = () => this.input.value.trim() && set(this.input.value);
    this.input = html`<input
      class="lab-input knob" type="text" inputmode="decimal" aria-label=${name} data-do="knob-${name}"
      oninput=${() => (this.isDirty = true)} onblur=${() => this.restoreIfEmpty()}
      onkeydown=${(event) => {
        if (!isKey(event, 'Enter')) return;
        submit();
        event.target.blur();
      }}
    />`;
    this.automatic = actionButton(`automatic-${name}`, 'Automatic', () => set('automatic'), 'small', {
      'aria-label': `automatic ${name}`,
      title: `Let the run adapt ${name} again.`,
    });
    this.setBy = html`<span class="muted" data-do="set-by-${name}"></span>`;
    this.label = html`<div class="lab-row knobs" role="group" aria-label=${name}>
      <span class="muted">${term(name)}</span>
      ${this.input}
      ${actionButton(`set-${name}`, 'Set', submit, 'small', { 'aria-label': `set ${name}` })}
      ${this.automatic}${this.setBy}
    </div>`;
  }

  restoreIfEmpty() {
    if (this.input.value.trim()) return;
    this.isDirty = false;
    this.input.value = this.shownText;
  }

  // The lab has answered a change; message: why it refused it.
  answered(message) {
    this.input.toggleAttribute('aria-invalid', Boolean(message));
    if (!message) this.isDirty = false;
  }

  /** @param {lab.RunState} run @param {string[]} adapted settings that the run adapts
   * @param {Record<string, number>} inUse values of the newest step */
  draw(run, adapted, inUse) {
    const { name, input, automatic, setBy } = this;
    const isByHand = run.set_by_hand.includes(name);
    const isAutomatic = adapted.includes(name) && !isByHand;
    this.shownText = settingText(run[name], isAutomatic ? inUse[name] : null);
    if (document.activeElement !== input && !this.isDirty) input.value = this.shownText;
    automatic.hidden = !isByHand;
    setBy.textContent = isByHand ? 'set by hand' : isAutomatic ? 'set automatically' : '';
    setBy.title = isByHand
      ? `${name} keeps this value until you set another one or choose Automatic.`
      : `The run adapts ${name} at every step; the field shows its value at the newest one. A value that you set is ` +
        'no longer adapted.';
  }
}

/**
 * A setting as text that fits into its field.
 * @param {number} set @param {number | null | undefined} inUse of a setting that the run adapts
 */
export function settingText(set, inUse) {
  return inUse === null || inUse === undefined ? String(set) : formatNumber(inUse);
}
