// For the operator: let a simulated judge label, or start a new project.
import { openNextClass } from '../people/next_class.js';
import { actionButton, html } from '../shared/dom.js';

// judge({judge, count}): let a judge label.
export function demonstrationView(judges, promptSet, judge) {
  const preset = judges.find((judge) => judge.prompt_set === promptSet) || judges[0];
  const choice = html`<select class="lab-input" aria-label="simulated judge">
    ${judges.map(({ name, description }) => {
      return html`<option value=${name} title=${description} selected=${name === preset.name}>${name}</option>`;
    })}
  </select>`;
  return html`<details class="talks lab-operating">
    <summary class="muted">Demonstration: let a simulated judge label, or start again</summary>
    <div class="lab-row" style="margin-top:10px">
      ${choice}
      ${actionButton('judge', 'Judge labels 40 more (simulated)', () => judge({ judge: choice.value, count: 40 }))}
      ${actionButton('next-class', 'Next class …', openNextClass)}
    </div>
  </details>`;
}
