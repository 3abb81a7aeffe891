-- The number of the last event that was pruned; 0: none.
ALTER TABLE fleet_single ADD COLUMN pruned INTEGER NOT NULL DEFAULT 0;
UPDATE fleet_single SET pruned = coalesce((SELECT min(seq) - 1 FROM fleet_event), 0);
