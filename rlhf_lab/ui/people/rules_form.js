// The labelling rules of the project as a form.
import { html, optionList } from '../shared/dom.js';
import { term } from '../shared/glossary.js';
import { operatorOnly } from '../shared/session.js';

const RULE_LABELS = {
  overlap: 'Votes per pair',
  repeats: 'Share of pairs shown a second time (0 to 0.5)',
  hold_s: 'Reserve a pair for one person (seconds)',
  sampling: 'Which pairs are shown',
  texts: 'Which model writes the texts',
  gold_rate: 'Share of gold pairs (0 to 0.5)',
  gold_rule: 'Below the lowest acceptable accuracy',
  gold_bound: 'Lowest acceptable accuracy (0 to 1)',
  gold_answers: 'Gold answers before the rule acts',
  gold_weight: 'Weight of votes that count less',
  gold_training: 'Learn from votes on gold pairs',
  markdown: 'Show Markdown',
  guideline: 'Guideline',
};
const CHOICE_LABELS = {
  random: 'any',
  teaching: 'two of four texts: complete, of similar length',
  information: 'whose answers are expected to teach the most',
  uncertainty: 'where the reward model is least sure',
  diversity: 'least similar to the existing pairs',
  none: 'nothing happens',
  inform: 'the person gets a friendly note',
  down_weight: 'their votes count less in reward models',
  pause: 'they are paused until you let them continue',
  base: 'the base model',
  policy: 'the newest checkpoint of a run',
};

// fields: [{name, type, help, low, high, choices, group}]; send(form, rules): called with the values by name.
export function rulesForm(fields, rules, send) {
  const ruleFields = (isGold) =>
    html`<div class="rules">
      ${fields.filter((item) => (item.group === 'gold') === isGold).map((item) => ruleField(item, rules[item.name]))}
    </div>`;
  const submit = (event) => {
    event.preventDefault();
    send(event.target, formValues(event.target, fields));
  };
  return html`<details class="lab-card rules-form">
    <summary>Labelling rules of this project</summary>
    <form onsubmit=${submit}>
      ${operatorOnly(
        ruleFields(false),
        html`<h3>${term('gold pair', 'Gold pairs')}</h3>`,
        html`<p class="muted">
          Gold pairs have a known answer. To create some, press "gold pair" under Label, in your earlier labels. To
          avoid false alarms, the rule applies only after enough gold answers, and only if even the upper end of the
          95 % interval of a person's accuracy is below the bound. It is checked after every tenth answer, so that a
          note does not reveal a gold pair.
        </p>`,
        ruleFields(true),
        html`<button type="submit" class="lab-button lab-main">Use these rules</button>`,
      )}
      <p class="result" role="status"></p>
    </form>
  </details>`;
}

function formValues(form, fields) {
  const value = (item) => (item.type === 'bool' ? form.elements[item.name].checked : form.elements[item.name].value);
  return Object.fromEntries(fields.map((item) => [item.name, value(item)]));
}

function ruleField(item, value) {
  const id = `lab-rule-${item.name}`;
  return html`<div class="rule ${item.name === 'guideline' ? 'wide' : ''}">
    <label for=${id}>${RULE_LABELS[item.name] || item.name}</label>
    ${ruleInput(item, value, id)}
    <p class="muted" id="${id}-help">${item.help}</p>
  </div>`;
}

function ruleInput({ name, type, choices, low, high }, value, id) {
  const help = `${id}-help`;
  if (type === 'bool') {
    return html`<input id=${id} name=${name} aria-describedby=${help} type="checkbox" checked=${value} />`;
  }
  if (choices) {
    const items = choices.map((one) => [one, CHOICE_LABELS[one] || one]);
    return html`<select class="lab-input" id=${id} name=${name} aria-describedby=${help}>
      ${optionList(items, value)}
    </select>`;
  }
  if (name === 'guideline') {
    const text = html`<textarea class="lab-input" id=${id} name=${name} aria-describedby=${help} rows="3"></textarea>`;
    text.value = value;
    return text;
  }
  return html`<input
    class="lab-input" id=${id} name=${name} aria-describedby=${help} type="number" min=${low} max=${high}
    step=${type === 'int' ? 1 : 'any'} value=${value}
  />`;
}
