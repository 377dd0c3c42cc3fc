// The form that starts a run. All settings are in Gradio's fields below it; choosing a preset fills them in.
import { requests } from '../../shared/api.js';
import { html, keepFocus } from '../../shared/dom.js';
import { nativeForm } from '../../shared/native_form.js';
import { poll } from '../../shared/poll.js';
import { isOperator, operatorNotice, showRun, uploadFile } from '../../shared/session.js';
import { collapsedForm, missingModelCard, startForm } from './form.js';
import {
  fieldProperties,
  keepEdits,
  progressText,
  sizeLabel,
  sourceText,
  startLabel,
  usesPretrainingTexts,
} from './texts.js';

const api = requests('start_run');
const POLL_MS = 2000;
const ESTIMATE_DELAY_MS = 300;
const READ_MS = 6 * 60_000; // the lab stops reading a file after five minutes

export default class StartRun {
  constructor(root, data, widget) {
    this.root = root;
    this.data = data;
    this.fields = nativeForm(widget, (settings) => this.settingsChanged(settings));
    this.container = html`<div><div class="lab-card lab-empty">Loading the reward models …</div></div>`;
    this.state = /** @type {lab.StartOptions | null} */ (null);
    this.drawnKey = ''; // of what is on screen
    this.estimatesKey = ''; // of the estimate
    this.algorithm = data.algorithms[0]; // of the fields
    this.wasOpened = false; // whether a person opened the form
    this.startsWithoutModel = false; // whether a person wants a run without a reward model, while there is none
    this.isStarting = false;
    this.fillCount = this.estimateCount = 0;
    this.estimateTimer = undefined;
    this.forgetChoices();
    root.classList.toggle('lab-operating', data.is_demo); // visitors have another form: demo_run
    root.append(operatorNotice('Only the operator can start and control runs; you can watch.'), this.container);
    document.addEventListener('mouseover', (event) => this.explainDisabled(event));
    this.pollNow = poll(root, () => this.update(), POLL_MS);
    window.addEventListener('lab-reward', () => this.pollNow());
  }

  // model: the id of the chosen reward model; null: the default one. file: {path, name} of the uploaded texts.
  forgetChoices() {
    this.chosen = { model: null, preset: this.data.presets[0].name, name: '', column: '', file: null };
    this.recommended = null; // the values that a preset left in the fields; null until it did
    this.fillCount += 1; // replies to earlier requests are outdated
    this.estimateCount += 1;
    this.isFilling = this.isOverwriting = false;
    this.error = this.estimate = '';
    this.usesTexts = false;
    this.typed = {}; // the settings, with what is typed beside the button, by name
  }

  control(name) {
    return this.root.querySelector(`[data-do=${name}]`);
  }

  isOpen() {
    return this.wasOpened || this.state.run_count === 0;
  }

  hasForm() {
    return this.state.models.length > 0 || this.startsWithoutModel;
  }

  // The settings beside the button: the setting and its label, by control.
  numbers() {
    const size = this.data.size_by_algorithm[this.algorithm];
    return { 'start-steps': ['steps', 'steps'], 'start-size': [size[0], sizeLabel(size, this.typed)] };
  }

  learnsFromLabels() {
    return this.data.label_algorithms.includes(this.algorithm);
  }

  selectedModel() {
    const { models, default_id: defaultId } = this.state;
    const id = this.chosen.model ?? defaultId;
    if (id === 0) return undefined;
    return models.find((model) => model.id === id) ?? models.find((model) => model.id === defaultId);
  }

  // ---- the settings

