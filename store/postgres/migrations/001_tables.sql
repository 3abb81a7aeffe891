-- Instants are microseconds since 1970-01-01 00:00 UTC by this server's clock,
-- 0 for none, so that no session's time zone or format touches them. View
-- tenure_status shows them to people. Tokens and floors are fence tokens.

CREATE TABLE {{schema}}.tenure_schema (
	version    int PRIMARY KEY,
	applied_at timestamptz NOT NULL DEFAULT now()
);

-- One row for each lease: its current or last term.
--
-- Nothing that a renewal changes is indexed and half of each page is left
-- free, so that renewals are heap-only updates.
--
-- UNIQUE (name, token) is load-bearing. It makes every change of the token an
-- update of a key, which conflicts with tenure_guard's FOR KEY SHARE at every
-- isolation level. The name alone would not: it never changes.
CREATE TABLE {{schema}}.tenure_lease (
	name              text   COLLATE "C" PRIMARY KEY,
	token             bigint NOT NULL DEFAULT 0,  -- 0: no term yet, only a floor
	floor             bigint NOT NULL DEFAULT 0,
	revision          bigint NOT NULL DEFAULT 1,  -- grows at every write
	holder            text   NOT NULL DEFAULT '',
	attempt           text   NOT NULL DEFAULT '', -- of the holder's last accepted write, 32 hexadecimal digits
	ttl_us            bigint NOT NULL DEFAULT 0,
	acquired_us       bigint NOT NULL DEFAULT 0,
	renewed_us        bigint NOT NULL DEFAULT 0,
	expires_us        bigint NOT NULL DEFAULT 0,
	ended_us          bigint NOT NULL DEFAULT 0,  -- released, or revoked at once
	revoked           bool   NOT NULL DEFAULT false,
	why               text   NOT NULL DEFAULT '',
	revoked_by        text   NOT NULL DEFAULT '',
	handoff_to        text   NOT NULL DEFAULT '', -- of the revocation, for when the term is released
	hold_until_us     bigint NOT NULL DEFAULT 0,
	reserved_for      text   NOT NULL DEFAULT '',
	reserved_until_us bigint NOT NULL DEFAULT 0,
	meta              text   NOT NULL DEFAULT '', -- JSON object of strings, or ''
	CONSTRAINT tenure_lease_name_token UNIQUE (name, token),
	-- A term without an attempt would be anybody's: the empty text is in every list.
	CONSTRAINT tenure_lease_attempt CHECK (token = 0 OR attempt <> '')
) WITH (fillfactor = 50);

-- The terms before the current or last one: those of the last 30 days, and of each
-- name at least the newest 99 and at most about 10,000.
CREATE TABLE {{schema}}.tenure_term (
	name        text   COLLATE "C" NOT NULL,
	token       bigint NOT NULL,
	holder      text   NOT NULL,
	acquired_us bigint NOT NULL,
	ended_us    bigint NOT NULL,
	ended       text   NOT NULL CHECK (ended IN ('released', 'expired', 'revoked', 'replaced')),
	why         text   NOT NULL,
	PRIMARY KEY (name, token)
);

-- The slots that are done. They outlive the lease's row: a slot is done once.
CREATE TABLE {{schema}}.tenure_slot (
	name    text   COLLATE "C" NOT NULL,
	slot    text   COLLATE "C" NOT NULL,
	token   bigint NOT NULL,
	holder  text   NOT NULL,
	done_us bigint NOT NULL,
	PRIMARY KEY (name, slot)
);

-- The floor of the names that have no row. Whoever adds a name holds this row
-- FOR SHARE, and whoever raises the floor updates it first. So either the new
-- name's row is seen and raised, or the new name starts at the raised floor.
CREATE TABLE {{schema}}.tenure_floor (
	one   bool PRIMARY KEY DEFAULT true CHECK (one),
	floor bigint NOT NULL DEFAULT 0
);
INSERT INTO {{schema}}.tenure_floor DEFAULT VALUES;

CREATE VIEW {{schema}}.tenure_status AS
SELECT l.name,
	CASE
		WHEN l.token = 0 THEN 'unheld'
		WHEN l.ended_us > 0 THEN 'released'
		WHEN l.expires_us > extract(epoch FROM clock_timestamp()) * 1000000 THEN 'held'
		ELSE 'lapsed'
	END AS status,
	l.holder, l.token, l.floor, l.revoked, l.why,
	to_timestamp(nullif(l.acquired_us, 0) / 1000000.0) AS acquired_at,
	to_timestamp(nullif(l.renewed_us, 0) / 1000000.0) AS renewed_at,
	to_timestamp(nullif(l.expires_us, 0) / 1000000.0) AS expires_at,
	to_timestamp(nullif(l.ended_us, 0) / 1000000.0) AS ended_at
FROM {{schema}}.tenure_lease l;
