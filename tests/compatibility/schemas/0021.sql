BEGIN TRANSACTION;
CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "alembic_version" VALUES('0021');
CREATE TABLE blind_tests (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	project_id INTEGER NOT NULL, 
	first_job INTEGER NOT NULL, 
	second_job INTEGER NOT NULL, 
	created_at FLOAT NOT NULL, 
	CONSTRAINT fk_blind_tests_project_id FOREIGN KEY(project_id) REFERENCES projects (id), 
	CONSTRAINT fk_blind_tests_first_job FOREIGN KEY(first_job) REFERENCES jobs (id), 
	CONSTRAINT fk_blind_tests_second_job FOREIGN KEY(second_job) REFERENCES jobs (id)
);
CREATE TABLE blind_votes (
	test_id INTEGER NOT NULL, 
	annotator VARCHAR(200) NOT NULL, 
	position INTEGER NOT NULL, 
	choice VARCHAR(20) NOT NULL, 
	created_at FLOAT NOT NULL, 
	CONSTRAINT pk_blind_votes PRIMARY KEY (test_id, annotator, position), 
	CONSTRAINT fk_blind_votes_test_id FOREIGN KEY(test_id) REFERENCES blind_tests (id) ON DELETE CASCADE
)
 WITHOUT ROWID

;
CREATE TABLE "completions" (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	prompt_id INTEGER NOT NULL, 
	text TEXT NOT NULL, 
	token_ids TEXT NOT NULL, 
	checkpoint TEXT NOT NULL, 
	seed INTEGER NOT NULL, 
	created_at FLOAT NOT NULL, 
	CONSTRAINT fk_completions_prompt_id FOREIGN KEY(prompt_id) REFERENCES prompts (id)
);
INSERT INTO "completions" VALUES(1,1,' text 1','[1,1]','base',4611686018427387905,1003.0);
INSERT INTO "completions" VALUES(2,1,' text 2','[2,1]','base',4611686018427387906,1004.0);
INSERT INTO "completions" VALUES(3,1,' text 3','[3,1]','base',4611686018427387907,1005.0);
INSERT INTO "completions" VALUES(4,1,' text 4','[4,1]','run/1/2',4611686018427387908,1006.0);
INSERT INTO "completions" VALUES(5,1,' text 5','[5,1]','run/1/2',4611686018427387909,1007.0);
INSERT INTO "completions" VALUES(6,1,' text 6','[6,1]','run/1/2',4611686018427387910,1008.0);
CREATE TABLE engines (
	id INTEGER NOT NULL, 
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
CREATE TABLE features (
	completion_id INTEGER NOT NULL, 
	version INTEGER NOT NULL, 
	layers INTEGER NOT NULL, 
	vector BLOB NOT NULL, 
	CONSTRAINT pk_features PRIMARY KEY (completion_id), 
	CONSTRAINT fk_features_completion_id FOREIGN KEY(completion_id) REFERENCES completions (id) ON DELETE CASCADE
);
CREATE TABLE imports (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	project_id INTEGER NOT NULL, 
	name TEXT NOT NULL, 
	who TEXT NOT NULL, 
	use_prompts BOOLEAN NOT NULL, 
	created_at FLOAT NOT NULL, 
	taken_back_at FLOAT, 
	CONSTRAINT fk_imports_project_id FOREIGN KEY(project_id) REFERENCES projects (id)
);
CREATE TABLE "jobs" (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
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
	CONSTRAINT fk_jobs_engine_id FOREIGN KEY(engine_id) REFERENCES engines (id), 
	CONSTRAINT fk_jobs_project_id FOREIGN KEY(project_id) REFERENCES projects (id)
);
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
	expires_at FLOAT NOT NULL, adjudication BOOLEAN DEFAULT 0 NOT NULL, 
	CONSTRAINT pk_leases PRIMARY KEY (pair_id, annotator), 
	CONSTRAINT fk_leases_pair_id FOREIGN KEY(pair_id) REFERENCES pairs (id)
)
 WITHOUT ROWID

;
CREATE TABLE live_heads (
	run_id INTEGER NOT NULL, 
	version INTEGER NOT NULL, 
	labels INTEGER NOT NULL, 
	decided INTEGER NOT NULL, 
	labels_digest VARCHAR(64) NOT NULL, 
	kl_budget FLOAT NOT NULL, 
	weights BLOB NOT NULL, 
	created_at FLOAT NOT NULL, 
	CONSTRAINT pk_live_heads PRIMARY KEY (run_id, version), 
	CONSTRAINT fk_live_heads_run_id FOREIGN KEY(run_id) REFERENCES runs (id) ON DELETE CASCADE
)
 WITHOUT ROWID

