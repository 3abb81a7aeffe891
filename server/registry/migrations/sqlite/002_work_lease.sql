-- The token of the owner's term under which an item got its own; 0: not known.
ALTER TABLE fleet_work ADD COLUMN lease_token INTEGER NOT NULL DEFAULT 0;
