-- Instants are microseconds since 1970-01-01 00:00 UTC by this server's clock,
-- 0 for none. Ids compare by bytes, which is the order in which rows are locked.
-- A column "changed" holds the number of the transaction that changed the row.

-- One row for each node. Beats and renewals change nothing here.
CREATE TABLE {s}fleet_node (
	id           text   COLLATE "C" PRIMARY KEY,
	incarnation  text   NOT NULL DEFAULT '',
	replaced     text   NOT NULL DEFAULT '[]', -- JSON: the incarnations before it
	facts        text   NOT NULL DEFAULT '{}', -- JSON
	capacity     text   NOT NULL DEFAULT '{}', -- JSON: of the facts
	intent       text   NOT NULL DEFAULT '{}', -- JSON
	intent_state text   NOT NULL DEFAULT 'active',
	ready        bool   NOT NULL DEFAULT false,
	not_ready_us bigint NOT NULL DEFAULT 0,
	first_us     bigint NOT NULL DEFAULT 0,
	joined_us    bigint NOT NULL DEFAULT 0,    -- of the incarnation
	orders       bigint NOT NULL DEFAULT 0,    -- revision: grows, also past a restored backup
	lapses       text   NOT NULL DEFAULT '[]', -- JSON: instants
	lapse_token  bigint NOT NULL DEFAULT 0,    -- of the last term in lapses
	removed_us   bigint NOT NULL DEFAULT 0,
	changed      bigint NOT NULL
);
CREATE INDEX fleet_node_changed ON {s}fleet_node (changed);

-- When a node was last heard. It is rewritten for every node every few seconds,
-- so it is narrow, has no index but its key, room for heap-only updates, and no
-- log: after a crash of the server, who was heard is heard again.
CREATE UNLOGGED TABLE {s}fleet_seen (
	node    text COLLATE "C" PRIMARY KEY,
	seen_us bigint NOT NULL
) WITH (fillfactor = 50);

-- Nothing that a progress report changes is indexed.
CREATE TABLE {s}fleet_work (
	id             text   COLLATE "C" PRIMARY KEY,
	spec           text   NOT NULL, -- JSON
	resources      text   NOT NULL, -- JSON: of the spec
	movable        bool   NOT NULL,
	stuck_after_us bigint NOT NULL, -- 0: never
	state          text   NOT NULL CHECK (state IN ('pending', 'placed', 'running', 'stopping', 'succeeded', 'failed', 'stopped')),
	owner          text   COLLATE "C" NOT NULL DEFAULT '',
	token          bigint NOT NULL,
	moving         bool   NOT NULL DEFAULT false,
	why            text   NOT NULL DEFAULT '',
	progress       text   NOT NULL DEFAULT '',
	progress_us    bigint NOT NULL DEFAULT 0,
	submitted_us   bigint NOT NULL,
	assigned_us    bigint NOT NULL DEFAULT 0,
	started_us     bigint NOT NULL DEFAULT 0,
	ended_us       bigint NOT NULL DEFAULT 0,
	exit_code      bigint NOT NULL DEFAULT 0,
	result         text   NOT NULL DEFAULT '',
	taken_from     text   NOT NULL DEFAULT '',
	takeovers      bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 70);
CREATE INDEX fleet_work_owned ON {s}fleet_work (owner) WHERE state IN ('placed', 'running', 'stopping');
CREATE INDEX fleet_work_pending ON {s}fleet_work (id) WHERE state = 'pending';
CREATE INDEX fleet_work_ended ON {s}fleet_work (ended_us) WHERE state IN ('succeeded', 'failed', 'stopped');

CREATE TABLE {s}fleet_event (
	seq    bigserial PRIMARY KEY,
	at_us  bigint NOT NULL,
	kind   text   NOT NULL,
	node   text   NOT NULL,
	work   text   NOT NULL,
	token  bigint NOT NULL,
	code   text   NOT NULL,
	actor  text   NOT NULL,
	text   text   NOT NULL,
	fields text   NOT NULL -- JSON, or ''
);
CREATE INDEX fleet_event_node ON {s}fleet_event (node, seq) WHERE node <> '';
CREATE INDEX fleet_event_work ON {s}fleet_event (work, seq) WHERE work <> '';

CREATE TABLE {s}fleet_takeover (
	seq           bigserial PRIMARY KEY,
	work          text   COLLATE "C" NOT NULL,
	actor         text   NOT NULL,
	from_node     text   NOT NULL,
	from_token    bigint NOT NULL,
	to_node       text   NOT NULL, -- '' while nobody has it
	to_token      bigint NOT NULL,
	lease_token   bigint NOT NULL, -- of the term of from_node that was over
	lease_state   text   NOT NULL,
	progress      text   NOT NULL,
	silence_us    bigint NOT NULL,
	suspect_us    bigint NOT NULL,
	lapse_us      bigint NOT NULL,
	recorded_us   bigint NOT NULL,
	started_us    bigint NOT NULL DEFAULT 0,
	redirected_us bigint NOT NULL DEFAULT 0
);
CREATE INDEX fleet_takeover_work ON {s}fleet_takeover (work, seq);