;
CREATE TABLE live_pairs (
	pair_id INTEGER NOT NULL, 
	run_id INTEGER NOT NULL, 
	step INTEGER NOT NULL, 
	opponent VARCHAR(20), 
	opponent_step INTEGER, 
	policy_side VARCHAR(20), 
	CONSTRAINT pk_live_pairs PRIMARY KEY (pair_id), 
	CONSTRAINT fk_live_pairs_pair_id FOREIGN KEY(pair_id) REFERENCES pairs (id) ON DELETE CASCADE, 
	CONSTRAINT fk_live_pairs_run_id FOREIGN KEY(run_id) REFERENCES runs (id) ON DELETE CASCADE
)
 WITHOUT ROWID

;
CREATE TABLE metrics (
	run_id INTEGER NOT NULL, 
	name VARCHAR(80) NOT NULL, 
	step INTEGER NOT NULL, 
	value FLOAT, 
	CONSTRAINT pk_metrics PRIMARY KEY (run_id, name, step), 
	CONSTRAINT fk_metrics_run_id FOREIGN KEY(run_id) REFERENCES runs (id) ON DELETE CASCADE
)
 WITHOUT ROWID

;
INSERT INTO "metrics" VALUES(1,'objective/kl',1,0.25);
INSERT INTO "metrics" VALUES(1,'objective/kl',2,NULL);
CREATE TABLE "pairs" (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	project_id INTEGER NOT NULL, 
	first_id INTEGER NOT NULL, 
	second_id INTEGER NOT NULL, 
	reason TEXT NOT NULL, 
	created_at FLOAT NOT NULL, import_id INTEGER, taken_back_at FLOAT, gold VARCHAR(20), gold_at FLOAT, 
	CONSTRAINT ck_pairs_distinct CHECK (first_id <> second_id), 
	CONSTRAINT fk_pairs_first_id FOREIGN KEY(first_id) REFERENCES completions (id), 
	CONSTRAINT fk_pairs_project_id FOREIGN KEY(project_id) REFERENCES projects (id), 
	CONSTRAINT fk_pairs_second_id FOREIGN KEY(second_id) REFERENCES completions (id), 
	CONSTRAINT uq_pairs_first_id_second_id UNIQUE (first_id, second_id)
);
INSERT INTO "pairs" VALUES(1,1,1,2,'random',1010.0,NULL,NULL,NULL,NULL);
INSERT INTO "pairs" VALUES(2,1,3,4,'random',1011.0,NULL,NULL,NULL,NULL);
INSERT INTO "pairs" VALUES(3,1,5,6,'random',1012.0,NULL,NULL,'first',1013.0);
CREATE TABLE people (
	id INTEGER NOT NULL, 
	name VARCHAR(200) NOT NULL, 
	joined_at FLOAT NOT NULL, 
	CONSTRAINT pk_people PRIMARY KEY (id), 
	CONSTRAINT uq_people_name UNIQUE (name)
);
CREATE TABLE presence (
	who VARCHAR(20) NOT NULL, 
	seen_at FLOAT NOT NULL, 
	CONSTRAINT pk_presence PRIMARY KEY (who)
);
CREATE TABLE project_people (
	project_id INTEGER NOT NULL, 
	annotator VARCHAR(200) NOT NULL, 
	is_expert BOOLEAN DEFAULT 0 NOT NULL, 
	gold_since FLOAT DEFAULT 0 NOT NULL, 
	CONSTRAINT pk_project_people PRIMARY KEY (project_id, annotator), 
	CONSTRAINT fk_project_people_project_id FOREIGN KEY(project_id) REFERENCES projects (id)
)
 WITHOUT ROWID

