-- Instants (_us) are microseconds since 1970-01-01 00:00 UTC by the wall clock, 0
-- for none; _ns are nanoseconds of the boot clock, which count within one domain.
-- A column "changed" holds the number of the change of the fleet that wrote the row.

-- One row for each node. Beats and renewals change nothing here.
CREATE TABLE fleet_node (
	id           TEXT    PRIMARY KEY,
	incarnation  TEXT    NOT NULL DEFAULT '',
	replaced     TEXT    NOT NULL DEFAULT '[]', -- JSON: the incarnations before it
	facts        TEXT    NOT NULL DEFAULT '{}', -- JSON
	capacity     TEXT    NOT NULL DEFAULT '{}', -- JSON: of the facts
	intent       TEXT    NOT NULL DEFAULT '{}', -- JSON
	intent_state TEXT    NOT NULL DEFAULT 'active',
	ready        INTEGER NOT NULL DEFAULT 0,
	not_ready_us INTEGER NOT NULL DEFAULT 0,
	first_us     INTEGER NOT NULL DEFAULT 0,
	joined_us    INTEGER NOT NULL DEFAULT 0,    -- of the incarnation
	orders       INTEGER NOT NULL DEFAULT 0,    -- revision: grows, also past a restored backup
	lapses       TEXT    NOT NULL DEFAULT '[]', -- JSON: instants
	lapse_token  INTEGER NOT NULL DEFAULT 0,    -- of the last term in lapses
	removed_us   INTEGER NOT NULL DEFAULT 0,
	changed      INTEGER NOT NULL
) STRICT;
CREATE INDEX fleet_node_changed ON fleet_node (changed);

