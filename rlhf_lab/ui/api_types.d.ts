// Generated from the payloads and replies of the page's requests: python tests/javascript/generate_types.py
declare namespace lab {
interface Read<Payload, Reply> {
  (payload?: Payload, timeoutMs?: number): Promise<Reply>;
  ifChanged(payload?: Payload): Promise<Reply | null>;
}
interface Action<Payload, Reply> {
  (payload?: Payload, timeoutMs?: number): Promise<Reply>;
}

interface Screens {
  header: HeaderRequests;
  label: LabelRequests;
  reward: RewardRequests;
  train: TrainRequests;
  start_run: StartRunRequests;
  demo_run: DemoRunRequests;
  compare: CompareRequests;
  blind_test: BlindTestRequests;
  tournament: TournamentRequests;
  chat: ChatRequests;
  learn: LearnRequests;
  share: ShareRequests;
  runs: RunsRequests;
  backup: BackupRequests;
  hub_mirror: HubMirrorRequests;
  import_data: ImportDataRequests;
  quality: QualityRequests;
  people: PeopleRequests;
  project: ProjectRequests;
}

interface HeaderRequests {
  status: Read<StatusQuery, HeaderStatus>;
}

interface LabelRequests {
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

interface RewardRequests {
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

interface TrainRequests {
  points: Read<FeedQuery, RunPoll>;
  samples: Read<StepQuery, StepSamples>;
  tokens: Read<StepQuery, TokenView>;
  metric_points: Read<MetricQuery, MetricPoints>;
  control: Action<RunControl, null>;
}

interface StartRunRequests {
  options: Read<Payload, StartOptions>;
  recommended: Read<PresetQuery, Record<string, string | number | boolean | null>>;
  estimate: Read<SettingsQuery, string>;
  start: Action<StartRun, StartedRun>;
  start_live: Action<Payload, StartedRun>;
}

interface DemoRunRequests {
  state: Read<Payload, DemoState>;
  estimate: Read<RunSettings, DemoEstimate>;
  start: Action<RunSettings, StartedDemoRun>;
  stop: Action<Payload, null>;
}

interface CompareRequests {
  options: Read<ColumnsQuery, CompareOptions>;
  completions: Read<JobsQuery, TextColumns>;
  estimates: Read<EstimateQuery, CompareEstimates>;
  sample: Action<ComparePayload, RequestedTexts>;
  cancel: Action<JobsQuery, null>;
}

interface BlindTestRequests {
  get_state: Read<TestQuery, TestState>;
  start: Action<StartTestPayload, NewTestState>;
  edit: Action<EditTestPayload, NewTestState>;
  answer: Action<TestAnswerPayload, NewTestState>;
}

interface TournamentRequests {
  get_state: Read<TournamentPayload, TournamentState>;
  start: Action<StartTournamentPayload, NewTournamentState>;
  delete: Action<TournamentPayload, NewTournamentState>;
  answer: Action<TournamentAnswerPayload, NewTournamentState>;
}

interface ChatRequests {
  options: Read<OptionsQuery, ChatOptions>;
  answers: Read<AnswersPayload, Array<Answer>>;
  ask: Action<AskPayload, Array<number>>;
  make_pair: Action<AnswersPayload, null>;
  stop_answers: Action<AnswersPayload, null>;
  forget: Action<AnswersPayload, null>;
}

interface LearnRequests {
  material: Read<Payload, LearnMaterial>;
  start: Action<StartPayload, Message>;
}

interface ShareRequests {
  replay: Read<ReplayQuery, Replay>;
}

interface RunsRequests {
  overview: Read<Payload, RunsOverview>;
  compare: Read<ComparisonQuery, Comparison | null>;
  export: Action<ExportRequest, Download>;
  rename: Action<NewRunName, string>;
  resume: Action<RunPayload, string>;
  delete: Action<RunPayload, string>;
}

interface BackupRequests {
  is_confirmed: Read<Payload, boolean>;
  create: Action<Payload, Download>;
  append: Action<BackupPiece, number>;
  check: Action<Payload, string>;
  confirm: Action<Payload, null>;
  discard: Action<Payload, null>;
}

interface HubMirrorRequests {
  state: Read<Payload, MirrorStatus>;
  set_up: Action<MirrorSetUp, string>;
  take_over: Action<Payload, string>;
  turn_off: Action<Payload, string>;
}

interface ImportDataRequests {
  imports: Read<Payload, ImportList>;
  preview: Action<DataPayload, DataReply>;
  save: Action<ImportPayload, DataReply>;
  import_run: Action<RunMetricsPayload, string>;
  summarize_undo: Action<ImportId, string>;
  undo: Action<ImportId, string>;
}

interface QualityRequests {
  state: Read<QualityQuery, QualityView>;
  ask_again: Action<VoteToRepeat, string>;
  train: Action<WeightedAnnotators, string>;
}

interface PeopleRequests {
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

interface ProjectRequests {
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

type AdjudicationPayload = { annotator?: string | null; shown_project?: number | string | null; project_created_at?: number | string | null; stop?: boolean };
type AnnotatorActivity = { annotator: string; labels: number; repeated: number; same: number; shared: number; agreed: number };
type AnnotatorRow = { name: string; votes: number; with_others: ShareRow; with_self: ShareRow; left: ShareRow; ties: ShareRow; seconds: number | null; alpha_without: number | null; time_buckets: Array<TimeBucketRow> };
type Answer = { status: JobStatus; is_waiting: boolean; text: string; tokens: number; cut: number | null; turns_left_out: number; note: string; error: string };
type AnswersPayload = { annotator?: string | null; shown_project?: number | string | null; jobs: Array<number | string> };
type AskPayload = { annotator?: string | null; shown_project?: number | string | null; models: Array<string>; seed: number | string; temperature: number | string; max_new_tokens: number | string; reward_model_id?: number | string | ''; turns: Array<Turn>; top_p: number | string; forget?: Array<number | string> };
type AttributeRow = { name: string; label: string; step_text: string; odds: number | null; low: number | null; high: number | null; is_ignored: boolean };
type BackupPiece = { annotator?: string | null; shown_project?: number | string | null; path: string; offset: number | string };
type BrakeState = 'preferred' | 'unknown' | 'declined';
type BrakeView = { state: BrakeState; text: string; step: number | null };
type ChangeMarker = { step: number; text: string };
type ChangePayload = { annotator?: string | null; shown_project?: number | string | null; uuid: string; choice: 'left' | 'right' | 'tie' | 'both_bad' | 'skip'; strength?: Strength | ''; note?: string; duration_ms?: number | string; vote_id: number | string; project_created_at?: number | string | null };
type ChatOptions = { run: number | null; steps: Array<number>; best: number | null; project: number; temperature: number; max_new_tokens: number; models: Array<[string, string]>; system_prompt: string; has_chat_template: boolean; examples: Array<string> };
type CheckPayload = { annotator?: string | null; shown_project?: number | string | null; model: number | string; pairs?: number | string | null };
type CheckView = { pairs: number; note: string; test: number | null; text: string; is_open: boolean; can_judge: boolean };
type Choice = 'first' | 'second' | 'tie' | 'both_bad' | 'skip';
type ChooseAttribute = { annotator?: string | null; shown_project?: number | string | null; model: number | string; attribute: string; ignore: boolean; last_training?: number | string | null };
type ClassRun = { id: number; name: string; status: RunStatus; step: number; total_steps: number };
type ClassState = { project: string; labels: number; people: number; present: number; runs: Array<ClassRun>; training: string; has_code: boolean };
type ColumnsQuery = { annotator?: string | null; shown_project?: number | string | null; runs?: Array<number | string> };
type CompareEstimates = { comparison: string; blind_test: string; blind_test_size: string; tournament: string; tournament_size: string };
type CompareOptions = { project: number; temperature: number; max_new_tokens: number; models: Array<[string, string]>; reward_models: Array<[number, string]>; judges: Array<string>; default_scorer: [number, string] | null; prompts: Array<string>; conversations: Record<string, Array<Record<string, string>>>; tests: Array<[number, string]>; estimates_key: string; steps_by_run: Record<string, Array<number>>; best_by_run: Record<string, number | null>; scorer_by_run: Record<string, [number, string]> };
type ComparePayload = { annotator?: string | null; shown_project?: number | string | null; models: Array<string>; seed: number | string; temperature: number | string; max_new_tokens: number | string; reward_model_id?: number | string | ''; prompt?: string; samples: number | string };
type ComparedRun = { id: number; name: string; outside_file: string; points: Array<Array<number | null>>; score_frontier: Array<Array<number>>; gold_frontier: Array<Array<number>> };
type Comparison = { runs: Array<ComparedRun>; metric: string; metrics: Array<string>; setting_differences: Array<SettingDifference>; revision: string };
type ComparisonQuery = { annotator?: string | null; shown_project?: number | string | null; runs?: Array<number | string>; metric?: string; revision?: string };
type Creation = { message: string; warning: string; check: MemoryCheck | null };
type Curves = { run: number; steps: Array<number>; score: Array<number>; gold: Array<number>; kl: Array<number>; clip_fraction: Array<number> };
type Cuts = { left: number | null; right: number | null };
type DataPayload = { annotator?: string | null; shown_project?: number | string | null; path?: string; name?: string; dataset?: string; split?: string; config?: string; column_mapping?: Record<string, string>; choices?: string; answers?: Array<string>; source: Source; default_annotator?: string };
type DataReply = { project: number; question: ImportQuestion | null; preview: Preview | null; message: string };
type Decision = { message: string; gold: GoldView };
type DemoEstimate = { sentence: string };
type DemoState = { own_run: number | null; tokens: number; runs_before: number; can_start: boolean; status_text: string; reset_at: number; is_reset_due: boolean };
type DiagnosisRow = { level: Level; message: string };
type Disagreement = { turns: Array<Record<string, string>>; chosen: string; rejected: string; probability: number };
type Disputes = { count: number; prompts: Array<Array<Record<string, string>>> };
type Download = { address: string; name: string; bytes: number; note: string };
type DownloadStatus = 'running' | 'done' | 'failed' | 'cancelled';
type DownloadView = { model: string; status: DownloadStatus | StartupPhase; downloaded_bytes: number; total_bytes: number; eta_s: number | null; message: string; can_retry: boolean };
type EarlierVote = { id: number; turns: Array<Record<string, string>>; left: string; right: string; cut: Cuts; adjudication: boolean; choice: string; strength: Strength | ''; note: string; gold?: boolean };
type EditTestPayload = { annotator?: string | null; shown_project?: number | string | null; test_id: number | string; action: 'rename' | 'end' | 'delete'; name?: string };
type EngineState = 'absent' | 'starting' | 'alive' | 'dead';
type EngineView = { state: EngineState; stoppable: boolean };
type EnteredSecret = { message: string; redirect_to_login: boolean };
type ErasePayload = { annotator?: string | null; shown_project?: number | string | null; name: string; delete_votes?: boolean };
type EstimateQuery = { annotator?: string | null; shown_project?: number | string | null; models?: Array<string>; contestants?: Array<string>; prompts?: number | string; samples: number | string; pairs: number | string; max_new_tokens: number | string; reward_model_id?: number | string | '' };
type ExampleText = { prompt: string; turns: Array<Record<string, string>>; text: string; tag: string };
type ExperimentView = { name: string; problem: string; step: number; steps: number; curves: Curves | null };
type ExplainText = { annotator?: string | null; shown_project?: number | string | null; model: number | string; prompt?: string; text?: string; tokens?: [number | string, number | string] | null };
type Explanation = { is_waiting: boolean; running?: boolean; failure?: string; score?: number; tokens?: Array<string>; token_scores?: Array<number> | null; has_adapter?: boolean; instant?: InstantExplanation | null };
type ExportRequest = { annotator?: string | null; shown_project?: number | string | null; kind: 'labels' | 'dataset' | 'label-recipe' | 'run' | 'page' | 'recipe' | 'adapter' | 'model' | 'reward-model' | 'backup'; run?: number | string | ''; reward_model?: number | string | ''; source?: 'human' | 'simulated' | 'all' | null; annotators?: Array<string>; layout?: string; agreement?: number | string; format?: string; names?: boolean; trainer?: 'reward' | 'dpo' };
type FeedQuery = { annotator?: string | null; shown_project?: number | string | null; run?: number | string | string | null; epoch?: string | null; after_step?: number | string; static_id?: string | null; revision?: string | null };
type FeedReply = { run: RunState; in_use: Record<string, number>; verdicts: Record<string, DiagnosisRow>; checks: SelfChecks; pending_changes: Array<string>; status_text: string; best_text: string; brake: BrakeView | null; eta_s: number | null; static?: StaticState; revision: string; epoch: string; elapsed_s: number | null; reset: boolean; last_step: number; points: Record<string, Array<Array<number | null>>>; sample_steps: Array<number>; static_id: string };
type FitVerdict = 'fits' | 'tight' | 'does not fit';
type Frame = { run: RunState; in_use: Record<string, number>; verdicts: Record<string, DiagnosisRow>; checks: SelfChecks; pending_changes: Array<string>; status_text: string; best_text: string; brake: BrakeView | null; eta_s: number | null; static?: StaticState; seconds: number };
type GoldPayload = { annotator?: string | null; shown_project?: number | string | null; project_created_at?: number | string | null; vote_id: number | string; is_gold: boolean };
type GoldRow = { annotator: string; right: number; answers: number; low: number; high: number; below: boolean };
type GoldView = { gold_pairs: number; rule: 'none' | 'inform' | 'down_weight' | 'pause'; people: Array<GoldRow>; experts: Array<string> };
type HeaderDemo = { reset_at: number; is_reset_due: boolean };
type HeaderEngine = { label: string; style: string; description: string; device: string; memory_mib: number | null; is_working: boolean };
type HeaderGuide = { steps: Array<Step>; done: Array<Step>; present: Step; note: string; button: string; hint: string };
type HeaderJob = { label: string; run: number | null; step: number | null; progress: number; show_percent: boolean; eta_s: number | null };
type HeaderReward = { id: number; labels: number; accuracy: number | null; low: number | null; high: number | null; simulated: boolean };
type HeaderRun = { id: number; is_training: boolean; is_live: boolean };
type HeaderStartup = { phase: StartupPhase; model: string; message: string; downloaded_bytes: number | null; total_bytes: number | null; eta_s: number | null };
type HeaderStatus = { project: string; model: string; project_created_at: number; counted_at: number; labels: number; simulated: number; reward: HeaderReward | null; engine: HeaderEngine; job: HeaderJob | null; run: HeaderRun | null; demo: HeaderDemo | null; startup: HeaderStartup | null; mirror: MirrorView | null; warning: string; is_operator: boolean; may_label: boolean; can_invite: boolean; people_here: number; guide: HeaderGuide | null };
type HomeSummary = { path: string; note: string; usage: Array<[string, number]>; free: number; log: string };
type ImportId = { annotator?: string | null; shown_project?: number | string | null; project: number | string; import_id: number | string };
type ImportList = { project: number; imports: Array<ImportRecord> };
type ImportPayload = { annotator?: string | null; shown_project?: number | string | null; path?: string; name?: string; dataset?: string; split?: string; config?: string; column_mapping?: Record<string, string>; choices?: string; answers?: Array<string>; source: Source; default_annotator?: string; project?: number | string | null; use_prompts?: boolean; drop_duplicates?: boolean; skip_broken?: boolean };
type ImportQuestion = { text: string; columns: Array<string>; answers: Record<string, string> };
type ImportRecord = { id: number; project_id: number; name: string; who: string; created_at: number; taken_back_at: number | null; votes: number; votes_left: number; pairs: number; pairs_left: number };
type InstantAccuracy = { source: Source; decided: number; accuracy: number; low: number | null; high: number | null; ignores: string };
type InstantExplanation = { score: number; low: number; high: number; labels: Array<LabelBehindScore>; ignores: string };
type InstantFigures = { project_created_at: number; needed: number; labels: number; decided: number; waiting: number; engine_work: string; simulated: boolean; right: number | null; low: number | null; high: number | null; pending: boolean; prediction: ShownPrediction | null; writers: [string, string] | null; offers_live_run: boolean; trains_live: boolean; ignores: string };
type InstantQuery = { annotator?: string | null; shown_project?: number | string | null; vote_uuid?: string };
type Invitation = { code: string; link: string; qr: QrCode | null };
type InvitationQuery = { annotator?: string | null; shown_project?: number | string | null; origin?: string };
type JobId = { job: number };
type JobQuery = { annotator?: string | null; shown_project?: number | string | null; job: number | string };
type JobStatus = 'queued' | 'running' | 'done' | 'failed' | 'cancelled';
type JobsQuery = { annotator?: string | null; shown_project?: number | string | null; jobs: Array<number | string>; judge?: string };
type JudgePayload = { annotator?: string | null; shown_project?: number | string | null; judge: string; count: number | string };
type LabelBehindScore = { vote: number; votes: number; turns: Array<Record<string, string>>; chosen: string; rejected: string; is_tie: boolean; influence: number };
type LabelCounts = { human: number; simulated: number; goals: Record<string, number>; visitor_goal?: number };
type LabelPayload = { annotator?: string | null; shown_project?: number | string | null; project_created_at?: number | string | null };
type LabelProject = { id: number; project_created_at: number; name: string; prompt_set: string };
type LabelState = { counted_at: number; labels: number; simulated: number; next_training_at: number; labels_to_next: number; has_model: boolean; training_text: string; guide_note: string; project: LabelProject; pair: ShownPair | null; next_pair: ShownPair | null; waiting_text: string; you: PageVisitor; shown_names: Record<string, string>; may_edit: boolean; can_undo: boolean; can_redo: boolean; guideline: string; quality_note: string; length_note: string; people_here: number; notice: string };
type LabellingConfig = { overlap?: number; repeats?: number; hold_s?: number; sampling?: 'random' | 'teaching' | 'information' | 'uncertainty' | 'diversity'; texts?: 'base' | 'policy'; gold_rate?: number; gold_rule?: 'none' | 'inform' | 'down_weight' | 'pause'; gold_bound?: number; gold_answers?: number; gold_weight?: number; gold_training?: boolean; markdown?: boolean; guideline?: string };
type LearnMaterial = { view: TokenView; curves: Curves; differences: Array<number>; distribution: NextTokens; recorded: Array<'run' | 'labels' | 'curves' | 'recording'>; experiment: ExperimentView | null };
type LengthPayload = { annotator?: string | null; shown_project?: number | string | null; project: number | string; max_new_tokens: number | string };
type LengthRow = { adds_instruction: boolean; max_new_tokens: number; complete: number; texts: number; low: number; high: number; mean_tokens: number; seconds: number };
type LengthView = { is_measuring: boolean; failure: string; note: string; instruction: string; texts: number; rows: Array<LengthRow>; proposal: LengthRow | null; is_new: boolean };
type Level = 'info' | 'good' | 'warn' | 'alert';
type MemoryCheck = { model: string; architecture: string; parameters: number; download_bytes: number; tokens: number; components: Array<[string, number, string]>; required_bytes: number; free_bytes: number; device: string; verdict: FitVerdict; advice: string };
type Message = { message: string };
type MetricPoints = { points: Array<Array<number | null>> };
type MetricQuery = { annotator?: string | null; shown_project?: number | string | null; run: number | string; metric: string };
type MirrorSetUp = { annotator?: string | null; shown_project?: number | string | null; repository?: string; token?: string };
type MirrorStatus = { repository: string; age_s: number | null; problem: string; has_conflict: boolean; is_set_by_variable: boolean; has_token_variable: boolean; has_token: boolean };
type MirrorView = { repository: string; saved_at: number | null; age_s: number | null; problem: string; is_late: boolean };
type ModelCheck = { check: MemoryCheck; prompt_set: string; temperature: number; template_arguments: string };
type ModelPayload = { annotator?: string | null; shown_project?: number | string | null; model: string; max_new_tokens?: number | string | null };
type ModelQuery = { annotator?: string | null; shown_project?: number | string | null; model: number | string };
type ModelSummary = { id: number; labels: number; accuracy: number | null; low: number | null; high: number | null; source: Source; source_text: string; created_at: number };
type NewProjectPayload = { annotator?: string | null; shown_project?: number | string | null; text?: string; file?: string; model: string; max_new_tokens?: number | string | null; prompt_set?: string; name?: string; temperature?: number | string | null; seed?: number | string; system_prompt?: string; template_arguments?: string; confirmed?: boolean };
type NewRunName = { annotator?: string | null; shown_project?: number | string | null; run: number | string; name?: string };
type NewTestState = { state: TestState; tests?: Array<[number, string]>; message?: string };
type NewTournamentState = { state: TournamentState };
type NextClassPayload = { annotator?: string | null; shown_project?: number | string | null; new_project?: boolean; new_code?: boolean; stop_training?: boolean };
type NextTokens = { text: string; tokens: Array<string>; logprobs: Array<number> };
type OptionsQuery = { annotator?: string | null; shown_project?: number | string | null; run?: number | string | null };
type OthersProgress = { finished: number; in_progress: number };
type PageVisitor = { name: string; role: Role };
type PairOfTest = { token: string; turns: Array<Record<string, string>>; left: string; right: string; position: number };
type PairToJudge = { token: string; turns: Array<Record<string, string>>; left: string; right: string };
type Payload = { annotator?: string | null; shown_project?: number | string | null };
type PeopleHere = { counted_at: number; labels: number; simulated: number; next_training_at: number; labels_to_next: number; has_model: boolean; training_text: string; guide_note: string; project_created_at: number; people_here: number; you: PageVisitor; shown_names: Record<string, string>; length_note: string };
type PeopleState = { project: number; you: PageVisitor; present: Array<string>; shown_names: Record<string, string>; leaderboard: Array<AnnotatorActivity>; has_agreement: boolean; rules: LabellingConfig };
type PersonPayload = { annotator?: string | null; shown_project?: number | string | null; name: string; is_expert?: boolean | null; go_on?: boolean };
type PresetQuery = { annotator?: string | null; shown_project?: number | string | null; preset: string; algorithm: string };
type Preview = { name: string; layout: string; mapping: Record<string, string>; columns: Array<string>; unused: Array<string>; rows: number; votes: number; prompts: number; people: number; choices: Record<string, number>; warnings: string; left_out: string; errors: Array<string>; error_count: number; first_rows: Array<PreviewRow> };
type PreviewRow = { row: number; prompt: string; turns: Array<Record<string, string>>; first: string; second: string; choice: string; annotator: string };
type ProjectPayload = { annotator?: string | null; shown_project?: number | string | null; project: number | string };
type ProjectRow = { id: number; name: string; model: string; prompt_set: string; temperature: number; max_new_tokens: number; system_prompt: string; template_arguments: string; train_count: number; eval_count: number; pair_count: number; human_labels: number; simulated_labels: number; model_count: number; run_count: number };
type ProjectState = { current: number; projects: Array<ProjectRow>; length: LengthView | null; download: DownloadView | null; engine: EngineView };
type PromptsPayload = { annotator?: string | null; shown_project?: number | string | null; text?: string; file?: string };
type PromptsPreview = { count: number; eval_count: number; first_prompts: Array<Array<Record<string, string>>> };
type QrCode = { size: number; path: string };
type QualityFigures = { votes: number; alpha: number | null; agreement: ShareRow; people: Array<AnnotatorRow>; unlisted_count: number; time_buckets: Array<TimeBucketRow>; source: Source; reward_models: Array<TrainedOn>; unlikely_labels: UnlikelyLabels | null; is_training: boolean; project: number };
type QualityQuery = { annotator?: string | null; shown_project?: number | string | null; source?: Source | null };
type QualityView = { closed_text: string; figures: QualityFigures | null };
type Ranking = { answers: number; rows: Array<Standing>; wins: Array<Array<number>> };
type RenamePayload = { annotator?: string | null; shown_project?: number | string | null; project: number | string; name: string };
type Replay = { title: string; recorded_at: number; model: string; prompt_set: string; algorithm: string; feed: FeedReply; samples: Record<string, StepSamples>; tokens: Record<string, TokenView>; frames: Array<Frame> };
type ReplayQuery = { annotator?: string | null; shown_project?: number | string | null; run?: number | string | null };
type RequestedTexts = { jobs: Array<number>; turns: Array<Record<string, string>> };
type RewardModelOption = { id: number; label: string; note: string };
type RewardPredictionStats = { right: number; decided: number; low: number; high: number; chosen_right?: number; chosen_decided?: number };
type RewardReport = { id: number; counts_hidden: boolean; ties: number; folds: number; train_accuracy: number | null; chosen_scores: Array<[number, number]>; rejected_scores: Array<[number, number]>; length_correlation: number | null; loss: Array<number>; pooling: string | null; warm_start: boolean; adapter_rejected: boolean; note: string; seconds: number | null; example_texts: Array<ExampleText>; calibration: Array<[number, number, number]>; calibration_error: number | null; disagreements: Array<Disagreement>; attributes: Array<AttributeRow> };
type RewardState = { project: number; models: Array<ModelSummary>; default_id: number | null; job: Training | null; last_training: number; cancelled: boolean; failed: string; labels: LabelCounts; prediction_stats: Record<string, RewardPredictionStats>; instant: InstantAccuracy | null; estimates_key: string; scores_hidden: string };
type Role = 'viewer' | 'labeller' | 'operator';
type RulesPayload = { annotator?: string | null; shown_project?: number | string | null; rules: Record<string, string | number | string | boolean | null> };
type RunControl = { annotator?: string | null; shown_project?: number | string | null; run: number | string; action?: string; setting?: string; value?: number | string | string | null; reward_model?: number | string | null };
type RunElsewhere = { id: number; name: string; status: RunStatus; project: string };
type RunMetricsPayload = { annotator?: string | null; shown_project?: number | string | null; path: string; name?: string; run_name?: string; updates_per_step?: number | string };
type RunPayload = { annotator?: string | null; shown_project?: number | string | null; run: number | string };
type RunPoll = { state?: FeedReply; elsewhere?: Array<RunElsewhere> };
type RunRow = { id: number; name: string; outside_file: string; algorithm: string; status: RunStatus; step: number; total_steps: number; message: string; created_at: number; score: number | null; kl: number | null; gold: number | null; sparkline: Array<number | null>; is_resumable: boolean; is_active: boolean };
type RunSettings = { annotator?: string | null; shown_project?: number | string | null; steps: number | string; responses: number | string; tokens: number | string };
type RunState = { id: number; status: RunStatus; step: number; total_steps: number; reward_model: number | null; set_by_hand: Array<string>; beta: number; lr: number };
type RunStatus = 'queued' | 'running' | 'paused' | 'interrupted' | 'done' | 'stopped' | 'failed';
type RunsOverview = { project: number; name: string; runs: Array<RunRow>; lab_command: string; unlisted_count: number; reward_models: Array<[number, string]>; labels: Record<string, number>; annotators: Record<string, Array<string>> };
type SampleRow = { prompt: string; turns: Array<Record<string, string>>; text: string; score: number | null; gold: number | null; cut: number | null; base_text: string | null; base_score: number | null; base_gold: number | null; base_cut: number | null };
type SecretPayload = { annotator?: string | null; shown_project?: number | string | null; secret?: string };
type SelfChecks = { max_first_ratio_deviation: number | null; first_step_kl: number | null };
type SettingDifference = { name: string; about: string; values: Array<string> };
type SettingsQuery = { annotator?: string | null; shown_project?: number | string | null; settings: Record<string, string | number | string | boolean | null> };
type ShareRow = { share: number | null; low: number; high: number; count: number };
type ShownPair = { id: number; turns: Array<Record<string, string>>; left: string; right: string; cut: Cuts; adjudication: boolean; prompt: string; markdown: boolean };
type ShownPrediction = { decided: boolean; scores: [number, number]; expected: boolean | null };
type Source = 'human' | 'simulated';
type Standing = { contestant: number; name: string; score: number | null; low: number | null; high: number | null; answers: number; kl: number | null; reward: number | null; gold: number | null };
type StartOptions = { project: number; temperature: number; max_new_tokens: number; models: Array<RewardModelOption>; default_id: number | null; default_reason: string; labels_text: string; few_labels_note: string; labels_missing: number; training_progress: number | null; training_text: string; run_count: number; estimates_key: string; active_runs: Array<number> };
type StartPayload = { annotator?: string | null; shown_project?: number | string | null; name: string };
type StartRun = { annotator?: string | null; shown_project?: number | string | null; settings: Record<string, string | number | string | boolean | null>; reward_model: number | string; name?: string; reward_terms?: string; track?: string; ptx_file?: string; ptx_column?: string };
type StartTestPayload = { annotator?: string | null; shown_project?: number | string | null; models: Array<string>; seed: number | string; temperature: number | string; max_new_tokens: number | string; reward_model_id?: number | string | ''; pairs: number | string };
type StartTournamentPayload = { annotator?: string | null; shown_project?: number | string | null; contestants: Array<string>; prompts: number | string; max_new_tokens: number | string; reward_model_id?: number | string | '' };
type StartedDemoRun = { run: number; runs_before: number };
type StartedRun = { run: number };
type StartupPhase = 'checking' | 'downloading' | 'ready' | 'failed';
type StaticState = { label_source: string; tracking: string; runs: Array<[number, string, RunStatus]>; events: Array<ChangeMarker>; reward_terms: Array<[string, number]>; without_unit?: Array<string>; other_metrics: Array<string>; live_settings: Array<string>; adapted_settings: Array<string>; has_rollouts: boolean; reward_models: Array<[number, string]> };
type StatusQuery = { annotator?: string | null; shown_project?: number | string | null; guide?: boolean; tab?: string };
type Step = 'Label' | 'Reward model' | 'Train' | 'Compare';
type StepConstants = { beta: number; gamma: number; lam: number; low: number; high: number };
type StepQuery = { annotator?: string | null; shown_project?: number | string | null; run: number | string; step: number | string };
type StepSamples = { run: number; step: number; rows: Array<SampleRow> };
type Strength = 'slightly' | 'clearly' | 'much';
type TakeOutLabel = { annotator?: string | null; shown_project?: number | string | null; vote?: number | string; put_back?: Array<number | string> | null };
type TemperaturePayload = { annotator?: string | null; shown_project?: number | string | null; project: number | string; temperature: number | string };
type TestAnswerPayload = { annotator?: string | null; shown_project?: number | string | null; test_id: number | string; token?: string; choice: 'left' | 'right' | 'tie' | 'stop' };
type TestQuery = { annotator?: string | null; shown_project?: number | string | null; test_id?: number | string | null };
type TestRow = { turns: Array<Record<string, string>>; first: string; second: string; choice: string; reward_choice: string | null };
type TestState = { id: number | null; annotator?: string; model_names?: Array<string>; reward_model_id?: number | null; deletion_note?: string; is_waiting?: boolean; failure?: string | null; pair_count?: number; judged_count?: number; left_out_note?: string; result_waits?: boolean; others_progress?: OthersProgress; pair?: PairOfTest | null; closed_text?: string; figure?: [string, string] | null; sentences?: Array<string>; rows?: Array<TestRow> };
type TextColumn = { is_waiting: boolean; running?: boolean; error?: string; texts?: Array<string>; cut?: Array<number | null>; scores?: Array<number>; gold?: Array<number>; best_of?: number; note?: string };
type TextColumns = { columns: Array<TextColumn> };
type TimeBucketRow = { start: number; end: number; votes: number; with_others: number | null; with_self: number | null; alpha: number | null; left: number | null; ties: number | null; seconds: number | null };
type TokenEquation = { name: string; equation: string; symbols: string; about: string };
type TokenRow = { turns: Array<Record<string, string>>; tokens: Array<string>; score: number | null; shaped_score: number | null; clipped: Array<boolean>; columns: Record<string, Array<number | null>>; colors: Record<string, Array<number>> };
type TokenScale = { column: string; name: string; neutral: number; higher_is_better: boolean; legend: Array<[number, number]> };
type TokenView = { run: number; step: number; last_step: number; tokens_per_step: number; constants: StepConstants; equations: Array<TokenEquation>; color_scales: Array<TokenScale>; notable: [number, number]; rows: Array<TokenRow> };
type TournamentAnswerPayload = { annotator?: string | null; shown_project?: number | string | null; tournament_id: number | string; token?: string; choice?: 'left' | 'right' | 'tie' | 'both_bad' | 'skip' | null };
type TournamentPayload = { annotator?: string | null; shown_project?: number | string | null; tournament_id?: number | string | null };
type TournamentState = { id: number | null; ids: Array<number>; annotator?: string; is_waiting?: boolean; progress?: number; failure?: string; can_judge?: boolean; pair?: PairToJudge | null; own_count?: number; answers_note?: string; pause_note?: string; ranking?: Ranking };
type TrainAsVisitor = { annotator?: string | null; shown_project?: number | string | null; last_training?: number | string | null };
type TrainReward = { annotator?: string | null; shown_project?: number | string | null; settings: Record<string, string | number | string | boolean | null>; source: Source; last_training?: number | string | null };
type TrainedOn = { id: number; labels: number; source: Source; people: Array<[string, number]>; annotator_count: number; has_selection: boolean; accuracy: number | null; low: number | null; high: number | null };
type Training = { id: number; running: boolean; progress: number; eta_s: number | null; stage: string; loss: Array<number>; note: string; status_text: string };
type Turn = { role: 'user' | 'assistant'; content: string };
type UnlikelyLabel = { vote_id: number; annotator: string; choice: Choice; probability: number; turns: Array<Record<string, string>>; first: string; second: string; is_set_aside: boolean };
type UnlikelyLabels = { reward_model_id: number; labels: Array<UnlikelyLabel> };
type VotePayload = { annotator?: string | null; shown_project?: number | string | null; uuid: string; choice: 'left' | 'right' | 'tie' | 'both_bad' | 'skip'; strength?: Strength | ''; note?: string; duration_ms?: number | string; pair_id: number | string; edit?: string };
type VoteToRepeat = { annotator?: string | null; shown_project?: number | string | null; vote_id: number | string };
type WeightedAnnotators = { annotator?: string | null; shown_project?: number | string | null; source: Source; weights: Record<string, number | string> };
}
