-- Grows with each change of the row, so that of two readings it is known which saw more.
ALTER TABLE {s}fleet_node ADD COLUMN version bigint NOT NULL DEFAULT 0;
