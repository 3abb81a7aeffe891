-- Instants are microseconds since 1970-01-01 00:00 UTC by the database's clock, 0
-- for none. The tables lie beside tenure_lease, whose guard they join.

-- The record: what is published under each name now.
CREATE TABLE {s}tenure_publication (
	name        {text} PRIMARY KEY,
	attempt     {text} NOT NULL,
	token       bigint NOT NULL,
	seq         bigint NOT NULL, -- counts the publications of the name
	accepted_us bigint NOT NULL
);

-- Every attempt to publish, until 90 days after it was dropped.
CREATE TABLE {s}tenure_publication_attempt (
	name        {text} NOT NULL,
	attempt     {text} NOT NULL, -- TOKEN-NONCE, the directory of its objects
	token       bigint NOT NULL, -- of the term that last went on with it
	state       {text} NOT NULL CHECK (state IN ('running', 'accepted', 'dropped')),
	target      {text} NOT NULL, -- the bucket's URL, without credentials
	digest      {text} NOT NULL, -- SHA-256 of the manifest
	manifest    {text} NOT NULL, -- JSON; '' once it is dropped
	files       bigint NOT NULL,
	bytes       bigint NOT NULL,
	seq         bigint NOT NULL DEFAULT 0,
	began_us    bigint NOT NULL,
	seen_us     bigint NOT NULL, -- last sign of life before it was accepted
	accepted_us bigint NOT NULL DEFAULT 0,
	replaced_us bigint NOT NULL DEFAULT 0,
	dropped_us  bigint NOT NULL DEFAULT 0,
	PRIMARY KEY (name, attempt)
);

-- The notes of readers: this set is in use until the note expires.
CREATE TABLE {s}tenure_publication_reader (
	name       {text} NOT NULL,
	attempt    {text} NOT NULL,
	reader     {text} NOT NULL, -- a nonce
	expires_us bigint NOT NULL,
	PRIMARY KEY (name, attempt, reader)
);
