// Generated from the payloads and replies of the page's requests: python tests/javascript/generate_types.py

export interface Read<Payload, Reply> {
  (payload?: Payload, timeoutMs?: number): Promise<Reply>;
  ifChanged(payload?: Payload): Promise<Reply | null>;
}
export interface Action<Payload, Reply> {
  (payload?: Payload, timeoutMs?: number): Promise<Reply>;
}

export interface HeaderRequests {
  status: Read<StatusQuery, HeaderStatus>;
}

export interface LabelRequests {
  recent_votes: Read<Payload, Array<EarlierVote>>;
  presence: Read<Payload, PeopleHere>;
  instant: Read<InstantQuery, InstantFigures>;
  disputed: Read<Payload, Disputes>;
  judge: Action<JudgePayload, LabelState>;
  opened: Action<Payload, LabelState>;
  vote: Action<VotePayload, LabelState>;
  undo: Action<LabelPayload, LabelState>;
  redo: Action<LabelPayload, LabelState>;
  amend: Action<ChangePayload, LabelState>;
  adjudicate: Action<AdjudicationPayload, LabelState>;
  gold: Action<GoldPayload, LabelState>;
}

export interface RewardRequests {
  state: Read<Payload, RewardState>;
  report: Read<ModelQuery, RewardReport>;
  estimates: Read<SettingsQuery, Record<string, string>>;
  explanation: Read<JobQuery, Explanation>;
  train: Action<TrainReward, JobId>;
  visitor_train: Action<TrainAsVisitor, JobId>;
  choose_attribute: Action<ChooseAttribute, JobId>;
  check: Read<ModelQuery, CheckView>;
  begin_check: Action<CheckPayload, CheckView>;
  cancel: Action<JobQuery, null>;
  explain: Action<ExplainText, JobId>;
  take_out_label: Action<TakeOutLabel, Array<number>>;
}

export interface TrainRequests {
  points: Read<FeedQuery, RunPoll>;
  samples: Read<StepQuery, StepSamples>;
  tokens: Read<StepQuery, TokenView>;
  metric_points: Read<MetricQuery, MetricPoints>;
  control: Action<RunControl, null>;
}

export interface StartRunRequests {
  options: Read<Payload, StartOptions>;
  recommended: Read<PresetQuery, Record<string, string | number | boolean | null>>;
  estimate: Read<SettingsQuery, string>;
  start: Action<StartRun, StartedRun>;
  start_live: Action<Payload, StartedRun>;
}

export interface DemoRunRequests {
  state: Read<Payload, DemoState>;
  estimate: Read<RunSettings, DemoEstimate>;
  start: Action<RunSettings, StartedDemoRun>;
  stop: Action<Payload, null>;
}

export interface CompareRequests {
  options: Read<ColumnsQuery, CompareOptions>;
  completions: Read<JobsQuery, TextColumns>;
  estimates: Read<EstimateQuery, CompareEstimates>;
  sample: Action<ComparePayload, RequestedTexts>;
  cancel: Action<JobsQuery, null>;
}

export interface BlindTestRequests {
  get_state: Read<TestQuery, TestState>;
  start: Action<StartTestPayload, NewTestState>;
  edit: Action<EditTestPayload, NewTestState>;
  answer: Action<TestAnswerPayload, NewTestState>;
}

export interface TournamentRequests {
  get_state: Read<TournamentPayload, TournamentState>;
  start: Action<StartTournamentPayload, NewTournamentState>;
  delete: Action<TournamentPayload, NewTournamentState>;
  answer: Action<TournamentAnswerPayload, NewTournamentState>;
}

export interface ChatRequests {
  options: Read<OptionsQuery, ChatOptions>;
  answers: Read<AnswersPayload, Array<Answer>>;
  ask: Action<AskPayload, Array<number>>;
  make_pair: Action<AnswersPayload, null>;
  stop_answers: Action<AnswersPayload, null>;
  forget: Action<AnswersPayload, null>;
}

export interface LearnRequests {
  material: Read<Payload, LearnMaterial>;
  start: Action<StartPayload, Message>;
}

export interface ShareRequests {
  replay: Read<ReplayQuery, Replay>;
}

export interface RunsRequests {
  overview: Read<Payload, RunsOverview>;
  compare: Read<ComparisonQuery, Comparison | null>;
  export_progress: Read<ExportProgressQuery, number | null>;
  export: Action<ExportRequest, Download>;
  rename: Action<NewRunName, string>;
  resume: Action<RunPayload, string>;
  delete: Action<RunPayload, string>;
}

export interface BackupRequests {
  is_confirmed: Read<Payload, boolean>;
  create: Action<Payload, Download>;
  append: Action<BackupPiece, number>;
  check: Action<Payload, string>;
  confirm: Action<Payload, null>;
  discard: Action<Payload, null>;
}

