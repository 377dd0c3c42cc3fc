// Screen "People": who is here, the leaderboard, the invitation; for the operator also the labelling rules and erasing
// a person.
import { deleteConfirmation, el, svg, tableHead } from '../shared/dom.js';
import { displayName, formatInterval, formatPercent, isVisitor, plural } from '../shared/format.js';
import { poll, unwrap } from '../shared/poll.js';
import { annotatorName, earlierName, isOperator, operatorNotice, operatorOnly } from '../shared/session.js';

const ROLE_TEXTS = {
  viewer: 'You can view everything, but not label.',
  labeller: 'You may label.',
  operator: 'You can do everything: label, train, change projects and rules.',
};
const RULE_LABELS = {
  overlap: 'Votes wanted for each pair',
  repeats: 'Share of pairs shown a second time (0 to 0.5)',
  hold_s: 'Keep a pair for one person (seconds)',
  sampling: 'Which pairs are shown',
  texts: 'Who writes the texts',
  gold_rate: 'Share of gold pairs (0 to 0.5)',
  gold_rule: 'Below the bound',
  gold_bound: 'Bound of the accuracy (0 to 1)',
  gold_answers: 'Gold answers before the rule acts',
  gold_weight: 'Weight of votes that count less',
  gold_training: 'Learn from votes on gold pairs',
  markdown: 'Show Markdown',
  guideline: 'Guideline',
};
const CHOICE_LABELS = {
  random: 'any',
  teaching: 'two of four texts, whole and alike in length',
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
const share = (count, total) => (total ? `${formatPercent(count / total)} of ${total}` : '–');
const SORT_VALUES = {
  labels: (row) => [row.labels],
  themselves: (row) => [row.consistent_repeats / row.repeats, row.repeats],
  others: (row) => [row.agreements / row.comparisons, row.comparisons],
};
const GOLD_RULE_TEXT =
  'Gold pairs have a known answer. To create some, press "gold pair" under Label, in your earlier labels. To ' +
  'avoid false alarms, the rule applies only after enough gold answers, and ' +
  "only if even the upper end of the 95 % interval of a person's accuracy is below the bound. It is checked " +
  'after every tenth answer, so that a note does not reveal a gold pair.';

export default function mount({ element, props, server, trigger, watch }) {
  const root = element.querySelector('.lab-people');
  let state = null;
  let drawnRules = '';
  let sent = {}; // {id, card}: the last rules or erasure sent, and where its result is shown
  let invite; // the operator's invitation; undefined until it has arrived, null if others cannot reach this lab
  let sortKey = 'labels';

  // The role of this visitor. The operator's secret gives all rights and does not change the name.
  const role = () => (isOperator() ? 'operator' : state.you.role === 'viewer' ? 'viewer' : 'labeller');

  function presenceCard() {
    const names = state.present.filter((name) => !isVisitor(name));
    const others = state.present.length - names.length;
    const list = [...names, ...(others ? [`${others} without a name`] : [])].join(', ');
    const count = state.present.length;
    const yourName = state.you.name && !isVisitor(state.you.name) ? `, ${state.you.name}` : '';
    return el(
      'section.lab-card',
      { 'aria-label': 'who is connected' },
      el(
        'h2',
        { 'data-here': count },
        count === 1 && state.present[0] === state.you.name
          ? 'Nobody else is connected'
          : count === 1
            ? 'One person is connected'
            : `${count} people are connected`,
      ),
      count > 1 || names.length ? el('p.muted', {}, list) : null,
      el(
        'p',
        {},
        ROLE_TEXTS[role()].replace('You', () => `You${yourName}${yourName && ','}`),
      ),
      role() === 'viewer' ? el('p', {}, el('a.lab-button', { href: 'join' }, 'Join to label')) : null,
      operatorNotice('Only the operator can change the labelling rules and remove people from the lab.'),
    );
  }

  // Highest first; rows without a value come last, and equal values are ordered by their number of pairs.
  function sortedRows() {
    const sortValues = (one) => SORT_VALUES[sortKey](one).map((value) => (Number.isNaN(value) ? -1 : value));
    const compare = (a, b) => {
      const i = a.findIndex((figure, k) => figure !== b[k]);
      return i < 0 ? 0 : b[i] - a[i];
    };
    return [...state.leaderboard].sort((a, b) => compare(sortValues(a), sortValues(b)));
  }

  function leaderboard() {
    if (!state.leaderboard.length) {
      return el(
        'section.lab-card',
        {},
        el('h2', {}, 'Labels'),
        el('p.muted', {}, 'Nobody has labelled in this project yet.'),
      );
    }
    const head = [
      ['labels', 'Labels', 'without skips'],
      ['themselves', 'Self-consistency', 'on pairs shown twice, sides swapped'],
      ['others', 'Agreement with others', 'on pairs that others also judged'],
    ];
    const oldName = earlierName();
    return el(
      'section.lab-card',
      { 'aria-label': 'leaderboard' },
      el('h2', {}, 'Labels'),
      el(
        'div.scroll',
        {},
        el(
          'table',
          {},
          el(
            'thead',
            {},
            el(
              'tr',
              {},
              el('th', { scope: 'col' }, 'Name'),
              head.map(([key, name, title]) =>
                el(
                  'th',
                  { scope: 'col', 'aria-sort': key === sortKey ? 'descending' : 'none' },
                  el(
                    'button',
                    {
                      type: 'button',
                      'data-sort': key,
                      title: `${title}; press to sort by this column`,
                      onclick: () => {
                        sortKey = key;
                        draw();
                      },
                    },
                    name,
                  ),
                ),
              ),
            ),
          ),
          el(
            'tbody',
            {},
            sortedRows().map((row) =>
              el(
                row.annotator === state.you.name ? 'tr.me' : 'tr',
                { 'data-name': row.annotator },
                el(
                  'th',
                  { scope: 'row', dir: 'auto', title: row.annotator },
                  displayName(row.annotator),
                  row.annotator === oldName
                    ? el('span.muted', {}, ' (you, before this lab was opened to others)')
                    : null,
                ),
                el('td', {}, row.labels),
                el('td', {}, share(row.consistent_repeats, row.repeats)),
                el('td', {}, share(row.agreements, row.comparisons)),
              ),
            ),
          ),
        ),
      ),
      state.has_agreement
        ? null
        : el('p.muted', {}, 'This project shows gold pairs, so only the operator sees how often people agree.'),
    );
  }

  function qrImage() {
    const { size, path } = invite.qr;
    return svg(
      'svg',
      { viewBox: `0 0 ${size} ${size}`, role: 'img', 'aria-label': `QR code of ${invite.link}`, class: 'qr' },
      svg('path', { d: path }),
    );
  }

  function invitationCard() {
    if (invite === undefined) return null;
    if (invite && !invite.link) {
      return el(
        'section.lab-card.invite',
        { 'aria-label': 'invitation' },
        el(
          'div',
          {},
          el('h2', {}, 'Join to label'),
          el('p.code', { 'data-code': invite.code }, invite.code),
          el(
            'p.muted',
            {},
            'This lab runs in a container and does not know the address of its computer in the network. Open this ' +
              'page by that address instead of localhost, for example http://192.168.1.20:7860/: then the link and ' +
              'the QR code for phones appear here. Or start the lab with --url and that address.',
          ),
        ),
      );
    }
    if (!invite) {
      return el(
        'section.lab-card',
        {},
        el('h2', {}, 'Others'),
        el(
          'p.muted',
          {},
          'Phones and other computers cannot reach this lab. Start it with ',
          el('code', {}, `${props.data.page_command} --host 0.0.0.0`),
          ' and others in your network join with a code.',
        ),
      );
    }
    const [address] = invite.link.split('?'); // short enough to type; the whole link can be copied
    return el(
      'section.lab-card.invite',
      { 'aria-label': 'invitation' },
      qrImage(),
      el(
        'div',
        {},
        el('h2', {}, 'Join to label'),
        el('p.code', { 'data-code': invite.code }, invite.code),
        el('p.lab-text', {}, address, el('span.muted', {}, invite.link.slice(address.length))),
      ),
    );
  }

  function ruleField(item) {
    const id = `lab-rule-${item.name}`;
    const value = state.rules[item.name];
    const common = { id, name: item.name, 'aria-describedby': `${id}-help` };
    let input;
    if (item.type === 'bool') input = el('input', { ...common, type: 'checkbox', checked: value });
    else if (item.choices) {
      input = el(
        'select.lab-input',
        common,
        item.choices.map((c) => el('option', { value: c, selected: c === value }, CHOICE_LABELS[c] || c)),
      );
    } else if (item.name === 'guideline') {
      input = el('textarea.lab-input', { ...common, rows: 3 });
      input.value = value;
    } else {
      input = el('input.lab-input', {
        ...common,
        type: 'number',
        min: item.low,
        max: item.high,
        step: item.type === 'int' ? 1 : 'any',
        value,
      });
    }
    return el(
      item.name === 'guideline' ? 'div.rule.wide' : 'div.rule',
      {},
      el('label', { for: id }, RULE_LABELS[item.name] || item.name),
      input,
      el('p.muted', { id: `${id}-help` }, item.help),
    );
  }

  function ruleFields(group) {
    return el(
      'div.rules',
      {},
      props.data.fields.filter((item) => (item.group === 'gold') === (group === 'gold')).map(ruleField),
    );
  }

  function rulesForm() {
    const form = el(
      'form',
      {
        onsubmit: (event) => {
          event.preventDefault();
          const values = Object.fromEntries(
            props.data.fields.map((item) => {
              const input = form.elements[item.name];
              return [item.name, item.type === 'bool' ? input.checked : input.value];
            }),
          );
          sent = { id: Date.now(), card: '.rules-form' };
          trigger('rules', { request_id: sent.id, rules: values });
        },
      },
      operatorOnly(
        ruleFields('other'),
        el('h3', {}, 'Gold pairs'),
        el('p.muted', {}, GOLD_RULE_TEXT),
        ruleFields('gold'),
        el('button.lab-button.lab-main', { type: 'submit' }, 'Use these rules'),
      ),
      el('p.result', { role: 'status' }),
    );
    return el(
      'details.lab-card.rules-form',
      { open: root.querySelector('.rules-form')?.open },
      el('summary', {}, 'Labelling rules of this project'),
      form,
    );
  }

  function draw() {
    const isOperatorNow = isOperator();
    const key = JSON.stringify([state.rules, isOperatorNow]);
    const keptForm = key === drawnRules ? root.querySelector('.rules-form') : null; // a person may be filling it in
    drawnRules = key;
    const focusedColumn = document.activeElement?.dataset.sort;
    const form = isOperatorNow ? keptForm || rulesForm() : null;
    // not replaced, so that they keep the focus
    for (const child of [...root.children]) if (![keptForm, erasure, goldCard].includes(child)) child.remove();
    root.prepend(
      ...(invite
        ? [invitationCard(), presenceCard(), leaderboard()]
        : [presenceCard(), invitationCard(), leaderboard()]
      ).filter(Boolean),
    );
    if (focusedColumn) root.querySelector(`[data-sort=${focusedColumn}]`)?.focus();
    if (!erasure.isConnected) root.append(goldCard, erasure);
    if (form && form !== keptForm) goldCard.before(form);
  }

  // ---- gold pairs and experts: by events for the operator alone, because a figure that changes after an answer would
  // reveal a gold pair

  let drawnGold = '';
  let goldReply = null;
  const goldContent = el('div');
  const goldCard = el(
    'details.lab-card.gold.lab-operating',
    { ontoggle: () => requestGold() },
    el('summary', {}, 'Gold pairs and experts'),
    goldContent,
    el('p.result', { role: 'status' }),
  );

  function sendPerson(fields) {
    sent = { id: Date.now(), card: '.gold' };
    trigger('person', { request_id: sent.id, ...fields });
  }

  function goldRow(name, row) {
    const isExpert = goldReply.experts.includes(name);
    const effect = { inform: 'gets a note', down_weight: 'votes count less', pause: 'pauses' }[goldReply.rule];
    const expert = el('input', {
      type: 'checkbox',
      checked: isExpert,
      'data-do': 'expert',
      'aria-label': `${displayName(name)} is an expert`,
      onchange: () => sendPerson({ name, is_expert: !isExpert }),
    });
    const goOn = () =>
      operatorOnly(
        el('span.lab-badge', {}, `below the bound: ${effect}`),
        ' ',
        el(
          'button.lab-button.small',
          {
            type: 'button',
            'data-do': 'go-on',
            title: 'Resets the count of gold answers.',
            onclick: () => sendPerson({ name, go_on: true }),
          },
          'End pause',
        ),
      );
    return el(
      'tr',
      { 'data-name': name },
      el('th', { scope: 'row', dir: 'auto' }, displayName(name)),
      el('td', {}, row ? `${row.right} of ${row.answers}` : '–'),
      el('td', {}, row ? `${formatPercent(row.right / row.answers)} (${formatInterval(row.low, row.high)})` : '–'),
      el('td', {}, operatorOnly(expert)),
      el('td', {}, row?.below ? goOn() : null),
    );
  }

  function drawGold() {
    const { gold_pairs, people, experts } = goldReply;
    const rows = new Map(people.map((row) => [row.annotator, row]));
    const voters = state.leaderboard.map((row) => row.annotator);
    const names = [...new Set([...rows.keys(), ...experts, ...voters])]
      .filter((name) => !isVisitor(name) || rows.has(name))
      .sort();
    const key = JSON.stringify([goldReply, names]);
    if (key === drawnGold) return;
    drawnGold = key;
    goldContent.replaceChildren(
      el(
        'p',
        { 'data-gold': gold_pairs },
        gold_pairs
          ? `${plural(gold_pairs, 'gold pair')} in this project. Only you see these figures. Reward models are ` +
              'not trained on votes on gold pairs, unless the rules above allow it.'
          : 'There are no gold pairs yet. To create some, press "gold pair" under Label, in your earlier ' +
              'labels, next to an answer that is clearly right.',
      ),
      el(
        'p.muted',
        {},
        'Experts decide pairs that people disagree about, and choose gold pairs, both under Label. You can ' +
          'do this too.',
      ),
      names.length
        ? el(
            'div.scroll',
            { tabindex: '0', role: 'group', 'aria-label': 'accuracy on gold pairs' },
            el(
              'table',
              {},
              tableHead(['Name', 'Right', 'Accuracy (95 %)', 'Expert', 'Rule']),
              el(
                'tbody',
                {},
                names.map((name) => goldRow(name, rows.get(name))),
              ),
            ),
          )
        : el('p.muted', {}, 'Nobody with a name has labelled in this project yet.'),
    );
  }

  function requestGold() {
    if (
      goldCard.open &&
      root.offsetParent !== null &&
      !document.hidden &&
      isOperator() &&
      !document.body.classList.contains('lab-offline')
    ) {
      trigger('gold', { request_id: Date.now() });
    }
  }
  setInterval(requestGold, 4000);

  // ---- erasing a person

  let drawnNames = '';
  const erasureName = el('select.lab-input', {
    id: 'lab-erase-name',
    'data-do': 'erase-name',
    onchange: () => drawErasure(),
  });
  const erasureVotes = el('input', { type: 'checkbox', 'data-do': 'erase-votes', onchange: () => drawErasure() });
  const erasureButtons = el('div');
  const erasure = el(
    'details.lab-card.erasure.lab-operating',
    { ontoggle: () => requestNames() },
    el('summary', {}, 'Remove a person from this lab'),
    el(
      'p.muted',
      {},
      'The name is removed from votes, blind tests and reward models of every project, and the person has to ' +
        'join again. ' +
        'Trained reward models and exported files are not changed.',
    ),
    el(
      'div.lab-row',
      {},
      el('label', { for: 'lab-erase-name' }, 'Name'),
      erasureName,
      el('label', {}, erasureVotes, ' also remove their votes and notes'),
    ),
    erasureButtons,
    el('p.result', { role: 'status' }),
  );

  // The button, or the question whether to continue.
  function drawErasure(isConfirming = false) {
    const name = erasureName.value;
    const question =
      `Remove ${name} from every project permanently, ` +
      `${erasureVotes.checked ? 'with all votes' : 'and keep the votes without a name'}?`;
    const erase = () => {
      sent = { id: Date.now(), card: '.erasure' };
      trigger('erase', { request_id: sent.id, name, delete_votes: erasureVotes.checked });
    };
    erasureButtons.replaceChildren(
      isConfirming && name
        ? deleteConfirmation(question, 'erase', {}, erase, () => drawErasure())
        : operatorOnly(
            el(
              'button.lab-button.danger',
              { type: 'button', 'data-do': 'erase', disabled: !name, onclick: () => drawErasure(true) },
              'Remove …',
            ),
          ),
    );
  }

  function drawNames(names) {
    const key = JSON.stringify(names);
    if (key === drawnNames) return;
    drawnNames = key;
    const selected = erasureName.value;
    erasureName.replaceChildren(
      el('option', { value: '' }, names.length ? 'choose …' : 'no named people yet'),
      ...names.map((name) => el('option', { value: name }, name)),
    );
    erasureName.value = names.includes(selected) ? selected : '';
    if (erasureName.value !== selected || !erasureButtons.firstChild) drawErasure();
  }

  // The names are sent only to the operator, therefore by an event, and only while the list is visible.
  function requestNames() {
    if (!erasure.open || root.offsetParent === null || document.hidden) return;
    if (isOperator() && !document.body.classList.contains('lab-offline')) {
      trigger('list_names', { request_id: Date.now() });
    }
  }

  watch('value', () => {
    const reply = props.value;
    if (!reply) return;
    if ('invite' in reply && isOperator()) {
      invite = reply.invite;
      draw();
    }
    if (reply.gold && state) {
      goldReply = reply.gold;
      drawGold();
    }
    if (reply.names) {
      drawNames(reply.names);
      return;
    }
    if (reply.request_id !== sent.id) return;
    const result = root.querySelector(`${sent.card} .result`);
    if (!result) return;
    result.textContent = reply.error || reply.message;
    result.classList.toggle('bad', Boolean(reply.error));
    requestNames();
  });

  poll(
    root,
    async () => {
      state = await unwrap(server.get_state({ annotator: annotatorName() }));
      if (!isOperator()) invite = undefined;
      else if (invite === undefined) {
        trigger('invite', { request_id: Date.now(), origin: location.origin + location.pathname });
      }
      draw();
    },
    4000,
  );

  setInterval(requestNames, 4000);
}
