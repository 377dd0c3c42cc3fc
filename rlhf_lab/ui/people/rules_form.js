// The labelling rules of the project as a form.
import { html } from '../shared/dom.js';
import { field, valuesOf } from '../shared/fields.js';
import { term } from '../shared/glossary.js';
import { operatorOnly } from '../shared/session.js';

// fields, gold_fields: as for `field` of shared/fields.js; send(form, rules): called with the values by name.
export function rulesForm({ fields, gold_fields: goldFields }, rules, send) {
  const ruleField = ({ label, ...item }) => field(`rule-${item.name}`, label, { ...item, value: rules[item.name] });
  const ruleFields = (items) => html`<div class="rules">${items.map(ruleField)}</div>`;
  const submit = (event) => {
    event.preventDefault();
    send(event.target, valuesOf(event.target));
  };
  return html`<details class="lab-card rules-form">
    <summary>Labelling rules of this project</summary>
    <form onsubmit=${submit}>
      ${operatorOnly(
        ruleFields(fields),
        html`<h3>${term('gold pair', 'Gold pairs')}</h3>`,
        html`<p class="muted">
          Gold pairs have a known answer. To create some, press "gold pair" under Label, in your earlier labels. To
          avoid false alarms, the rule applies only after enough gold answers, and only if even the upper end of the
          95 % interval of a person's accuracy is below the bound. It is checked after every tenth answer, so that a
          note does not reveal a gold pair.
        </p>`,
        ruleFields(goldFields),
        html`<button type="submit" class="lab-button lab-main">Use these rules</button>`,
      )}
      <p class="result" role="status"></p>
    </form>
  </details>`;
}