-- When a node was last heard. It is rewritten for every node every few seconds,
-- so it is narrow and has no index but its key.
CREATE TABLE fleet_seen (
	node    TEXT    PRIMARY KEY,
	seen_us INTEGER NOT NULL,
	domain  TEXT    NOT NULL, -- of seen_ns: which boot of which kernel
	seen_ns INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Nothing that a progress report changes is indexed.
CREATE TABLE fleet_work (
	id             TEXT    PRIMARY KEY,
	spec           TEXT    NOT NULL, -- JSON
	resources      TEXT    NOT NULL, -- JSON: of the spec
	movable        INTEGER NOT NULL,
	stuck_after_us INTEGER NOT NULL, -- 0: never
	state          TEXT    NOT NULL CHECK (state IN ('pending', 'placed', 'running', 'stopping', 'succeeded', 'failed', 'stopped')),
	owner          TEXT    NOT NULL DEFAULT '',
	token          INTEGER NOT NULL,
	moving         INTEGER NOT NULL DEFAULT 0,
	why            TEXT    NOT NULL DEFAULT '',
	progress       TEXT    NOT NULL DEFAULT '',
	progress_us    INTEGER NOT NULL DEFAULT 0,
	submitted_us   INTEGER NOT NULL,
	assigned_us    INTEGER NOT NULL DEFAULT 0,
	started_us     INTEGER NOT NULL DEFAULT 0,
	ended_us       INTEGER NOT NULL DEFAULT 0,
	exit_code      INTEGER NOT NULL DEFAULT 0,
	result         TEXT    NOT NULL DEFAULT '',
	taken_from     TEXT    NOT NULL DEFAULT '',
	takeovers      INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE INDEX fleet_work_owned ON fleet_work (owner) WHERE state IN ('placed', 'running', 'stopping');
CREATE INDEX fleet_work_pending ON fleet_work (id) WHERE state = 'pending';
CREATE INDEX fleet_work_ended ON fleet_work (ended_us) WHERE state IN ('succeeded', 'failed', 'stopped');

CREATE TABLE fleet_event (
	seq    INTEGER PRIMARY KEY AUTOINCREMENT,
	at_us  INTEGER NOT NULL,
	kind   TEXT    NOT NULL,
	node   TEXT    NOT NULL,
	work   TEXT    NOT NULL,
	token  INTEGER NOT NULL,
	code   TEXT    NOT NULL,
	actor  TEXT    NOT NULL,
	text   TEXT    NOT NULL,
	fields TEXT    NOT NULL -- JSON, or ''
) STRICT;
CREATE INDEX fleet_event_node ON fleet_event (node, seq) WHERE node <> '';
CREATE INDEX fleet_event_work ON fleet_event (work, seq) WHERE work <> '';

CREATE TABLE fleet_takeover (
	seq           INTEGER PRIMARY KEY AUTOINCREMENT,
	work          TEXT    NOT NULL,
	actor         TEXT    NOT NULL,
	from_node     TEXT    NOT NULL,
	from_token    INTEGER NOT NULL,
	to_node       TEXT    NOT NULL, -- '' while nobody has it
	to_token      INTEGER NOT NULL,
	lease_token   INTEGER NOT NULL, -- of the term of from_node that was over
	lease_state   TEXT    NOT NULL,
	progress      TEXT    NOT NULL,
	silence_us    INTEGER NOT NULL,
	suspect_us    INTEGER NOT NULL,
	lapse_us      INTEGER NOT NULL,
	recorded_us   INTEGER NOT NULL,
	started_us    INTEGER NOT NULL DEFAULT 0,
	redirected_us INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE INDEX fleet_takeover_work ON fleet_takeover (work, seq);

CREATE TABLE fleet_brake_order (
	seq    INTEGER PRIMARY KEY AUTOINCREMENT,
	domain TEXT    NOT NULL,
	what   TEXT    NOT NULL,
	actor  TEXT    NOT NULL,
	reason TEXT    NOT NULL,
	at_us  INTEGER NOT NULL
) STRICT;

-- One row: what there is once.
CREATE TABLE fleet_single (
	one          INTEGER PRIMARY KEY DEFAULT 1 CHECK (one),
	suspect_us   INTEGER NOT NULL DEFAULT 30000000, -- for the view tenure_nodes
	brake        TEXT    NOT NULL DEFAULT '',       -- JSON
	brake_us     INTEGER NOT NULL DEFAULT 0,
	changed      INTEGER NOT NULL DEFAULT 0        -- the number of the last change
) STRICT;
INSERT INTO fleet_single DEFAULT VALUES;

-- The token after which new items begin: above every token of an item that was
-- deleted, since an id may come again.
CREATE TABLE fleet_floor (
	one   INTEGER PRIMARY KEY DEFAULT 1 CHECK (one),
	token INTEGER NOT NULL DEFAULT 0
) STRICT;
INSERT INTO fleet_floor DEFAULT VALUES;

-- A shell has no boot clock, so the views show terms by the wall clock. It is for
-- display: no decision reads them.
CREATE VIEW tenure_work AS
SELECT w.id, w.state, w.owner, w.token, w.movable, w.moving,
	w.state = 'running' AND w.stuck_after_us > 0 AND c.now - max(w.progress_us, w.started_us) > w.stuck_after_us AS stuck,
	coalesce(l.token > 0 AND l.ended_us = 0 AND l.renewed_us + l.ttl_ns / 1000 > c.now, 0) AS owner_leased,
	w.why, w.progress, round((c.now - nullif(w.progress_us, 0)) / 1e6, 1) AS progress_age_s,
	w.taken_from, w.takeovers,
	strftime('%Y-%m-%dT%H:%M:%fZ', w.submitted_us / 1e6, 'unixepoch') AS submitted_at,
	strftime('%Y-%m-%dT%H:%M:%fZ', nullif(w.assigned_us, 0) / 1e6, 'unixepoch') AS assigned_at,
	strftime('%Y-%m-%dT%H:%M:%fZ', nullif(w.started_us, 0) / 1e6, 'unixepoch') AS started_at,
	strftime('%Y-%m-%dT%H:%M:%fZ', nullif(w.ended_us, 0) / 1e6, 'unixepoch') AS ended_at,
	w.exit_code, w.result
FROM (SELECT (julianday('now') - 2440587.5) * 86400e6 AS now) c CROSS JOIN fleet_work w
	LEFT JOIN tenure_lease l ON w.state IN ('placed', 'running', 'stopping') AND l.name = 'node/' || w.owner;

CREATE VIEW tenure_nodes AS
SELECT n.id, round(n.age_us / 1e6, 1) AS age_s,
	round(max(n.remaining_us, 0) / 1e6, 1) AS lease_remaining_s,
	n.age_us > g.suspect_us AS stale,
	n.remaining_us <= 0 OR n.revoked AS fenced,
	n.intent_state IN ('draining', 'drained') AS draining,
	n.intent_state AS intent, coalesce(n.intent ->> '$.drain.reason', n.intent ->> '$.cordon.reason', '') AS reason,
	n.ready,
	(SELECT json_group_object(k.key, k.value - coalesce((
			SELECT sum(r.value) FROM fleet_work w, json_each(w.resources) r
			WHERE w.owner = n.id AND w.state IN ('placed', 'running', 'stopping') AND r.key = k.key), 0))
		FROM json_each(n.capacity) k) AS free,
	(SELECT count(*) FROM fleet_work w WHERE w.owner = n.id AND w.state IN ('placed', 'running', 'stopping')) AS work_owned,
	(SELECT count(*) FROM fleet_work w WHERE w.owner = n.id AND w.state = 'running' AND w.stuck_after_us > 0
		AND n.now - max(w.progress_us, w.started_us) > w.stuck_after_us) AS work_stuck,
	n.facts ->> '$.address' AS address, n.incarnation
FROM fleet_single g CROSS JOIN (
	SELECT n.*, c.now, max(c.now - max(coalesce(s.seen_us, 0), n.joined_us), 0) AS age_us,
		CASE WHEN l.token > 0 AND l.ended_us = 0 THEN l.renewed_us + l.ttl_ns / 1000 - c.now ELSE 0 END AS remaining_us,
		coalesce(l.revoked OR l.token <= l.floor, 0) AS revoked
	FROM (SELECT (julianday('now') - 2440587.5) * 86400e6 AS now) c CROSS JOIN fleet_node n
		LEFT JOIN fleet_seen s ON s.node = n.id
		LEFT JOIN tenure_lease l ON l.name = 'node/' || n.id
	WHERE n.removed_us = 0) n;

CREATE VIEW tenure_takeovers AS
SELECT t.seq, t.work, t.from_node, t.from_token, t.to_node, t.to_token, t.lease_token, t.lease_state, t.progress, t.actor,
	strftime('%Y-%m-%dT%H:%M:%fZ', nullif(t.silence_us, 0) / 1e6, 'unixepoch') AS silence_at,
	strftime('%Y-%m-%dT%H:%M:%fZ', nullif(t.suspect_us, 0) / 1e6, 'unixepoch') AS suspect_at,
	strftime('%Y-%m-%dT%H:%M:%fZ', nullif(t.lapse_us, 0) / 1e6, 'unixepoch') AS lapse_at,
	strftime('%Y-%m-%dT%H:%M:%fZ', nullif(t.recorded_us, 0) / 1e6, 'unixepoch') AS recorded_at,
	strftime('%Y-%m-%dT%H:%M:%fZ', nullif(t.started_us, 0) / 1e6, 'unixepoch') AS started_at,
	strftime('%Y-%m-%dT%H:%M:%fZ', nullif(t.redirected_us, 0) / 1e6, 'unixepoch') AS redirected_at
FROM fleet_takeover t;