  // Fills the fields with a preset, or with what another algorithm recommends; then what a person has changed is kept.
  async fill({ preset = this.chosen.preset, algorithm = this.algorithm }, keepsEdits = false) {
    this.fillCount += 1;
    const number = this.fillCount;
    this.isFilling = true;
    this.isOverwriting = !keepsEdits || !this.recommended;
    this.showError('');
    this.updateControls();
    try {
      const recommended = await api.recommended({ preset, algorithm });
      const shown = await this.fields.values();
      if (number !== this.fillCount) return;
      const edited = this.isOverwriting ? {} : keepEdits(shown, this.recommended, recommended);
      const values = { ...recommended, ...edited, algorithm };
      const readers = this.data.algorithms_by_setting;
      this.algorithm = algorithm;
      await this.fields.fill(fieldProperties(values, recommended, algorithm, readers));
      this.recommended = recommended;
      this.chosen.preset = preset;
      this.settingsChanged(values);
    } catch (error) {
      if (number !== this.fillCount) return;
      this.showError(error.message);
      await this.fields.fill({ algorithm: { value: this.algorithm } }); // which may have been chosen there
    }
    if (number !== this.fillCount) return;
    this.isFilling = this.isOverwriting = false;
    this.updateControls();
  }

  settingsChanged(settings) {
    this.usesTexts = usesPretrainingTexts(settings);
    this.typed = { ...settings };
    this.updateControls();
    if (settings.algorithm !== this.algorithm && !this.isOverwriting) {
      this.fill({ algorithm: settings.algorithm }, true);
      return;
    }
    clearTimeout(this.estimateTimer);
    this.estimateTimer = setTimeout(() => this.updateEstimate(), ESTIMATE_DELAY_MS);
  }

  async enterNumber(control, value) {
    const [name] = this.numbers()[control];
    this.isFilling = true; // the run starts with this number, and a preset is not filled in at the same time
    this.updateControls();
    try {
      await this.fields.fill({ [name]: { value } });
      this.settingsChanged(await this.fields.values());
    } catch (error) {
      this.showError(error.message);
    }
    this.isFilling = false;
    this.updateControls();
  }

  async updateEstimate() {
    this.estimateCount += 1;
    const number = this.estimateCount;
    const settings = await this.fields.values();
    const estimate = await api.estimate({ settings }).catch(() => '');
    if (number !== this.estimateCount) return;
    this.estimate = estimate;
    this.updateControls();
  }

  /** @param {File | undefined} file */
  async upload(file) {
    if (!file) return;
    this.showError('');
    try {
      this.chosen.file = await uploadFile(file, file.name);
    } catch (error) {
      this.showError(error.message);
    }
    this.updateControls();
  }

  // ---- the start

  canStart() {
    if (this.isStarting || this.isFilling || !this.recommended) return false;
    return !this.learnsFromLabels() || Boolean(this.selectedModel() || this.state.labels_text);
  }

  async startRun() {
    if (!this.canStart()) return;
    this.isStarting = true;
    this.showError('');
    this.updateControls();
    const { name, file, column } = this.chosen;
    const texts = file && this.usesTexts ? { ptx_file: file.path, ptx_column: column } : {};
    try {
      const { reward_terms: rewardTerms, track, ...settings } = await this.fields.values();
      const model = this.selectedModel()?.id ?? 0;
      const { run } = await api.start(
        { settings, reward_model: model, name, reward_terms: rewardTerms, track, ...texts },
        file ? READ_MS : undefined,
      );
      this.state = { ...this.state, run_count: this.state.run_count + 1 };
      this.wasOpened = false;
      showRun(run);
    } catch (error) {
      this.showError(error.message);
    }
    this.isStarting = false;
    this.draw();
    this.updateControls();
  }

  // ---- drawing

  async update() {
    const before = this.state;
    this.state = (await api.options.ifChanged()) ?? before;
    const isOther = (name) => before && before[name] !== this.state[name];
    if (['project', 'temperature', 'max_new_tokens'].some(isOther)) this.forgetChoices();
    this.draw();
    if (!isOperator() || !this.isOpen() || !this.hasForm() || this.isFilling) return;
    if (!this.recommended) this.fill({});
    else if (this.estimatesKey !== this.state.estimates_key) this.updateEstimate();
    this.estimatesKey = this.state.estimates_key;
  }

