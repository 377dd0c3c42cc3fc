// Generated from the payloads and replies of the page's requests: python tests/javascript/generate_types.py

export interface Read<Payload, Reply> {
  (payload?: Payload, timeoutMs?: number): Promise<Reply>;
  ifChanged(payload?: Payload): Promise<Reply | null>;
}
export interface Action<Payload, Reply> {
  (payload?: Payload, timeoutMs?: number): Promise<Reply>;
}

export interface HeaderRequests {
  status: Read<Payload, HeaderStatus>;
}

export interface ChatRequests {
  options: Read<OptionsQuery, ChatOptions>;
  answers: Read<AnswersPayload, Answers>;
  ask: Action<AskPayload, Jobs>;
  make_pair: Action<AnswersPayload, NewPair>;
  stop_answers: Action<AnswersPayload, null>;
  forget: Action<AnswersPayload, null>;
}

export type Answer = { status: JobStatus; is_waiting: boolean; text: string; tokens: number; cut: number | null; turns_left_out: number; note: string; error: string };
export type Answers = { answers: Array<Answer> };
export type AnswersPayload = { annotator?: string | null; jobs: Array<number | string> };
export type AskPayload = { annotator?: string | null; models: Array<string>; seed: number | string; temperature: number | string; max_new_tokens: number | string; reward_model_id?: number | string | ''; turns: Array<Turn>; top_p: number | string; forget?: Array<number | string> };
export type ChatOptions = { run: number | null; steps: Array<number>; best: number | null; project: number; temperature: number; max_new_tokens: number; models: Array<[string, string]>; system_prompt: string; has_chat_template: boolean };
export type HeaderDemo = { reset_at: number; is_reset_due: boolean };
export type HeaderEngine = { label: string; style: string; description: string; device: string; memory_mib: number | null; is_working: boolean };
export type HeaderJob = { label: string; run: number | null; step: number | null; progress: number; show_percent: boolean; eta_s: number | null };
export type HeaderMirror = { repository: string; saved_at: number | null; age_s: number | null; problem: string; is_late: boolean };
export type HeaderReward = { id: number; accuracy: number | null; low: number | null; high: number | null; simulated: boolean };
export type HeaderStartup = { phase: StartupPhase; model: string; message: string; downloaded_bytes: number | null; total_bytes: number | null; eta_s: number | null };
export type HeaderStatus = { project: string; model: string; project_created_at: number; counted_at: number; labels: number; simulated: number; reward: HeaderReward | null; engine: HeaderEngine; job: HeaderJob | null; demo: HeaderDemo | null; startup: HeaderStartup | null; mirror: HeaderMirror | null; warning: string; is_operator: boolean };
export type JobStatus = 'queued' | 'running' | 'done' | 'failed' | 'cancelled';
export type Jobs = { jobs: Array<number> };
export type NewPair = { pair_id: number };
export type OptionsQuery = { annotator?: string | null; run?: number | string | null };
export type Payload = { annotator?: string | null };
export type StartupPhase = 'checking' | 'downloading' | 'ready' | 'failed';
export type Turn = { role: 'user' | 'assistant'; content: string };