;
CREATE TABLE "projects" (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	name TEXT NOT NULL, 
	model TEXT NOT NULL, 
	model_hash TEXT NOT NULL, 
	prompt_set TEXT NOT NULL, 
	seed INTEGER NOT NULL, 
	created_at FLOAT NOT NULL, opened_at FLOAT
, temperature FLOAT DEFAULT 1 NOT NULL, system_prompt TEXT DEFAULT '' NOT NULL, template_arguments TEXT DEFAULT '{}' NOT NULL, max_new_tokens INTEGER DEFAULT 64 NOT NULL);
INSERT INTO "projects" VALUES(1,'Tales','embedded','abc','tales',7,1000.5,1001.0,0.7,'Be brief.','{"enable_thinking":false}',64);
CREATE TABLE "prompts" (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	project_id INTEGER NOT NULL, 
	text TEXT NOT NULL, 
	split VARCHAR(8) NOT NULL, labels_only BOOLEAN DEFAULT 0 NOT NULL, import_id INTEGER, 
	CONSTRAINT ck_prompts_split CHECK (split IN ('train', 'eval')), 
	CONSTRAINT fk_prompts_project_id FOREIGN KEY(project_id) REFERENCES projects (id)
);
INSERT INTO "prompts" VALUES(1,1,'Once upon a time','train',0,NULL);
INSERT INTO "prompts" VALUES(2,1,'Élodie said: "it''s late"','eval',0,NULL);
CREATE TABLE "reward_models" (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	project_id INTEGER NOT NULL, 
	path TEXT NOT NULL, 
	config TEXT NOT NULL, 
	report TEXT NOT NULL, 
	vote_ids TEXT NOT NULL, 
	labels_digest VARCHAR(64) NOT NULL, 
	source VARCHAR(20) NOT NULL, 
	created_at FLOAT NOT NULL, vote_weights TEXT DEFAULT '[]' NOT NULL, 
	CONSTRAINT fk_reward_models_project_id FOREIGN KEY(project_id) REFERENCES projects (id)
);
INSERT INTO "reward_models" VALUES(1,1,'reward_models/m','{}','{"accuracy":null}','[1,2]','dddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddd','human',1030.0,'[]');
CREATE TABLE run_events (
	id INTEGER NOT NULL, 
	run_id INTEGER NOT NULL, 
	kind VARCHAR(20) NOT NULL, 
	payload TEXT NOT NULL, 
	created_at FLOAT NOT NULL, 
	applied_step INTEGER, 
	CONSTRAINT pk_run_events PRIMARY KEY (id), 
	CONSTRAINT fk_run_events_run_id FOREIGN KEY(run_id) REFERENCES runs (id) ON DELETE CASCADE
);
CREATE TABLE "runs" (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	project_id INTEGER NOT NULL, 
	reward_model_id INTEGER, 
	name TEXT NOT NULL, 
	status VARCHAR(20) NOT NULL, 
	config TEXT NOT NULL, 
	manifest TEXT NOT NULL, 
	step INTEGER NOT NULL, 
	total_steps INTEGER NOT NULL, 
	message TEXT NOT NULL, 
	created_at FLOAT NOT NULL, 
	updated_at FLOAT NOT NULL, 
	CONSTRAINT fk_runs_project_id FOREIGN KEY(project_id) REFERENCES projects (id), 
	CONSTRAINT fk_runs_reward_model_id FOREIGN KEY(reward_model_id) REFERENCES reward_models (id)
);
INSERT INTO "runs" VALUES(1,1,1,'first','done','{"algorithm":"ppo"}','{}',2,2,'',1040.0,1041.0);
CREATE TABLE samples (
	run_id INTEGER NOT NULL, 
	step INTEGER NOT NULL, 
	position INTEGER NOT NULL, 
	prompt TEXT NOT NULL, 
	seed INTEGER NOT NULL, 
	text TEXT NOT NULL, 
	score FLOAT, 
	gold FLOAT, cut INTEGER, 
	CONSTRAINT pk_samples PRIMARY KEY (run_id, step, position), 
	CONSTRAINT fk_samples_run_id FOREIGN KEY(run_id) REFERENCES runs (id) ON DELETE CASCADE
);
CREATE TABLE scores (
	reward_model_id INTEGER NOT NULL, 
	completion_id INTEGER NOT NULL, 
	score FLOAT, 
	CONSTRAINT pk_scores PRIMARY KEY (reward_model_id, completion_id), 
	CONSTRAINT fk_scores_completion_id FOREIGN KEY(completion_id) REFERENCES completions (id) ON DELETE CASCADE, 
	CONSTRAINT fk_scores_reward_model_id FOREIGN KEY(reward_model_id) REFERENCES reward_models (id) ON DELETE CASCADE
)
 WITHOUT ROWID

;
CREATE TABLE token_records (
	run_id INTEGER NOT NULL, 
	step INTEGER NOT NULL, 
	position INTEGER NOT NULL, 
	record BLOB NOT NULL, 
	CONSTRAINT pk_token_records PRIMARY KEY (run_id, step, position), 
	CONSTRAINT fk_token_records_run_id FOREIGN KEY(run_id) REFERENCES runs (id) ON DELETE CASCADE
);
CREATE TABLE tournament_answers (
	tournament_id INTEGER NOT NULL, 
	annotator VARCHAR(200) NOT NULL, 
	position INTEGER NOT NULL, 
	first INTEGER NOT NULL, 
	second INTEGER NOT NULL, 
	choice VARCHAR(20), 
	created_at FLOAT NOT NULL, 
	CONSTRAINT pk_tournament_answers PRIMARY KEY (tournament_id, annotator, position, first, second), 
	CONSTRAINT fk_tournament_answers_tournament_id FOREIGN KEY(tournament_id) REFERENCES tournaments (id) ON DELETE CASCADE
)
 WITHOUT ROWID

