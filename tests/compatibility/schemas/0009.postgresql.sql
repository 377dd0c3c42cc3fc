CREATE TABLE alembic_version (
    version_num VARCHAR(32) NOT NULL,
    CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
CREATE TABLE projects (
    id SERIAL NOT NULL,
    name TEXT NOT NULL,
    model TEXT NOT NULL,
    model_hash TEXT NOT NULL,
    prompt_set TEXT NOT NULL,
    seed BIGINT NOT NULL,
    created_at FLOAT NOT NULL,
    CONSTRAINT pk_projects PRIMARY KEY (id)
);
CREATE TABLE prompts (
    id SERIAL NOT NULL,
    project_id INTEGER NOT NULL,
    text TEXT NOT NULL,
    split VARCHAR(8) NOT NULL,
    CONSTRAINT pk_prompts PRIMARY KEY (id),
    CONSTRAINT ck_prompts_split CHECK (split IN ('train', 'eval')),
    CONSTRAINT fk_prompts_project_id FOREIGN KEY(project_id) REFERENCES projects (id)
);
CREATE INDEX ix_prompts_project_id_split ON prompts (project_id, split);
CREATE TABLE completions (
    id SERIAL NOT NULL,
    prompt_id INTEGER NOT NULL,
    text TEXT NOT NULL,
    token_ids TEXT NOT NULL,
    checkpoint TEXT NOT NULL,
    seed BIGINT NOT NULL,
    created_at FLOAT NOT NULL,
    CONSTRAINT pk_completions PRIMARY KEY (id),
    CONSTRAINT fk_completions_prompt_id FOREIGN KEY(prompt_id) REFERENCES prompts (id)
);
CREATE INDEX ix_completions_prompt_id ON completions (prompt_id);
CREATE TABLE pairs (
    id SERIAL NOT NULL,
    project_id INTEGER NOT NULL,
    first_id INTEGER NOT NULL,
    second_id INTEGER NOT NULL,
    reason TEXT NOT NULL,
    created_at FLOAT NOT NULL,
    CONSTRAINT pk_pairs PRIMARY KEY (id),
    CONSTRAINT ck_pairs_distinct CHECK (first_id <> second_id),
    CONSTRAINT fk_pairs_first_id FOREIGN KEY(first_id) REFERENCES completions (id),
    CONSTRAINT fk_pairs_project_id FOREIGN KEY(project_id) REFERENCES projects (id),
    CONSTRAINT fk_pairs_second_id FOREIGN KEY(second_id) REFERENCES completions (id),
    CONSTRAINT uq_pairs_first_id_second_id UNIQUE (first_id, second_id)
);
CREATE INDEX ix_pairs_project_id ON pairs (project_id);
CREATE TABLE votes (
    id SERIAL NOT NULL,
    uuid VARCHAR(64) NOT NULL,
    pair_id INTEGER NOT NULL,
    annotator TEXT NOT NULL,
    source VARCHAR(20) NOT NULL,
    choice VARCHAR(20) NOT NULL,
    first_on_left BOOLEAN NOT NULL,
    response_ms BIGINT,
    created_at FLOAT NOT NULL,
    undone_at FLOAT,
    CONSTRAINT pk_votes PRIMARY KEY (id),
    CONSTRAINT fk_votes_pair_id FOREIGN KEY(pair_id) REFERENCES pairs (id),
    CONSTRAINT uq_votes_uuid UNIQUE (uuid)
);
CREATE INDEX ix_votes_annotator_id ON votes (annotator, id);
CREATE UNIQUE INDEX uq_votes_live ON votes (pair_id, annotator) WHERE undone_at IS NULL;
CREATE TABLE reward_models (
    id SERIAL NOT NULL,
    project_id INTEGER NOT NULL,
    path TEXT NOT NULL,
    config TEXT NOT NULL,
    report TEXT NOT NULL,
    vote_ids TEXT NOT NULL,
    labels_digest VARCHAR(64) NOT NULL,
    source VARCHAR(20) NOT NULL,
    created_at FLOAT NOT NULL,
    CONSTRAINT pk_reward_models PRIMARY KEY (id),
    CONSTRAINT fk_reward_models_project_id FOREIGN KEY(project_id) REFERENCES projects (id)
);
CREATE INDEX ix_reward_models_project_id ON reward_models (project_id);
CREATE TABLE runs (
    id SERIAL NOT NULL,
    project_id INTEGER NOT NULL,
    reward_model_id INTEGER NOT NULL,
    name TEXT NOT NULL,
    status VARCHAR(20) NOT NULL,
    config TEXT NOT NULL,
    manifest TEXT NOT NULL,
    step INTEGER NOT NULL,
    total_steps INTEGER NOT NULL,
    message TEXT NOT NULL,
    created_at FLOAT NOT NULL,
    updated_at FLOAT NOT NULL,
    CONSTRAINT pk_runs PRIMARY KEY (id),
    CONSTRAINT fk_runs_project_id FOREIGN KEY(project_id) REFERENCES projects (id),
    CONSTRAINT fk_runs_reward_model_id FOREIGN KEY(reward_model_id) REFERENCES reward_models (id)
);
CREATE INDEX ix_runs_project_id ON runs (project_id);
CREATE TABLE metrics (
    run_id INTEGER NOT NULL,
    name VARCHAR(80) NOT NULL,
    step INTEGER NOT NULL,
    value FLOAT,
    CONSTRAINT pk_metrics PRIMARY KEY (run_id, name, step),
    CONSTRAINT fk_metrics_run_id FOREIGN KEY(run_id) REFERENCES runs (id) ON DELETE CASCADE
);
CREATE INDEX ix_metrics_run_id_step ON metrics (run_id, step);
CREATE TABLE samples (
    run_id INTEGER NOT NULL,
    step INTEGER NOT NULL,
    position INTEGER NOT NULL,
    prompt TEXT NOT NULL,
    seed BIGINT NOT NULL,
    text TEXT NOT NULL,
    score FLOAT,
    gold FLOAT,
    CONSTRAINT pk_samples PRIMARY KEY (run_id, step, position),
    CONSTRAINT fk_samples_run_id FOREIGN KEY(run_id) REFERENCES runs (id) ON DELETE CASCADE
);
CREATE TABLE token_records (
    run_id INTEGER NOT NULL,
    step INTEGER NOT NULL,
    position INTEGER NOT NULL,
    record BYTEA NOT NULL,
    CONSTRAINT pk_token_records PRIMARY KEY (run_id, step, position),
    CONSTRAINT fk_token_records_run_id FOREIGN KEY(run_id) REFERENCES runs (id) ON DELETE CASCADE
);
CREATE TABLE run_events (
    id SERIAL NOT NULL,
    run_id INTEGER NOT NULL,
    kind VARCHAR(20) NOT NULL,
    payload TEXT NOT NULL,
    created_at FLOAT NOT NULL,
    applied_step INTEGER,
    CONSTRAINT pk_run_events PRIMARY KEY (id),
    CONSTRAINT fk_run_events_run_id FOREIGN KEY(run_id) REFERENCES runs (id) ON DELETE CASCADE
);
CREATE INDEX ix_run_events_run_id ON run_events (run_id);
CREATE TABLE engines (
    id SERIAL NOT NULL,
    host TEXT NOT NULL,
    pid INTEGER NOT NULL,
    process_started FLOAT NOT NULL,
    started_at FLOAT NOT NULL,
    beat_at FLOAT,
    stopped_at FLOAT,
    state TEXT NOT NULL,
    device TEXT NOT NULL,
    memory_mb FLOAT,
    CONSTRAINT pk_engines PRIMARY KEY (id)
);
CREATE INDEX ix_engines_host_pid ON engines (host, pid);
CREATE TABLE jobs (
    id SERIAL NOT NULL,
    kind VARCHAR(20) NOT NULL,
    status VARCHAR(20) NOT NULL,
    project_id INTEGER,
    payload TEXT NOT NULL,
    result TEXT,
    error TEXT NOT NULL,
    progress FLOAT NOT NULL,
    best_progress FLOAT NOT NULL,
    eta_s FLOAT,
    engine_id INTEGER,
    attempts INTEGER NOT NULL,
    created_at FLOAT NOT NULL,
    updated_at FLOAT NOT NULL,
    CONSTRAINT pk_jobs PRIMARY KEY (id),
    CONSTRAINT fk_jobs_engine_id FOREIGN KEY(engine_id) REFERENCES engines (id),
    CONSTRAINT fk_jobs_project_id FOREIGN KEY(project_id) REFERENCES projects (id)
);
CREATE INDEX ix_jobs_project_id_id ON jobs (project_id, id);
CREATE INDEX ix_jobs_status_kind_id ON jobs (status, kind, id);
CREATE TABLE presence (
    who VARCHAR(20) NOT NULL,
    seen_at FLOAT NOT NULL,
    CONSTRAINT pk_presence PRIMARY KEY (who)
);
CREATE TABLE scores (
    reward_model_id INTEGER NOT NULL,
    completion_id INTEGER NOT NULL,
    score FLOAT,
    CONSTRAINT pk_scores PRIMARY KEY (reward_model_id, completion_id),
    CONSTRAINT fk_scores_completion_id FOREIGN KEY(completion_id) REFERENCES completions (id) ON DELETE CASCADE,
    CONSTRAINT fk_scores_reward_model_id FOREIGN KEY(reward_model_id) REFERENCES reward_models (id) ON DELETE CASCADE
);
ALTER TABLE projects ADD COLUMN opened_at FLOAT;
ALTER TABLE votes ADD COLUMN strength VARCHAR(20);
ALTER TABLE votes ADD COLUMN note TEXT DEFAULT '' NOT NULL;
ALTER TABLE votes ADD COLUMN repeat BOOLEAN DEFAULT false NOT NULL;
ALTER TABLE votes ADD COLUMN via VARCHAR(20) DEFAULT 'page' NOT NULL;
DROP INDEX uq_votes_live;
CREATE UNIQUE INDEX uq_votes_live ON votes (pair_id, annotator, repeat) WHERE undone_at IS NULL;
CREATE TABLE labelling (
    project_id INTEGER NOT NULL,
    settings TEXT NOT NULL,
    CONSTRAINT pk_labelling PRIMARY KEY (project_id),
    CONSTRAINT fk_labelling_project_id FOREIGN KEY(project_id) REFERENCES projects (id)
);
CREATE TABLE leases (
    pair_id INTEGER NOT NULL,
    annotator VARCHAR(200) NOT NULL,
    repeat BOOLEAN NOT NULL,
    leased_at FLOAT NOT NULL,
    expires_at FLOAT NOT NULL,
    CONSTRAINT pk_leases PRIMARY KEY (pair_id, annotator),
    CONSTRAINT fk_leases_pair_id FOREIGN KEY(pair_id) REFERENCES pairs (id)
);
CREATE INDEX ix_leases_annotator ON leases (annotator);
CREATE TABLE people (
    id SERIAL NOT NULL,
    name VARCHAR(200) NOT NULL,
    joined_at FLOAT NOT NULL,
    CONSTRAINT pk_people PRIMARY KEY (id),
    CONSTRAINT uq_people_name UNIQUE (name)
);
ALTER TABLE prompts ADD COLUMN labels_only BOOLEAN DEFAULT false NOT NULL;
CREATE INDEX ix_pairs_second_id ON pairs (second_id);
CREATE INDEX ix_votes_pair_id ON votes (pair_id);
CREATE INDEX ix_scores_completion_id ON scores (completion_id);
CREATE TABLE blind_tests (
    id SERIAL NOT NULL,
    project_id INTEGER NOT NULL,
    first_job INTEGER NOT NULL,
    second_job INTEGER NOT NULL,
    created_at FLOAT NOT NULL,
    CONSTRAINT pk_blind_tests PRIMARY KEY (id),
    CONSTRAINT fk_blind_tests_project_id FOREIGN KEY(project_id) REFERENCES projects (id),
    CONSTRAINT fk_blind_tests_first_job FOREIGN KEY(first_job) REFERENCES jobs (id),
    CONSTRAINT fk_blind_tests_second_job FOREIGN KEY(second_job) REFERENCES jobs (id)
);
CREATE INDEX ix_blind_tests_project_id ON blind_tests (project_id);
CREATE TABLE blind_votes (
    test_id INTEGER NOT NULL,
    annotator VARCHAR(200) NOT NULL,
    position INTEGER NOT NULL,
    choice VARCHAR(20) NOT NULL,
    created_at FLOAT NOT NULL,
    CONSTRAINT pk_blind_votes PRIMARY KEY (test_id, annotator, position),
    CONSTRAINT fk_blind_votes_test_id FOREIGN KEY(test_id) REFERENCES blind_tests (id) ON DELETE CASCADE
);
CREATE TABLE imports (
    id SERIAL NOT NULL,
    project_id INTEGER NOT NULL,
    name TEXT NOT NULL,
    who TEXT NOT NULL,
    use_prompts BOOLEAN NOT NULL,
    created_at FLOAT NOT NULL,
    taken_back_at FLOAT,
    CONSTRAINT pk_imports PRIMARY KEY (id),
    CONSTRAINT fk_imports_project_id FOREIGN KEY(project_id) REFERENCES projects (id)
);
CREATE INDEX ix_imports_project_id ON imports (project_id);
ALTER TABLE prompts ADD COLUMN import_id INTEGER;
CREATE INDEX ix_prompts_import_id ON prompts (import_id);
ALTER TABLE pairs ADD COLUMN import_id INTEGER;
CREATE INDEX ix_pairs_import_id ON pairs (import_id);
ALTER TABLE votes ADD COLUMN import_id INTEGER;
CREATE INDEX ix_votes_import_id ON votes (import_id);
ALTER TABLE pairs ADD COLUMN taken_back_at FLOAT;
INSERT INTO alembic_version VALUES ('0009');
INSERT INTO projects (id, name, model, model_hash, prompt_set, seed, created_at, opened_at) VALUES
    (1, 'Tales', 'embedded', 'abc', 'tales', 7, 1000.5, 1001.0);
SELECT setval('projects_id_seq', 1);
INSERT INTO prompts (id, project_id, text, split, labels_only, import_id) VALUES
    (1, 1, 'Once upon a time', 'train', false, NULL),
    (2, 1, 'Élodie said: "it''s late"', 'eval', false, NULL);
SELECT setval('prompts_id_seq', 2);
INSERT INTO reward_models (id, project_id, path, config, report, vote_ids, labels_digest, source, created_at) VALUES
    (1, 1, 'reward_models/m', '{}', '{"accuracy":null}', '[1,2]', 'dddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddd', 'human', 1030.0);
SELECT setval('reward_models_id_seq', 1);
INSERT INTO completions (id, prompt_id, text, token_ids, checkpoint, seed, created_at) VALUES
    (1, 1, ' text 1', '[1,1]', 'base', 4611686018427387905, 1003.0),
    (2, 1, ' text 2', '[2,1]', 'base', 4611686018427387906, 1004.0),
    (3, 1, ' text 3', '[3,1]', 'base', 4611686018427387907, 1005.0),
    (4, 1, ' text 4', '[4,1]', 'run/1/2', 4611686018427387908, 1006.0),
    (5, 1, ' text 5', '[5,1]', 'run/1/2', 4611686018427387909, 1007.0),
    (6, 1, ' text 6', '[6,1]', 'run/1/2', 4611686018427387910, 1008.0);
SELECT setval('completions_id_seq', 6);
INSERT INTO runs (id, project_id, reward_model_id, name, status, config, manifest, step, total_steps, message, created_at, updated_at) VALUES
    (1, 1, 1, 'first', 'done', '{"algorithm":"ppo"}', '{}', 2, 2, '', 1040.0, 1041.0);
SELECT setval('runs_id_seq', 1);
INSERT INTO metrics (run_id, name, step, value) VALUES
    (1, 'objective/kl', 1, 0.25),
    (1, 'objective/kl', 2, NULL);
INSERT INTO pairs (id, project_id, first_id, second_id, reason, created_at, import_id, taken_back_at) VALUES
    (1, 1, 1, 2, 'random', 1010.0, NULL, NULL),
    (2, 1, 3, 4, 'random', 1011.0, NULL, NULL),
    (3, 1, 5, 6, 'random', 1012.0, NULL, NULL);
SELECT setval('pairs_id_seq', 3);
INSERT INTO votes (id, uuid, pair_id, annotator, source, choice, first_on_left, response_ms, created_at, undone_at, strength, note, repeat, via, import_id) VALUES
    (1, 'u-1', 1, 'Ann', 'human', 'first', true, 900, 1020.0, NULL, 'clearly', 'better end', false, 'page', NULL),
    (2, 'u-2', 2, 'Ann', 'human', 'tie', false, NULL, 1021.0, NULL, NULL, '', false, 'page', NULL),
    (3, 'u-3', 2, 'Bob', 'human', 'second', true, 400, 1022.0, 1023.0, NULL, '', false, 'page', NULL),
    (4, 'u-4', 3, 'judge:cheerful', 'simulated', 'both_bad', true, NULL, 1024.0, NULL, NULL, '', false, 'page', NULL);
SELECT setval('votes_id_seq', 4);
