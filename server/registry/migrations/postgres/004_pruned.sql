-- The number of the last event that was pruned; 0: none.
ALTER TABLE {s}fleet_single ADD COLUMN pruned bigint NOT NULL DEFAULT 0;
UPDATE {s}fleet_single SET pruned = coalesce((SELECT min(seq) - 1 FROM {s}fleet_event), 0);