;
CREATE TABLE tournaments (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	project_id INTEGER NOT NULL, 
	job_id INTEGER NOT NULL, 
	created_at FLOAT NOT NULL, 
	CONSTRAINT fk_tournaments_project_id FOREIGN KEY(project_id) REFERENCES projects (id), 
	CONSTRAINT fk_tournaments_job_id FOREIGN KEY(job_id) REFERENCES jobs (id)
);
CREATE TABLE "votes" (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	uuid VARCHAR(64) NOT NULL, 
	pair_id INTEGER NOT NULL, 
	annotator TEXT NOT NULL, 
	source VARCHAR(20) NOT NULL, 
	choice VARCHAR(20) NOT NULL, 
	first_on_left BOOLEAN NOT NULL, 
	response_ms INTEGER, 
	created_at FLOAT NOT NULL, 
	undone_at FLOAT, strength VARCHAR(20), note TEXT DEFAULT '' NOT NULL, repeat BOOLEAN DEFAULT 0 NOT NULL, via VARCHAR(20) DEFAULT 'page' NOT NULL, import_id INTEGER, adjudication BOOLEAN DEFAULT 0 NOT NULL, taken_out BOOLEAN DEFAULT 0 NOT NULL, 
	CONSTRAINT fk_votes_pair_id FOREIGN KEY(pair_id) REFERENCES pairs (id), 
	CONSTRAINT uq_votes_uuid UNIQUE (uuid)
);
INSERT INTO "votes" VALUES(1,'u-1',1,'Ann','human','first',1,900,1020.0,NULL,'clearly','better end',0,'page',NULL,0,0);
INSERT INTO "votes" VALUES(2,'u-2',2,'Ann','human','tie',0,NULL,1021.0,NULL,NULL,'',0,'page',NULL,0,0);
INSERT INTO "votes" VALUES(3,'u-3',2,'Bob','human','second',1,400,1022.0,1023.0,NULL,'',0,'page',NULL,0,0);
INSERT INTO "votes" VALUES(4,'u-4',3,'judge:cheerful','simulated','both_bad',1,NULL,1024.0,NULL,NULL,'',0,'page',NULL,0,0);
CREATE INDEX ix_metrics_run_id_step ON metrics (run_id, step);
CREATE INDEX ix_run_events_run_id ON run_events (run_id);
CREATE INDEX ix_engines_host_pid ON engines (host, pid);
CREATE INDEX ix_leases_annotator ON leases (annotator);
CREATE INDEX ix_scores_completion_id ON scores (completion_id);
CREATE INDEX ix_blind_tests_project_id ON blind_tests (project_id);
CREATE INDEX ix_imports_project_id ON imports (project_id);
CREATE INDEX ix_prompts_project_id_split ON prompts (project_id, split);
CREATE INDEX ix_prompts_import_id ON prompts (import_id);
CREATE INDEX ix_completions_prompt_id ON completions (prompt_id);
CREATE INDEX ix_pairs_project_id ON pairs (project_id);
CREATE INDEX ix_pairs_second_id ON pairs (second_id);
CREATE INDEX ix_pairs_import_id ON pairs (import_id);
CREATE INDEX ix_votes_annotator_id ON votes (annotator, id);
CREATE INDEX ix_votes_pair_id ON votes (pair_id);
CREATE INDEX ix_votes_import_id ON votes (import_id);
CREATE INDEX ix_reward_models_project_id ON reward_models (project_id);
CREATE INDEX ix_jobs_project_id_id ON jobs (project_id, id);
CREATE INDEX ix_jobs_status_kind_id ON jobs (status, kind, id);
CREATE INDEX ix_tournaments_project_id ON tournaments (project_id);
CREATE INDEX ix_runs_project_id ON runs (project_id);
CREATE INDEX ix_pairs_gold ON pairs (project_id) WHERE gold IS NOT NULL;
CREATE UNIQUE INDEX uq_votes_live ON votes (pair_id, annotator, repeat, adjudication) WHERE undone_at IS NULL;
CREATE INDEX ix_votes_adjudication ON votes (pair_id) WHERE adjudication IS 1;
CREATE INDEX ix_votes_undone ON votes (undone_at, id) WHERE undone_at IS NOT NULL;
CREATE INDEX ix_pairs_undone ON pairs (taken_back_at, id) WHERE taken_back_at IS NOT NULL;
CREATE INDEX ix_live_pairs_run_id ON live_pairs (run_id);
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('projects',1);
INSERT INTO "sqlite_sequence" VALUES('prompts',2);
INSERT INTO "sqlite_sequence" VALUES('completions',6);
INSERT INTO "sqlite_sequence" VALUES('pairs',3);
INSERT INTO "sqlite_sequence" VALUES('votes',4);
INSERT INTO "sqlite_sequence" VALUES('reward_models',1);
INSERT INTO "sqlite_sequence" VALUES('jobs',0);
INSERT INTO "sqlite_sequence" VALUES('runs',1);
COMMIT;