export interface HubMirrorRequests {
  state: Read<Payload, MirrorStatus>;
  set_up: Action<MirrorSetUp, string>;
  take_over: Action<Payload, string>;
  turn_off: Action<Payload, string>;
}

export interface ImportDataRequests {
  imports: Read<Payload, ImportList>;
  preview: Action<DataPayload, DataReply>;
  save: Action<ImportPayload, DataReply>;
  import_run: Action<RunMetricsPayload, string>;
  summarize_undo: Action<ImportId, string>;
  undo: Action<ImportId, string>;
}

export interface QualityRequests {
  state: Read<QualityQuery, QualityView>;
  ask_again: Action<VoteToRepeat, string>;
  train: Action<WeightedAnnotators, string>;
}

export interface PeopleRequests {
  state: Read<Payload, PeopleState>;
  invite: Read<InvitationQuery, Invitation | null>;
  names: Read<Payload, Array<string>>;
  gold: Read<Payload, GoldView>;
  set_rules: Action<RulesPayload, Message>;
  decide: Action<PersonPayload, Decision>;
  erase: Action<ErasePayload, Message>;
  class_state: Read<Payload, ClassState>;
  next_class: Action<NextClassPayload, Message>;
}

export interface ProjectRequests {
  state: Read<Payload, ProjectState>;
  open_existing: Action<ProjectPayload, Message>;
  rename: Action<RenamePayload, Message>;
  set_temperature: Action<TemperaturePayload, Message>;
  set_length: Action<LengthPayload, Message>;
  measure_length: Action<Payload, Message>;
  accept_length: Action<Payload, Message>;
  delete: Action<ProjectPayload, Message>;
  check_model: Action<ModelPayload, ModelCheck>;
  preview_prompts: Action<PromptsPayload, PromptsPreview>;
  create: Action<NewProjectPayload, Creation>;
  cancel_download: Action<Payload, Message>;
  retry_download: Action<Payload, Message>;
  stop_engine: Action<Payload, Message>;
  home_summary: Action<Payload, HomeSummary>;
  enter_secret: Action<SecretPayload, EnteredSecret>;
}

