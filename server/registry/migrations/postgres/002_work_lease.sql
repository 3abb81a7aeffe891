-- The token of the owner's term under which an item got its own; 0: not known.
ALTER TABLE {s}fleet_work ADD COLUMN lease_token bigint NOT NULL DEFAULT 0;
