-- Grows with each change of the row, so that of two readings it is known which saw more.
ALTER TABLE fleet_node ADD COLUMN version INTEGER NOT NULL DEFAULT 0;