export type AdjudicationPayload = { annotator?: string | null; shown_project?: number | string | null; project_created_at?: number | string | null; stop?: boolean };
export type AnnotatorActivity = { annotator: string; labels: number; repeated: number; same: number; shared: number; agreed: number };
export type AnnotatorRow = { name: string; votes: number; with_others: ShareRow; with_self: ShareRow; left: ShareRow; ties: ShareRow; seconds: number | null; alpha_without: number | null; time_buckets: Array<TimeBucketRow> };
export type Answer = { status: JobStatus; is_waiting: boolean; text: string; tokens: number; cut: number | null; turns_left_out: number; note: string; error: string };
export type AnswersPayload = { annotator?: string | null; shown_project?: number | string | null; jobs: Array<number | string> };
export type AskPayload = { annotator?: string | null; shown_project?: number | string | null; models: Array<string>; seed: number | string; temperature: number | string; max_new_tokens: number | string; reward_model_id?: number | string | ''; turns: Array<Turn>; top_p: number | string; forget?: Array<number | string> };
export type AttributeRow = { name: string; label: string; step_text: string; odds: number | null; low: number | null; high: number | null; is_ignored: boolean };
export type BackupPiece = { annotator?: string | null; shown_project?: number | string | null; path: string; offset: number | string };
export type BrakeState = 'preferred' | 'unknown' | 'declined';
export type BrakeView = { state: BrakeState; text: string; step: number | null };
export type ChangeMarker = { step: number; text: string };
export type ChangePayload = { annotator?: string | null; shown_project?: number | string | null; uuid: string; choice: 'left' | 'right' | 'tie' | 'both_bad' | 'skip'; strength?: Strength | ''; note?: string; duration_ms?: number | string; vote_id: number | string; project_created_at?: number | string | null };
export type ChatOptions = { run: number | null; steps: Array<number>; best: number | null; project: number; temperature: number; max_new_tokens: number; models: Array<[string, string]>; system_prompt: string; has_chat_template: boolean; examples: Array<string> };
export type CheckPayload = { annotator?: string | null; shown_project?: number | string | null; model: number | string; pairs?: number | string | null };
export type CheckView = { pairs: number; note: string; test: number | null; text: string; is_open: boolean; can_judge: boolean };
export type Choice = 'first' | 'second' | 'tie' | 'both_bad' | 'skip';
export type ChooseAttribute = { annotator?: string | null; shown_project?: number | string | null; model: number | string; attribute: string; ignore: boolean; last_training?: number | string | null };
export type ClassRun = { id: number; name: string; status: RunStatus; step: number; total_steps: number };
export type ClassState = { project: string; labels: number; people: number; present: number; runs: Array<ClassRun>; training: string; has_code: boolean };
export type ColumnsQuery = { annotator?: string | null; shown_project?: number | string | null; runs?: Array<number | string> };
export type CompareEstimates = { comparison: string; blind_test: string; blind_test_size: string; tournament: string; tournament_size: string };
export type CompareOptions = { project: number; temperature: number; max_new_tokens: number; models: Array<[string, string]>; reward_models: Array<[number, string]>; judges: Array<string>; default_scorer: [number, string] | null; prompts: Array<string>; conversations: Record<string, Array<Record<string, string>>>; tests: Array<[number, string]>; estimates_key: string; steps_by_run: Record<string, Array<number>>; best_by_run: Record<string, number | null>; scorer_by_run: Record<string, [number, string]> };
export type ComparePayload = { annotator?: string | null; shown_project?: number | string | null; models: Array<string>; seed: number | string; temperature: number | string; max_new_tokens: number | string; reward_model_id?: number | string | ''; prompt?: string; samples: number | string };
export type ComparedRun = { id: number; name: string; outside_file: string; points: Array<Array<number | null>>; score_frontier: Array<Array<number>>; gold_frontier: Array<Array<number>> };
export type Comparison = { runs: Array<ComparedRun>; metric: string; metrics: Array<string>; setting_differences: Array<SettingDifference>; revision: string };
export type ComparisonQuery = { annotator?: string | null; shown_project?: number | string | null; runs?: Array<number | string>; metric?: string; revision?: string };
export type Creation = { message: string; warning: string; check: MemoryCheck | null };
export type Curves = { run: number; steps: Array<number>; score: Array<number>; gold: Array<number>; kl: Array<number>; clip_fraction: Array<number> };
export type Cuts = { left: number | null; right: number | null };
export type DataPayload = { annotator?: string | null; shown_project?: number | string | null; path?: string; name?: string; dataset?: string; split?: string; config?: string; column_mapping?: Record<string, string>; choices?: string; answers?: Array<string>; source: Source; default_annotator?: string };
export type DataReply = { project: number; question: ImportQuestion | null; preview: Preview | null; message: string };
export type Decision = { message: string; gold: GoldView };
export type DemoEstimate = { sentence: string };
export type DemoState = { own_run: number | null; tokens: number; runs_before: number; can_start: boolean; status_text: string; reset_at: number; is_reset_due: boolean };
export type DiagnosisRow = { level: Level; message: string };
export type Disagreement = { turns: Array<Record<string, string>>; chosen: string; rejected: string; probability: number };
export type Disputes = { count: number; prompts: Array<Array<Record<string, string>>> };
export type Download = { address: string; name: string; bytes: number; note: string };
export type DownloadStatus = 'running' | 'done' | 'failed' | 'cancelled';
export type DownloadView = { model: string; status: DownloadStatus | StartupPhase; downloaded_bytes: number; total_bytes: number; eta_s: number | null; message: string; can_retry: boolean };
export type EarlierVote = { id: number; turns: Array<Record<string, string>>; left: string; right: string; cut: Cuts; adjudication: boolean; choice: string; strength: Strength | ''; note: string; gold?: boolean };
export type EditTestPayload = { annotator?: string | null; shown_project?: number | string | null; test_id: number | string; action: 'rename' | 'end' | 'delete'; name?: string };
export type EngineState = 'absent' | 'starting' | 'alive' | 'dead';
export type EngineView = { state: EngineState; stoppable: boolean };
export type EnteredSecret = { message: string; redirect_to_login: boolean };
export type ErasePayload = { annotator?: string | null; shown_project?: number | string | null; name: string; delete_votes?: boolean };
export type EstimateQuery = { annotator?: string | null; shown_project?: number | string | null; models?: Array<string>; contestants?: Array<string>; prompts?: number | string; samples: number | string; pairs: number | string; max_new_tokens: number | string; reward_model_id?: number | string | '' };
export type ExampleText = { prompt: string; turns: Array<Record<string, string>>; text: string; tag: string };
export type ExperimentView = { name: string; problem: string; step: number; steps: number; curves: Curves | null };
export type ExplainText = { annotator?: string | null; shown_project?: number | string | null; model: number | string; prompt?: string; text?: string; tokens?: [number | string, number | string] | null };
export type Explanation = { is_waiting: boolean; running?: boolean; failure?: string; score?: number; tokens?: Array<string>; token_scores?: Array<number> | null; has_adapter?: boolean; instant?: InstantExplanation | null };
export type ExportProgressQuery = { annotator?: string | null; shown_project?: number | string | null; export: number | string };
export type ExportRequest = { annotator?: string | null; shown_project?: number | string | null; export?: number | string | null; kind: 'labels' | 'dataset' | 'label-recipe' | 'run' | 'page' | 'recipe' | 'adapter' | 'model' | 'reward-model' | 'backup'; run?: number | string | ''; reward_model?: number | string | ''; source?: 'human' | 'simulated' | 'all' | null; annotators?: Array<string>; layout?: string; agreement?: number | string; format?: string; names?: boolean; trainer?: 'reward' | 'dpo' };
export type FeedQuery = { annotator?: string | null; shown_project?: number | string | null; run?: number | string | string | null; epoch?: string | null; after_step?: number | string; static_id?: string | null; revision?: string | null };
export type FeedReply = { run: RunState; in_use: Record<string, number>; verdicts: Record<string, DiagnosisRow>; checks: SelfChecks; pending_changes: Array<string>; status_text: string; best_text: string; brake: BrakeView | null; eta_s: number | null; static?: StaticState; revision: string; epoch: string; elapsed_s: number | null; reset: boolean; last_step: number; points: Record<string, Array<Array<number | null>>>; sample_steps: Array<number>; static_id: string };
export type FitVerdict = 'fits' | 'tight' | 'does not fit';
export type Frame = { run: RunState; in_use: Record<string, number>; verdicts: Record<string, DiagnosisRow>; checks: SelfChecks; pending_changes: Array<string>; status_text: string; best_text: string; brake: BrakeView | null; eta_s: number | null; static?: StaticState; seconds: number };
export type GoldPayload = { annotator?: string | null; shown_project?: number | string | null; project_created_at?: number | string | null; vote_id: number | string; is_gold: boolean };
export type GoldRow = { annotator: string; right: number; answers: number; low: number; high: number; below: boolean };
export type GoldView = { gold_pairs: number; rule: 'none' | 'inform' | 'down_weight' | 'pause'; people: Array<GoldRow>; experts: Array<string> };
export type HeaderDemo = { reset_at: number; is_reset_due: boolean };
export type HeaderEngine = { label: string; style: string; description: string; device: string; memory_mib: number | null; is_working: boolean };
export type HeaderGuide = { steps: Array<Step>; done: Array<Step>; present: Step; note: string; button: string; hint: string };
export type HeaderJob = { label: string; run: number | null; step: number | null; progress: number; show_percent: boolean; eta_s: number | null };
export type HeaderReward = { id: number; labels: number; accuracy: number | null; low: number | null; high: number | null; simulated: boolean };
export type HeaderRun = { id: number; is_training: boolean; is_live: boolean };
export type HeaderStartup = { phase: StartupPhase; model: string; message: string; downloaded_bytes: number | null; total_bytes: number | null; eta_s: number | null };
export type HeaderStatus = { project: string; model: string; project_created_at: number; counted_at: number; labels: number; simulated: number; reward: HeaderReward | null; engine: HeaderEngine; job: HeaderJob | null; run: HeaderRun | null; demo: HeaderDemo | null; startup: HeaderStartup | null; mirror: MirrorView | null; warning: string; is_operator: boolean; may_label: boolean; can_invite: boolean; people_here: number; guide: HeaderGuide | null };
export type HomeSummary = { path: string; note: string; usage: Array<[string, number]>; free: number; log: string };
export type ImportId = { annotator?: string | null; shown_project?: number | string | null; project: number | string; import_id: number | string };
export type ImportList = { project: number; imports: Array<ImportRecord> };
export type ImportPayload = { annotator?: string | null; shown_project?: number | string | null; path?: string; name?: string; dataset?: string; split?: string; config?: string; column_mapping?: Record<string, string>; choices?: string; answers?: Array<string>; source: Source; default_annotator?: string; project?: number | string | null; use_prompts?: boolean; drop_duplicates?: boolean; skip_broken?: boolean };
export type ImportQuestion = { text: string; columns: Array<string>; answers: Record<string, string> };
export type ImportRecord = { id: number; project_id: number; name: string; who: string; created_at: number; taken_back_at: number | null; votes: number; votes_left: number; pairs: number; pairs_left: number };
export type InstantAccuracy = { source: Source; decided: number; accuracy: number; low: number | null; high: number | null; ignores: string };
export type InstantExplanation = { score: number; low: number; high: number; labels: Array<LabelBehindScore>; ignores: string };
export type InstantFigures = { project_created_at: number; needed: number; labels: number; decided: number; waiting: number; engine_work: string; simulated: boolean; right: number | null; low: number | null; high: number | null; pending: boolean; prediction: ShownPrediction | null; writers: [string, string] | null; offers_live_run: boolean; trains_live: boolean; ignores: string };
export type InstantQuery = { annotator?: string | null; shown_project?: number | string | null; vote_uuid?: string };
export type Invitation = { code: string; link: string; qr: QrCode | null };
export type InvitationQuery = { annotator?: string | null; shown_project?: number | string | null; origin?: string };
export type JobId = { job: number };
export type JobQuery = { annotator?: string | null; shown_project?: number | string | null; job: number | string };
export type JobStatus = 'queued' | 'running' | 'done' | 'failed' | 'cancelled';
export type JobsQuery = { annotator?: string | null; shown_project?: number | string | null; jobs: Array<number | string>; judge?: string };
export type JudgePayload = { annotator?: string | null; shown_project?: number | string | null; judge: string; count: number | string };
export type LabelBehindScore = { vote: number; votes: number; turns: Array<Record<string, string>>; chosen: string; rejected: string; is_tie: boolean; influence: number };
export type LabelCounts = { human: number; simulated: number; goals: Record<string, number>; visitor_goal?: number };
export type LabelPayload = { annotator?: string | null; shown_project?: number | string | null; project_created_at?: number | string | null };
export type LabelProject = { id: number; project_created_at: number; name: string; prompt_set: string };
export type LabelState = { counted_at: number; labels: number; simulated: number; next_training_at: number; labels_to_next: number; has_model: boolean; training_text: string; guide_note: string; project: LabelProject; pair: ShownPair | null; next_pair: ShownPair | null; waiting_text: string; you: PageVisitor; shown_names: Record<string, string>; may_edit: boolean; can_undo: boolean; can_redo: boolean; guideline: string; quality_note: string; length_note: string; people_here: number; notice: string };
export type LabellingConfig = { overlap?: number; repeats?: number; hold_s?: number; sampling?: 'random' | 'teaching' | 'information' | 'uncertainty' | 'diversity'; texts?: 'base' | 'policy'; gold_rate?: number; gold_rule?: 'none' | 'inform' | 'down_weight' | 'pause'; gold_bound?: number; gold_answers?: number; gold_weight?: number; gold_training?: boolean; markdown?: boolean; guideline?: string };
export type LearnMaterial = { view: TokenView; curves: Curves; differences: Array<number>; distribution: NextTokens; recorded: Array<'run' | 'labels' | 'curves' | 'recording'>; experiment: ExperimentView | null };
export type LengthPayload = { annotator?: string | null; shown_project?: number | string | null; project: number | string; max_new_tokens: number | string };
export type LengthRow = { adds_instruction: boolean; max_new_tokens: number; complete: number; texts: number; low: number; high: number; mean_tokens: number; seconds: number };
export type LengthView = { is_measuring: boolean; failure: string; note: string; instruction: string; texts: number; rows: Array<LengthRow>; proposal: LengthRow | null; is_new: boolean };
export type Level = 'info' | 'good' | 'warn' | 'alert';
export type MemoryCheck = { model: string; architecture: string; parameters: number; download_bytes: number; tokens: number; components: Array<[string, number, string]>; required_bytes: number; free_bytes: number; device: string; verdict: FitVerdict; advice: string };
export type Message = { message: string };
export type MetricPoints = { points: Array<Array<number | null>> };
export type MetricQuery = { annotator?: string | null; shown_project?: number | string | null; run: number | string; metric: string };
export type MirrorSetUp = { annotator?: string | null; shown_project?: number | string | null; repository?: string; token?: string };
export type MirrorStatus = { repository: string; age_s: number | null; problem: string; has_conflict: boolean; is_set_by_variable: boolean; has_token_variable: boolean; has_token: boolean };
export type MirrorView = { repository: string; saved_at: number | null; age_s: number | null; problem: string; is_late: boolean };
export type ModelCheck = { check: MemoryCheck; prompt_set: string; temperature: number; template_arguments: string };
export type ModelPayload = { annotator?: string | null; shown_project?: number | string | null; model: string; max_new_tokens?: number | string | null };
export type ModelQuery = { annotator?: string | null; shown_project?: number | string | null; model: number | string };
export type ModelSummary = { id: number; labels: number; accuracy: number | null; low: number | null; high: number | null; source: Source; source_text: string; created_at: number };
export type NewProjectPayload = { annotator?: string | null; shown_project?: number | string | null; text?: string; file?: string; model: string; max_new_tokens?: number | string | null; prompt_set?: string; name?: string; temperature?: number | string | null; seed?: number | string; system_prompt?: string; template_arguments?: string; confirmed?: boolean };
export type NewRunName = { annotator?: string | null; shown_project?: number | string | null; run: number | string; name?: string };
export type NewTestState = { state: TestState; tests?: Array<[number, string]>; message?: string };
export type NewTournamentState = { state: TournamentState };
export type NextClassPayload = { annotator?: string | null; shown_project?: number | string | null; new_project?: boolean; new_code?: boolean; stop_training?: boolean };
export type NextTokens = { text: string; tokens: Array<string>; logprobs: Array<number> };
export type OptionsQuery = { annotator?: string | null; shown_project?: number | string | null; run?: number | string | null };
export type OthersProgress = { finished: number; in_progress: number };
export type PageVisitor = { name: string; role: Role };
export type PairOfTest = { token: string; turns: Array<Record<string, string>>; left: string; right: string; position: number };
export type PairToJudge = { token: string; turns: Array<Record<string, string>>; left: string; right: string };
export type Payload = { annotator?: string | null; shown_project?: number | string | null };
export type PeopleHere = { counted_at: number; labels: number; simulated: number; next_training_at: number; labels_to_next: number; has_model: boolean; training_text: string; guide_note: string; project_created_at: number; people_here: number; you: PageVisitor; shown_names: Record<string, string>; length_note: string };
export type PeopleState = { project: number; you: PageVisitor; present: Array<string>; shown_names: Record<string, string>; leaderboard: Array<AnnotatorActivity>; has_agreement: boolean; rules: LabellingConfig };
export type PersonPayload = { annotator?: string | null; shown_project?: number | string | null; name: string; is_expert?: boolean | null; go_on?: boolean };
export type PresetQuery = { annotator?: string | null; shown_project?: number | string | null; preset: string; algorithm: string };
export type Preview = { name: string; layout: string; mapping: Record<string, string>; columns: Array<string>; unused: Array<string>; rows: number; votes: number; prompts: number; people: number; choices: Record<string, number>; warnings: string; left_out: string; errors: Array<string>; error_count: number; first_rows: Array<PreviewRow> };
export type PreviewRow = { row: number; prompt: string; turns: Array<Record<string, string>>; first: string; second: string; choice: string; annotator: string };
export type ProjectPayload = { annotator?: string | null; shown_project?: number | string | null; project: number | string };
export type ProjectRow = { id: number; name: string; model: string; prompt_set: string; temperature: number; max_new_tokens: number; system_prompt: string; template_arguments: string; train_count: number; eval_count: number; pair_count: number; human_labels: number; simulated_labels: number; model_count: number; run_count: number };
export type ProjectState = { current: number; projects: Array<ProjectRow>; length: LengthView | null; download: DownloadView | null; engine: EngineView };
export type PromptsPayload = { annotator?: string | null; shown_project?: number | string | null; text?: string; file?: string };
export type PromptsPreview = { count: number; eval_count: number; first_prompts: Array<Array<Record<string, string>>> };
export type QrCode = { size: number; path: string };
export type QualityFigures = { votes: number; alpha: number | null; agreement: ShareRow; people: Array<AnnotatorRow>; unlisted_count: number; time_buckets: Array<TimeBucketRow>; source: Source; reward_models: Array<TrainedOn>; unlikely_labels: UnlikelyLabels | null; is_training: boolean; project: number };
export type QualityQuery = { annotator?: string | null; shown_project?: number | string | null; source?: Source | null };
export type QualityView = { closed_text: string; figures: QualityFigures | null };
export type Ranking = { answers: number; rows: Array<Standing>; wins: Array<Array<number>> };
export type RenamePayload = { annotator?: string | null; shown_project?: number | string | null; project: number | string; name: string };
export type Replay = { title: string; recorded_at: number; model: string; prompt_set: string; algorithm: string; feed: FeedReply; samples: Record<string, StepSamples>; tokens: Record<string, TokenView>; frames: Array<Frame> };
export type ReplayQuery = { annotator?: string | null; shown_project?: number | string | null; run?: number | string | null };
export type RequestedTexts = { jobs: Array<number>; turns: Array<Record<string, string>> };
export type RewardModelOption = { id: number; label: string; note: string };
export type RewardPredictionStats = { right: number; decided: number; low: number; high: number; chosen_right?: number; chosen_decided?: number };
export type RewardReport = { id: number; counts_hidden: boolean; ties: number; folds: number; train_accuracy: number | null; chosen_scores: Array<[number, number]>; rejected_scores: Array<[number, number]>; length_correlation: number | null; loss: Array<number>; pooling: string | null; warm_start: boolean; adapter_rejected: boolean; note: string; seconds: number | null; example_texts: Array<ExampleText>; calibration: Array<[number, number, number]>; calibration_error: number | null; disagreements: Array<Disagreement>; attributes: Array<AttributeRow> };
export type RewardState = { project: number; models: Array<ModelSummary>; default_id: number | null; job: Training | null; last_training: number; cancelled: boolean; failed: string; labels: LabelCounts; prediction_stats: Record<string, RewardPredictionStats>; instant: InstantAccuracy | null; estimates_key: string; scores_hidden: string };
export type Role = 'viewer' | 'labeller' | 'operator';
export type RulesPayload = { annotator?: string | null; shown_project?: number | string | null; rules: Record<string, string | number | string | boolean | null> };
export type RunControl = { annotator?: string | null; shown_project?: number | string | null; run: number | string; action?: string; setting?: string; value?: number | string | string | null; reward_model?: number | string | null };
export type RunElsewhere = { id: number; name: string; status: RunStatus; project: string };
export type RunMetricsPayload = { annotator?: string | null; shown_project?: number | string | null; path: string; name?: string; run_name?: string; updates_per_step?: number | string };
export type RunPayload = { annotator?: string | null; shown_project?: number | string | null; run: number | string };
export type RunPoll = { state?: FeedReply; elsewhere?: Array<RunElsewhere> };
export type RunRow = { id: number; name: string; outside_file: string; algorithm: string; status: RunStatus; step: number; total_steps: number; message: string; created_at: number; score: number | null; kl: number | null; gold: number | null; sparkline: Array<number | null>; is_resumable: boolean; is_active: boolean };
export type RunSettings = { annotator?: string | null; shown_project?: number | string | null; steps: number | string; responses: number | string; tokens: number | string };
export type RunState = { id: number; status: RunStatus; step: number; total_steps: number; reward_model: number | null; set_by_hand: Array<string>; beta: number; lr: number };
export type RunStatus = 'queued' | 'running' | 'paused' | 'interrupted' | 'done' | 'stopped' | 'failed';
export type RunsOverview = { project: number; name: string; runs: Array<RunRow>; lab_command: string; unlisted_count: number; reward_models: Array<[number, string]>; labels: Record<string, number>; annotators: Record<string, Array<string>> };
export type SampleRow = { prompt: string; turns: Array<Record<string, string>>; text: string; score: number | null; gold: number | null; cut: number | null; base_text: string | null; base_score: number | null; base_gold: number | null; base_cut: number | null };
export type SecretPayload = { annotator?: string | null; shown_project?: number | string | null; secret?: string };
export type SelfChecks = { max_first_ratio_deviation: number | null; first_step_kl: number | null };
export type SettingDifference = { name: string; about: string; values: Array<string> };
export type SettingsQuery = { annotator?: string | null; shown_project?: number | string | null; settings: Record<string, string | number | string | boolean | null> };
export type ShareRow = { share: number | null; low: number; high: number; count: number };
export type ShownPair = { id: number; turns: Array<Record<string, string>>; left: string; right: string; cut: Cuts; adjudication: boolean; prompt: string; markdown: boolean };
export type ShownPrediction = { decided: boolean; scores: [number, number]; expected: boolean | null };
export type Source = 'human' | 'simulated';
export type Standing = { contestant: number; name: string; score: number | null; low: number | null; high: number | null; answers: number; kl: number | null; reward: number | null; gold: number | null };
export type StartOptions = { project: number; temperature: number; max_new_tokens: number; models: Array<RewardModelOption>; default_id: number | null; default_reason: string; labels_text: string; few_labels_note: string; labels_missing: number; training_progress: number | null; training_text: string; run_count: number; estimates_key: string; active_runs: Array<number> };
export type StartPayload = { annotator?: string | null; shown_project?: number | string | null; name: string };
export type StartRun = { annotator?: string | null; shown_project?: number | string | null; settings: Record<string, string | number | string | boolean | null>; reward_model: number | string; name?: string; reward_terms?: string; track?: string; ptx_file?: string; ptx_column?: string };
export type StartTestPayload = { annotator?: string | null; shown_project?: number | string | null; models: Array<string>; seed: number | string; temperature: number | string; max_new_tokens: number | string; reward_model_id?: number | string | ''; pairs: number | string };
export type StartTournamentPayload = { annotator?: string | null; shown_project?: number | string | null; contestants: Array<string>; prompts: number | string; max_new_tokens: number | string; reward_model_id?: number | string | '' };
export type StartedDemoRun = { run: number; runs_before: number };
export type StartedRun = { run: number };
export type StartupPhase = 'checking' | 'downloading' | 'ready' | 'failed';
export type StaticState = { label_source: string; tracking: string; runs: Array<[number, string, RunStatus]>; events: Array<ChangeMarker>; reward_terms: Array<[string, number]>; without_unit?: Array<string>; other_metrics: Array<string>; live_settings: Array<string>; adapted_settings: Array<string>; has_rollouts: boolean; reward_models: Array<[number, string]> };
export type StatusQuery = { annotator?: string | null; shown_project?: number | string | null; guide?: boolean; tab?: string };
export type Step = 'Label' | 'Reward model' | 'Train' | 'Compare';
export type StepConstants = { beta: number; gamma: number; lam: number; low: number; high: number };
export type StepQuery = { annotator?: string | null; shown_project?: number | string | null; run: number | string; step: number | string };
export type StepSamples = { run: number; step: number; rows: Array<SampleRow> };
export type Strength = 'slightly' | 'clearly' | 'much';
export type TakeOutLabel = { annotator?: string | null; shown_project?: number | string | null; vote?: number | string; put_back?: Array<number | string> | null };
export type TemperaturePayload = { annotator?: string | null; shown_project?: number | string | null; project: number | string; temperature: number | string };
export type TestAnswerPayload = { annotator?: string | null; shown_project?: number | string | null; test_id: number | string; token?: string; choice: 'left' | 'right' | 'tie' | 'stop' };
export type TestQuery = { annotator?: string | null; shown_project?: number | string | null; test_id?: number | string | null };
export type TestRow = { turns: Array<Record<string, string>>; first: string; second: string; choice: string; reward_choice: string | null };
export type TestState = { id: number | null; annotator?: string; model_names?: Array<string>; reward_model_id?: number | null; deletion_note?: string; is_waiting?: boolean; failure?: string | null; pair_count?: number; judged_count?: number; left_out_note?: string; result_waits?: boolean; others_progress?: OthersProgress; pair?: PairOfTest | null; closed_text?: string; figure?: [string, string] | null; sentences?: Array<string>; rows?: Array<TestRow> };
export type TextColumn = { is_waiting: boolean; running?: boolean; error?: string; texts?: Array<string>; cut?: Array<number | null>; scores?: Array<number>; gold?: Array<number>; best_of?: number; note?: string };
export type TextColumns = { columns: Array<TextColumn> };
export type TimeBucketRow = { start: number; end: number; votes: number; with_others: number | null; with_self: number | null; alpha: number | null; left: number | null; ties: number | null; seconds: number | null };
export type TokenEquation = { name: string; equation: string; symbols: string; about: string };
export type TokenRow = { turns: Array<Record<string, string>>; tokens: Array<string>; score: number | null; shaped_score: number | null; clipped: Array<boolean>; columns: Record<string, Array<number | null>>; colors: Record<string, Array<number>> };
export type TokenScale = { column: string; name: string; neutral: number; higher_is_better: boolean; legend: Array<[number, number]> };
export type TokenView = { run: number; step: number; last_step: number; tokens_per_step: number; constants: StepConstants; equations: Array<TokenEquation>; color_scales: Array<TokenScale>; notable: [number, number]; rows: Array<TokenRow> };
export type TournamentAnswerPayload = { annotator?: string | null; shown_project?: number | string | null; tournament_id: number | string; token?: string; choice?: 'left' | 'right' | 'tie' | 'both_bad' | 'skip' | null };
export type TournamentPayload = { annotator?: string | null; shown_project?: number | string | null; tournament_id?: number | string | null };
export type TournamentState = { id: number | null; ids: Array<number>; annotator?: string; is_waiting?: boolean; progress?: number; failure?: string; can_judge?: boolean; pair?: PairToJudge | null; own_count?: number; answers_note?: string; pause_note?: string; ranking?: Ranking };
export type TrainAsVisitor = { annotator?: string | null; shown_project?: number | string | null; last_training?: number | string | null };
export type TrainReward = { annotator?: string | null; shown_project?: number | string | null; settings: Record<string, string | number | string | boolean | null>; source: Source; last_training?: number | string | null };
export type TrainedOn = { id: number; labels: number; source: Source; people: Array<[string, number]>; annotator_count: number; has_selection: boolean; accuracy: number | null; low: number | null; high: number | null };
export type Training = { id: number; running: boolean; progress: number; eta_s: number | null; stage: string; loss: Array<number>; note: string; status_text: string };
export type Turn = { role: 'user' | 'assistant'; content: string };
export type UnlikelyLabel = { vote_id: number; annotator: string; choice: Choice; probability: number; turns: Array<Record<string, string>>; first: string; second: string; is_set_aside: boolean };
export type UnlikelyLabels = { reward_model_id: number; labels: Array<UnlikelyLabel> };
export type VotePayload = { annotator?: string | null; shown_project?: number | string | null; uuid: string; choice: 'left' | 'right' | 'tie' | 'both_bad' | 'skip'; strength?: Strength | ''; note?: string; duration_ms?: number | string; pair_id: number | string; edit?: string };
export type VoteToRepeat = { annotator?: string | null; shown_project?: number | string | null; vote_id: number | string };
export type WeightedAnnotators = { annotator?: string | null; shown_project?: number | string | null; source: Source; weights: Record<string, number | string> };