  draw() {
    const { state } = this;
    const [hasForm, isOpen] = [this.hasForm(), this.isOpen()];
    // training progress is shown only while there is no reward model
    const progress = hasForm ? null : state.training_progress;
    const shown = { ...state, estimates_key: '', training_progress: progress };
    const key = JSON.stringify([shown, isOpen, hasForm, isOperator()]);
    if (key === this.drawnKey) return;
    this.drawnKey = key;
    document.body.classList.toggle('lab-run-form-open', isOpen && hasForm);
    if (!isOpen) {
      this.forgetChoices();
      this.container.replaceChildren(collapsedForm(() => this.open()));
    } else if (!hasForm) {
      this.container.replaceChildren(missingModelCard(state, () => this.startWithoutModel()));
    } else this.drawForm();
  }

  drawForm() {
    const chosen = {
      ...this.chosen,
      model: this.selectedModel()?.id ?? 0,
      algorithm: this.algorithm,
    };
    const form = startForm(this.state, this.data, chosen, {
      start: () => this.startRun(),
      close: () => this.close(),
      chooseModel: (id) => this.choose({ model: Number(id) }),
      choosePreset: (preset) => this.fill({ preset }),
      chooseAlgorithm: (algorithm) => this.fill({ algorithm }, true),
      type: (control, value) => {
        this.typed[this.numbers()[control][0]] = value;
      },
      enterNumber: (control, value) => this.enterNumber(control, value),
      enter: (entered) => Object.assign(this.chosen, entered),
      upload: (file) => this.upload(file),
    });
    keepFocus(this.container, () => {
      this.container.replaceChildren(form);
      this.updateControls();
    });
  }

  // What changes while the form stays on screen.
  updateControls() {
    document.getElementById('start-settings')?.toggleAttribute('inert', this.isOverwriting);
    if (!this.control('start')) return;
    this.control('start').textContent = startLabel(this.algorithm);
    this.control('start').disabled = !this.canStart();
    this.control('start-algorithm').disabled = this.isOverwriting;
    if (!this.isFilling) {
      this.control('start-algorithm').value = this.algorithm;
      this.control('start-preset').value = this.chosen.preset;
    }
    for (const [name, [setting, label]] of Object.entries(this.numbers())) {
      const input = this.control(name);
      input.previousElementSibling.textContent = label;
      input.disabled = this.isOverwriting;
      const isBeingTyped = input === document.activeElement && input.dataset.setting === setting;
      if (!isBeingTyped) input.value = this.typed[setting] ?? '';
      input.dataset.setting = setting;
    }
    const model = this.selectedModel();
    this.control('start-note').textContent = [
      sourceText(this.state, model, this.algorithm, this.learnsFromLabels()),
      this.data.algorithm_notes[this.algorithm],
      this.state.few_labels_note,
      progressText(this.state, model),
    ].join(' ');
    this.control('start-ptx').hidden = !this.usesTexts;
    this.control('start-ptx-name').textContent = this.chosen.file?.name ?? 'those of the embedded model';
    this.control('start-estimate').textContent = this.estimate;
    const notice = this.control('start-error');
    notice.hidden = !this.error;
    if (notice.textContent !== this.error) notice.textContent = this.error; // read aloud once
  }

  showError(message) {
    this.error = message;
    this.updateControls();
  }

  choose(change) {
    Object.assign(this.chosen, change);
    this.updateControls();
  }

  open() {
    this.wasOpened = true;
    this.draw();
    this.control('start')?.focus();
    this.pollNow();
  }

  close() {
    this.wasOpened = false;
    this.draw();
  }

  startWithoutModel() {
    this.startsWithoutModel = true;
    this.chosen.model = 0;
    this.draw();
    this.pollNow();
  }

  // The tooltip of a disabled setting says why it is disabled. Set on hover, because the section may be opened late.
  explainDisabled(event) {
    const node = event.target.closest?.('#start-settings [id^="start-"]');
    const readers = node && this.data.algorithms_by_setting[node.id.slice('start-'.length)];
    if (!readers) return;
    node.title = readers.includes(this.algorithm)
      ? ''
      : `${this.algorithm} does not use this setting (only for ${readers.join(', ')}), so it keeps its default.`;
  }
}
