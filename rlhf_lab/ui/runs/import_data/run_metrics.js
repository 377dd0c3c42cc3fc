// The card "Import a run's metrics" of the section "Import": a file with the curves of a run that was made elsewhere.
import { actionButton, controlsOf, html, perform, showNotice } from '../../shared/dom.js';
import { field, valuesOf } from '../../shared/fields.js';
import { uploadFile } from '../../shared/session.js';
import { tooLargeText } from './texts.js';

const READ_MS = 6 * 60_000; // the lab stops reading after five minutes

/** @param {lab.ImportDataRequests} api */
export function runMetricsCard(api, data) {
  const notice = html`<p class="lab-notice lab-text" role="status" hidden data-do="run-metrics-notice"></p>`;
  const choose = () => fields.file.click();
  const button = actionButton('run-metrics-choose', 'Choose a file and import it', choose, '');
  const add = async (event) => {
    const [file] = event.target.files;
    if (!file) return;
    await perform(
      importFile(api, data, file, valuesOf(card), (text) => showNotice(notice, text)),
      notice,
      [button],
    );
    fields.file.value = '';
  };
  const name = { name: 'run_name', maxlength: data.max_run_name_chars, placeholder: 'that of the file' };
  const updates = { name: 'updates_per_step', type: 'number', min: 1, value: '1', size: 6 };
  const card = html`<section class="lab-card ask" aria-label="import a run's metrics">
    <h3>Import a run’s metrics</h3>
    <p class="muted">
      The trainer_state.json of TRL, or a CSV, JSON Lines, JSON or Parquet file with a row for each step. The run then
      is in the list above, where it can be compared, renamed and deleted. The lab has no model of it.
    </p>
    <div class="lab-row" style="align-items: end">
      ${field('run-metrics-name', 'name of the run', name)}
      ${field('run-metrics-updates', 'updates in a step', updates)}
      ${button}
      <input
        type="file" hidden accept=${data.suffixes.join(',')} aria-label="file with metrics" data-do="run-metrics-file"
        onchange=${add}
      />
    </div>
    <p class="muted">
      The README of a recipe says how many updates are a step. With 4, steps 1 to 4 of the file become step 1, with the
      means of their values.
    </p>
    ${notice}
  </section>`;
  const fields = controlsOf(card, 'run-metrics-');
  return card;
}

/** @param {lab.ImportDataRequests} api @param {File} file */
async function importFile(api, data, file, choices, showProgress) {
  if (file.size > data.max_bytes) throw new Error(tooLargeText(file, `${data.lab_command} import-run`));
  showProgress('Sending the file …');
  const uploaded = await uploadFile(file, file.name);
  showProgress('Reading it …');
  return api.import_run({ ...uploaded, ...choices }, READ_MS);
}
