// Generated from the payloads and replies of the page's requests: python tests/javascript/generate_types.py

export interface Read<Payload, Reply> {
  (payload?: Payload, timeoutMs?: number): Promise<Reply>;
  ifChanged(payload?: Payload): Promise<Reply | null>;
}
export interface Action<Payload, Reply> {
  (payload?: Payload, timeoutMs?: number): Promise<Reply>;
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
export type JobStatus = 'queued' | 'running' | 'done' | 'failed' | 'cancelled';
export type Jobs = { jobs: Array<number> };
export type NewPair = { pair_id: number };
export type OptionsQuery = { annotator?: string | null; run?: number | string | null };
export type Turn = { role: 'user' | 'assistant'; content: string };