CREATE TABLE {s}fleet_brake_order (
	seq    bigserial PRIMARY KEY,
	domain text   NOT NULL,
	what   text   NOT NULL,
	actor  text   NOT NULL,
	reason text   NOT NULL,
	at_us  bigint NOT NULL
);

-- One row: what there is once.
CREATE TABLE {s}fleet_single (
	one          bool   PRIMARY KEY DEFAULT true CHECK (one),
	suspect_us   bigint NOT NULL DEFAULT 30000000, -- for the view tenure_nodes
	brake        text   NOT NULL DEFAULT '',       -- JSON
	brake_us     bigint NOT NULL DEFAULT 0
);
INSERT INTO {s}fleet_single DEFAULT VALUES;

-- The token after which new items begin: above every token of an item that was
-- deleted, since an id may come again.
CREATE TABLE {s}fleet_floor (
	one   bool   PRIMARY KEY DEFAULT true CHECK (one),
	token bigint NOT NULL DEFAULT 0
);
INSERT INTO {s}fleet_floor DEFAULT VALUES;

CREATE VIEW {s}tenure_work AS
SELECT w.id, w.state, w.owner, w.token, w.movable, w.moving,
	w.state = 'running' AND w.stuck_after_us > 0 AND c.now - greatest(w.progress_us, w.started_us) > w.stuck_after_us AS stuck,
	coalesce(l.token > 0 AND l.ended_us = 0 AND l.expires_us > c.now, false) AS owner_leased,
	w.why, w.progress, round((c.now - nullif(w.progress_us, 0)) / 1e6, 1) AS progress_age_s,
	w.taken_from, w.takeovers,
	to_timestamp(w.submitted_us / 1e6) AS submitted_at,
	to_timestamp(nullif(w.assigned_us, 0) / 1e6) AS assigned_at,
	to_timestamp(nullif(w.started_us, 0) / 1e6) AS started_at,
	to_timestamp(nullif(w.ended_us, 0) / 1e6) AS ended_at,
	w.exit_code, w.result
FROM (SELECT {s}tenure_clock()::numeric AS now OFFSET 0) c, {s}fleet_work w
	LEFT JOIN {s}tenure_lease l ON w.state IN ('placed', 'running', 'stopping') AND l.name = 'node/' || w.owner;

CREATE VIEW {s}tenure_nodes AS
SELECT n.id, round(x.age_us / 1e6, 1) AS age_s,
	round(greatest(x.remaining_us, 0) / 1e6, 1) AS lease_remaining_s,
	x.age_us > g.suspect_us AS stale,
	x.remaining_us <= 0 OR coalesce(l.revoked OR l.token <= l.floor, false) AS fenced,
	n.intent_state IN ('draining', 'drained') AS draining,
	n.intent_state AS intent, coalesce(n.intent::jsonb #>> '{drain,reason}', n.intent::jsonb #>> '{cordon,reason}', '') AS reason,
	n.ready,
	(SELECT jsonb_object_agg(k.key, k.value::bigint - coalesce((
			SELECT sum((w.resources::jsonb ->> k.key)::bigint) FROM {s}fleet_work w
			WHERE w.owner = n.id AND w.state IN ('placed', 'running', 'stopping')), 0))
		FROM jsonb_each_text(n.capacity::jsonb) k) AS free,
	(SELECT count(*) FROM {s}fleet_work w WHERE w.owner = n.id AND w.state IN ('placed', 'running', 'stopping')) AS work_owned,
	(SELECT count(*) FROM {s}fleet_work w WHERE w.owner = n.id AND w.state = 'running' AND w.stuck_after_us > 0
		AND c.now - greatest(w.progress_us, w.started_us) > w.stuck_after_us) AS work_stuck,
	n.facts::jsonb ->> 'address' AS address, n.incarnation
FROM (SELECT {s}tenure_clock()::numeric AS now OFFSET 0) c, {s}fleet_single g, {s}fleet_node n
	LEFT JOIN {s}fleet_seen s ON s.node = n.id
	LEFT JOIN {s}tenure_lease l ON l.name = 'node/' || n.id
	CROSS JOIN LATERAL (SELECT greatest(c.now - greatest(s.seen_us, n.joined_us), 0) AS age_us,
		CASE WHEN l.token > 0 AND l.ended_us = 0 THEN l.expires_us - c.now ELSE 0 END AS remaining_us) x
WHERE n.removed_us = 0;

CREATE VIEW {s}tenure_takeovers AS
SELECT t.seq, t.work, t.from_node, t.from_token, t.to_node, t.to_token, t.lease_token, t.lease_state, t.progress, t.actor,
	to_timestamp(nullif(t.silence_us, 0) / 1e6) AS silence_at,
	to_timestamp(nullif(t.suspect_us, 0) / 1e6) AS suspect_at,
	to_timestamp(nullif(t.lapse_us, 0) / 1e6) AS lapse_at,
	to_timestamp(nullif(t.recorded_us, 0) / 1e6) AS recorded_at,
	to_timestamp(nullif(t.started_us, 0) / 1e6) AS started_at,
	to_timestamp(nullif(t.redirected_us, 0) / 1e6) AS redirected_at
FROM {s}fleet_takeover t;
