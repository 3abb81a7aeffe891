-- The operations. Each is one call in one transaction at READ COMMITTED, which
-- the caller states: every statement of a function then sees what was committed
-- before it, so that a statement after a lock sees the row as it was locked, and
-- a clock read after a lock is later than the wait. The caller bounds each wait
-- for a lock by lock_timeout.
--
-- The rules are those of package store: JudgeAcquire, JudgeRenew, JudgeRelease.
-- Verdicts are store's codes; '' is success. An attempt is known if it is in a
-- comma-separated list of them; their length is fixed, so strpos finds no part
-- of one.

CREATE FUNCTION {{schema}}.tenure_clock() RETURNS bigint LANGUAGE sql VOLATILE
AS $$ SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint $$;

-- tenure_begin sees to what the rest of the transaction needs: an authoritative
-- server, snapshots by statement, and a commit that is on disk. It raises
-- synchronous_commit and never lowers it.
CREATE FUNCTION {{schema}}.tenure_begin() RETURNS void LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
	IF pg_is_in_recovery() THEN
		RAISE EXCEPTION 'this server is a standby, which cannot decide on leases' USING ERRCODE = '25006';
	END IF;
	IF current_setting('transaction_isolation') <> 'read committed' THEN
		RAISE EXCEPTION 'tenure''s functions need READ COMMITTED, this transaction is %', upper(current_setting('transaction_isolation'))
			USING ERRCODE = '25000';
	END IF;
	IF current_setting('synchronous_commit') IN ('off', 'local', 'remote_write') THEN
		PERFORM set_config('synchronous_commit', 'on', true);
	END IF;
END $$;

-- tenure_tell notifies of the end or start of a term if somebody waits for the
-- name. A waiter's connection holds a shared advisory lock under the name's
-- hash. A teller that gets the lock knows that nobody waits, and keeps it to
-- the end of its transaction, so that a waiter who registers meanwhile is
-- registered after the change and sees it. Only a commit that notifies takes
-- PostgreSQL's global queue lock, so this is done only for somebody.
CREATE FUNCTION {{schema}}.tenure_tell(p_names text[], p_event text, p_remaining_us bigint) RETURNS void LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
	PERFORM pg_notify('{{channel}}', n || ' ' || p_event || ' ' || p_remaining_us || ' ' || greatest(1, (
			SELECT count(*) FROM pg_locks k
			WHERE k.locktype = 'advisory' AND k.mode = 'ShareLock' AND k.granted AND k.objsubid = 2
				AND k.classid = ({{space}})::int4::oid AND k.objid = hashtext(n)::oid
				AND k.database = (SELECT oid FROM pg_database WHERE datname = current_database()))))
	FROM unnest(p_names) n
	WHERE NOT pg_try_advisory_xact_lock({{space}}, hashtext(n));
END $$;

-- tenure_acquire looks without a lock and, if the answer is no, has written
-- nothing. Only a try that may win locks the row, reads the clock again and
-- judges again. A new term changes the key (FOR UPDATE, which waits for guards);
-- going on with one does not. If somebody has the row it first waits for the guards'
-- advisory lock: once, for all who have it, and who comes later stands behind it. For
-- the row alone it would wait for one guard after the other, with new ones going past.
-- That lock may be held by who does not have the row: a refused guard whose
-- transaction stays open, or guards of another name with the same hash. If it cannot
-- be had in time, the row is tried once more.
CREATE FUNCTION {{schema}}.tenure_acquire(
	p_name text, p_holder text, p_ttl_us bigint, p_attempt text, p_known text,
	p_replace_token bigint, p_replace_known text, p_min_hold_us bigint, p_if_revision text,
	p_not_after_us bigint, p_meta text,
	OUT verdict text, OUT clock_us bigint, OUT lease {{schema}}.tenure_lease
) LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
	mode int := 0; -- 0: looked, 1: locked to extend, 2: locked to start a term
	need int;
	live bool;
BEGIN
	PERFORM {{schema}}.tenure_begin();
	LOOP
		IF mode = 0 THEN
			SELECT * INTO lease FROM {{schema}}.tenure_lease l WHERE l.name = p_name;
		ELSIF mode = 1 THEN
			SELECT * INTO lease FROM {{schema}}.tenure_lease l WHERE l.name = p_name FOR NO KEY UPDATE;
		ELSE
			SELECT * INTO lease FROM {{schema}}.tenure_lease l WHERE l.name = p_name FOR UPDATE SKIP LOCKED;
			IF NOT FOUND THEN
				BEGIN
					PERFORM pg_advisory_xact_lock({{guards}}, hashtext(p_name));
					SELECT * INTO lease FROM {{schema}}.tenure_lease l WHERE l.name = p_name FOR UPDATE;
				EXCEPTION WHEN lock_not_available THEN
					SELECT * INTO lease FROM {{schema}}.tenure_lease l WHERE l.name = p_name FOR UPDATE SKIP LOCKED;
					IF NOT FOUND AND EXISTS (SELECT FROM {{schema}}.tenure_lease l WHERE l.name = p_name) THEN
						RAISE;
					END IF;
				END;
			END IF;
		END IF;
		IF NOT FOUND THEN
			IF p_if_revision <> '' THEN
				verdict := 'missing';
				RETURN;
			END IF;
			INSERT INTO {{schema}}.tenure_lease (name, floor)
				SELECT p_name, f.floor FROM {{schema}}.tenure_floor f FOR SHARE
				ON CONFLICT DO NOTHING;
			IF NOT FOUND THEN
				PERFORM FROM {{schema}}.tenure_floor;
				IF NOT FOUND THEN
					RAISE EXCEPTION 'the row of tenure_floor is missing' USING ERRCODE = '42P01';
				END IF;
			END IF;
			mode := 2;
			CONTINUE;
		END IF;
		clock_us := {{schema}}.tenure_clock();
		live := lease.token > 0 AND lease.ended_us = 0 AND lease.expires_us > clock_us;
		need := 2;
		verdict := CASE
			WHEN live THEN CASE
				WHEN lease.revoked OR lease.token <= lease.floor THEN 'held'
				WHEN strpos(p_known, lease.attempt) > 0 THEN ''
				WHEN lease.token = p_replace_token AND strpos(p_replace_known, lease.attempt) > 0 THEN ''
				ELSE 'held' END
			WHEN p_if_revision <> '' AND p_if_revision <> lease.token || '.' || lease.revision THEN 'changed'
			WHEN lease.hold_until_us > clock_us THEN 'min_hold'
			WHEN lease.reserved_until_us > clock_us AND lease.reserved_for NOT IN (p_holder, split_part(p_holder, '/', 1)) THEN 'reserved'
			WHEN lease.ended_us = 0 AND lease.token > 0 AND p_not_after_us > 0 AND clock_us > p_not_after_us THEN 'store_clock_step'
			ELSE '' END;
		IF verdict <> '' THEN
			RETURN;
		END IF;
		IF live AND strpos(p_known, lease.attempt) > 0 THEN
			need := 1;
		END IF;
		EXIT WHEN mode >= need;
		mode := need;
	END LOOP;

	IF need = 1 THEN
		UPDATE {{schema}}.tenure_lease l
			SET attempt = p_attempt, ttl_us = p_ttl_us, renewed_us = clock_us, expires_us = clock_us + p_ttl_us, revision = l.revision + 1
			WHERE l.name = p_name RETURNING l.* INTO lease;
		RETURN;
	END IF;

	IF lease.token > 0 THEN
		INSERT INTO {{schema}}.tenure_term VALUES (lease.name, lease.token, lease.holder, lease.acquired_us,
			CASE WHEN lease.ended_us > 0 THEN lease.ended_us ELSE least(lease.expires_us, clock_us) END,
			CASE WHEN live THEN 'replaced' WHEN lease.revoked THEN 'revoked' WHEN lease.ended_us > 0 THEN 'released' ELSE 'expired' END,
			lease.why) ON CONFLICT DO NOTHING;
		-- Beyond the newest, what ended 30 days ago, up to the first that did not. Their
		-- number, which is found by reading them, is bounded once in a hundred terms.
		DELETE FROM {{schema}}.tenure_term t WHERE t.name = p_name
			AND t.token <= (SELECT o.token FROM {{schema}}.tenure_term o WHERE o.name = p_name ORDER BY o.token DESC OFFSET 99 LIMIT 1)
			AND t.token < coalesce((SELECT o.token FROM {{schema}}.tenure_term o
				WHERE o.name = p_name AND o.ended_us >= clock_us - 30 * 86400000000 ORDER BY o.token LIMIT 1), lease.token);
		IF lease.token % 100 = 0 THEN
			DELETE FROM {{schema}}.tenure_term t WHERE t.name = p_name AND t.token <= (
				SELECT o.token FROM {{schema}}.tenure_term o WHERE o.name = p_name ORDER BY o.token DESC OFFSET 9999 LIMIT 1);
		END IF;
	END IF;
	UPDATE {{schema}}.tenure_lease l SET
			token = greatest(l.token, l.floor) + 1, revision = l.revision + 1,
			holder = p_holder, attempt = p_attempt, ttl_us = p_ttl_us,
			acquired_us = clock_us, renewed_us = clock_us, expires_us = clock_us + p_ttl_us, ended_us = 0,
			revoked = false, why = '', revoked_by = '', handoff_to = '',
			hold_until_us = CASE WHEN p_min_hold_us > 0 THEN greatest(l.hold_until_us, clock_us + p_min_hold_us) ELSE l.hold_until_us END,
			reserved_for = '', reserved_until_us = 0, meta = p_meta
		WHERE l.name = p_name RETURNING l.* INTO lease;
	PERFORM {{schema}}.tenure_tell(ARRAY[p_name], 'held', p_ttl_us);
END $$;

-- tenure_renew extends many terms. It answers first with a row 0, whose clock is
-- that of every term that no further row names; then with a row for each of the
-- others: extended by a later clock, or refused and shown as found.
--
-- Nearly always all rows are free and all terms are live, so they are written at
-- once, in one pass: row by row the condition reads the clock, again if it had
-- to wait, and the expiry counts from before all of them. A row that may be
-- locked (its xmax is not older than every running transaction) is left out; if
-- another is locked in that instant, lock_timeout undoes the pass. The rest, or
-- all, take a second pass, which locks what nobody else has locked and waits for
-- no row. So one busy row delays no other, and a guard's FOR KEY SHARE is in
-- nobody's way. The names must be distinct; the caller gives them in byte order,
-- so that overlapping batches meet the rows in one order.
--
-- The plan must be a nested loop over the primary key whatever the statistics
-- say, and the same each time; hence the settings.
CREATE FUNCTION {{schema}}.tenure_renew(
	p_names text[], p_tokens bigint[], p_ttls bigint[], p_attempts text[], p_known text[]
) RETURNS TABLE (i bigint, verdict text, clock_us bigint, lease {{schema}}.tenure_lease) LANGUAGE plpgsql VOLATILE ROWS 10
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
	written bigint;
	running int; -- age of the oldest transaction that may still run
	-- The second pass: the grants that are left, and those of them whose row is locked.
	n bigint[]; names text[]; tokens bigint[]; ttls bigint[]; attempts text[]; known text[];
	locked text[];
	wait text := current_setting('lock_timeout');
BEGIN
	PERFORM {{schema}}.tenure_begin();
	running := age(pg_snapshot_xmin(pg_current_snapshot())::xid);
	i := 0;
	verdict := '';
	clock_us := {{schema}}.tenure_clock();
	BEGIN
		PERFORM set_config('lock_timeout', '20', true);
		UPDATE {{schema}}.tenure_lease l
			SET attempt = a.attempt, ttl_us = a.ttl, renewed_us = clock_us, expires_us = clock_us + a.ttl, revision = l.revision + 1
			FROM unnest(p_names, p_tokens, p_ttls, p_attempts, p_known) a(name, token, ttl, attempt, known)
			WHERE l.name = a.name AND l.token = a.token AND l.token > l.floor AND NOT l.revoked AND l.ended_us = 0
				AND clock_timestamp() < 'epoch'::timestamptz + l.expires_us * interval '1 microsecond'
				AND strpos(a.known, l.attempt) > 0 AND age(l.xmax) > running;
		GET DIAGNOSTICS written = ROW_COUNT;
	EXCEPTION WHEN lock_not_available THEN
		written := 0;
	END;
	RETURN NEXT;
	IF written = cardinality(p_names) THEN
		RETURN;
	END IF;

	PERFORM set_config('lock_timeout', wait, true);
	SELECT array_agg(a.n), array_agg(a.name), array_agg(a.token), array_agg(a.ttl), array_agg(a.attempt), array_agg(a.known)
		INTO n, names, tokens, ttls, attempts, known
		FROM unnest(p_names, p_tokens, p_ttls, p_attempts, p_known) WITH ORDINALITY a(name, token, ttl, attempt, known, n)
		LEFT JOIN {{schema}}.tenure_lease l ON l.name = a.name
		WHERE l.name IS NULL OR l.attempt <> a.attempt OR l.renewed_us <> clock_us; -- not written just now
	SELECT coalesce(array_agg(k.name), '{}') INTO locked FROM (
		SELECT a.name FROM unnest(names) a(name) JOIN {{schema}}.tenure_lease l ON l.name = a.name
		FOR NO KEY UPDATE OF l SKIP LOCKED) k;
	clock_us := {{schema}}.tenure_clock();
	UPDATE {{schema}}.tenure_lease l
		SET attempt = a.attempt, ttl_us = a.ttl, renewed_us = clock_us, expires_us = clock_us + a.ttl, revision = l.revision + 1
		FROM unnest(names, tokens, ttls, attempts, known) a(name, token, ttl, attempt, known)
		WHERE a.name = ANY (locked) AND l.name = a.name AND l.token = a.token AND l.token > l.floor AND NOT l.revoked AND l.ended_us = 0
			AND l.expires_us > clock_us AND strpos(a.known, l.attempt) > 0;
	RETURN QUERY
	SELECT a.n, CASE
			WHEN l.name IS NULL THEN 'missing'
			WHEN a.name <> ALL (locked) THEN 'busy'
			WHEN l.attempt = a.attempt AND l.renewed_us = clock_us THEN ''
			WHEN l.token < a.token THEN 'missing'
			WHEN l.token > a.token THEN 'superseded'
			WHEN l.revoked OR l.token <= l.floor THEN 'revoked'
			WHEN l.ended_us > 0 THEN 'released'
			WHEN l.attempt = '' OR strpos(a.known, l.attempt) = 0 THEN 'superseded'
			ELSE 'expired' END, clock_us, l
	FROM unnest(n, names, tokens, attempts, known) a(n, name, token, attempt, known)
		LEFT JOIN {{schema}}.tenure_lease l ON l.name = a.name;
END $$;

-- tenure_release ends many terms, in the two passes of tenure_renew. It answers
-- with a row for each grant: the lease as written, or as found.
CREATE FUNCTION {{schema}}.tenure_release(
	p_names text[], p_tokens bigint[], p_attempts text[], p_known text[], p_handoff text[], p_handoff_us bigint
) RETURNS TABLE (i bigint, verdict text, clock_us bigint, lease {{schema}}.tenure_lease) LANGUAGE plpgsql VOLATILE ROWS 100
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
	running int; -- age of the oldest transaction that may still run
	-- The first pass: the grants whose terms it ended, and their leases.
	done bigint[]; leases {{schema}}.tenure_lease[];
	-- The second pass: the grants that are left, and those of them whose row is locked.
	n bigint[]; names text[]; tokens bigint[]; attempts text[]; known text[]; handoff text[];
	locked text[];
	ended  text[];
	wait   text := current_setting('lock_timeout');
BEGIN
	PERFORM {{schema}}.tenure_begin();
	running := age(pg_snapshot_xmin(pg_current_snapshot())::xid);
	clock_us := {{schema}}.tenure_clock();
	BEGIN
		PERFORM set_config('lock_timeout', '20', true);
		WITH written AS (
			UPDATE {{schema}}.tenure_lease l SET
					-- A renewal that was waited for may be later than the clock.
					attempt = a.attempt, ended_us = greatest(clock_us, l.renewed_us), revision = l.revision + 1,
					reserved_for = coalesce(nullif(l.handoff_to, ''), a.handoff),
					reserved_until_us = CASE WHEN l.handoff_to <> '' OR a.handoff <> '' THEN greatest(clock_us, l.renewed_us) + least(l.ttl_us, p_handoff_us) ELSE 0 END
				FROM unnest(p_names, p_tokens, p_attempts, p_known, p_handoff) WITH ORDINALITY a(name, token, attempt, known, handoff, n)
				WHERE l.name = a.name AND (a.token = 0 OR l.token = a.token) AND l.token > 0 AND l.ended_us = 0
					AND strpos(a.known, l.attempt) > 0 AND age(l.xmax) > running
				RETURNING a.n, l)
		SELECT array_agg(w.n), array_agg(w.l) INTO done, leases FROM written w;
	EXCEPTION WHEN lock_not_available THEN
		NULL; -- all is left to the second pass
	END;
	PERFORM set_config('lock_timeout', wait, true);
	RETURN QUERY SELECT d.n, '', clock_us, d.l FROM (SELECT unnest(done) AS n, unnest(leases) AS l) d;
	IF cardinality(done) = cardinality(p_names) THEN
		PERFORM {{schema}}.tenure_tell(p_names, 'ended', 0);
		RETURN;
	END IF;

	SELECT array_agg(a.n), array_agg(a.name), array_agg(a.token), array_agg(a.attempt), array_agg(a.known), array_agg(a.handoff)
		INTO n, names, tokens, attempts, known, handoff
		FROM unnest(p_names, p_tokens, p_attempts, p_known, p_handoff) WITH ORDINALITY a(name, token, attempt, known, handoff, n)
		LEFT JOIN {{schema}}.tenure_lease l ON l.name = a.name
		WHERE l.name IS NULL OR l.attempt <> a.attempt OR l.ended_us < clock_us; -- not written just now
	SELECT coalesce(array_agg(k.name), '{}') INTO locked FROM (
		SELECT a.name FROM unnest(names) a(name) JOIN {{schema}}.tenure_lease l ON l.name = a.name
		FOR NO KEY UPDATE OF l SKIP LOCKED) k;
	clock_us := {{schema}}.tenure_clock();
	WITH written AS (
		UPDATE {{schema}}.tenure_lease l SET
				attempt = a.attempt, ended_us = clock_us, revision = l.revision + 1,
				reserved_for = coalesce(nullif(l.handoff_to, ''), a.handoff),
				reserved_until_us = CASE WHEN l.handoff_to <> '' OR a.handoff <> '' THEN clock_us + least(l.ttl_us, p_handoff_us) ELSE 0 END
			FROM unnest(names, tokens, attempts, known, handoff) a(name, token, attempt, known, handoff)
			WHERE a.name = ANY (locked) AND l.name = a.name AND (a.token = 0 OR l.token = a.token) AND l.token > 0 AND l.ended_us = 0
				AND strpos(a.known, l.attempt) > 0
			RETURNING l.name)
	SELECT array_agg(w.name) INTO ended FROM written w;
	PERFORM {{schema}}.tenure_tell((SELECT array_agg(d.name) FROM unnest(leases) d) || ended, 'ended', 0);
	RETURN QUERY
	SELECT a.n, CASE
			WHEN l.name IS NULL THEN 'missing'
			WHEN a.name <> ALL (locked) THEN 'busy'
			WHEN a.name = ANY (ended) THEN ''
			WHEN a.token = 0 THEN CASE WHEN l.attempt <> '' AND strpos(a.known, l.attempt) > 0 THEN '' ELSE 'superseded' END
			WHEN l.token < a.token THEN 'missing'
			WHEN l.token > a.token THEN 'superseded'
			WHEN l.attempt <> '' AND strpos(a.known, l.attempt) > 0 THEN ''
			WHEN l.ended_us > 0 THEN 'released'
			ELSE 'superseded' END, clock_us, l
	FROM unnest(n, names, tokens, attempts, known) a(n, name, token, attempt, known)
		LEFT JOIN {{schema}}.tenure_lease l ON l.name = a.name;
END $$;

CREATE FUNCTION {{schema}}.tenure_revoke(
	p_name text, p_token bigint, p_why text, p_by text, p_now bool, p_handoff_to text, p_handoff_us bigint
) RETURNS text LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
	lease {{schema}}.tenure_lease;
	at_us bigint;
BEGIN
	PERFORM {{schema}}.tenure_begin();
	SELECT * INTO lease FROM {{schema}}.tenure_lease l WHERE l.name = p_name FOR NO KEY UPDATE;
	IF NOT FOUND THEN
		RETURN 'not_found';
	END IF;
	at_us := {{schema}}.tenure_clock();
	IF lease.token <> p_token OR lease.token = 0 OR lease.ended_us > 0 OR lease.expires_us <= at_us THEN
		RETURN 'superseded';
	END IF;
	UPDATE {{schema}}.tenure_lease l SET
			revoked = true, why = p_why, revoked_by = p_by, handoff_to = p_handoff_to, revision = l.revision + 1,
			ended_us = CASE WHEN p_now THEN at_us ELSE 0 END,
			hold_until_us = CASE WHEN p_now THEN 0 ELSE l.hold_until_us END,
			reserved_for = CASE WHEN p_now THEN p_handoff_to ELSE '' END,
			reserved_until_us = CASE WHEN p_now AND p_handoff_to <> '' THEN at_us + least(l.ttl_us, p_handoff_us) ELSE 0 END
		WHERE l.name = p_name;
	IF p_now THEN
		PERFORM {{schema}}.tenure_tell(ARRAY[p_name], 'ended', 0);
	END IF;
	RETURN '';
END $$;

-- tenure_raise_floor raises the floor of one name or, for '', of all.
CREATE FUNCTION {{schema}}.tenure_raise_floor(p_name text, p_floor bigint) RETURNS void LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
	at_us bigint;
BEGIN
	PERFORM {{schema}}.tenure_begin();
	IF p_name = '' THEN
		UPDATE {{schema}}.tenure_floor f SET floor = p_floor WHERE f.floor < p_floor;
	ELSE
		INSERT INTO {{schema}}.tenure_lease (name, floor)
			SELECT p_name, f.floor FROM {{schema}}.tenure_floor f
			WHERE f.floor < p_floor AND NOT EXISTS (SELECT FROM {{schema}}.tenure_lease l WHERE l.name = p_name)
			FOR SHARE OF f
			ON CONFLICT DO NOTHING;
	END IF;
	PERFORM FROM {{schema}}.tenure_lease l WHERE (p_name = '' OR l.name = p_name) AND l.floor < p_floor ORDER BY l.name FOR NO KEY UPDATE;
	at_us := {{schema}}.tenure_clock();
	UPDATE {{schema}}.tenure_lease l SET
			floor = p_floor, revision = l.revision + 1,
			revoked = l.revoked OR s.ends,
			why = CASE WHEN s.ends AND NOT l.revoked THEN 'floor raised to ' || p_floor ELSE l.why END
		FROM (SELECT o.name, o.token BETWEEN 1 AND p_floor AND o.ended_us = 0 AND o.expires_us > at_us AS ends FROM {{schema}}.tenure_lease o) s
		WHERE s.name = l.name AND (p_name = '' OR l.name = p_name) AND l.floor < p_floor;
END $$;

-- tenure_done records a slot. The key-share lock keeps the term from being
-- followed by another until the slot is recorded.
CREATE FUNCTION {{schema}}.tenure_done(
	p_name text, p_token bigint, p_known text, p_slot text,
	OUT verdict text, OUT done {{schema}}.tenure_slot
) LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
	lease {{schema}}.tenure_lease;
	at_us bigint;
BEGIN
	PERFORM {{schema}}.tenure_begin();
	LOOP
		SELECT * INTO done FROM {{schema}}.tenure_slot s WHERE s.name = p_name AND s.slot = p_slot;
		IF FOUND THEN
			verdict := CASE WHEN done.token = p_token THEN '' ELSE 'slot_done' END;
			RETURN;
		END IF;
		SELECT * INTO lease FROM {{schema}}.tenure_lease l WHERE l.name = p_name FOR KEY SHARE;
		IF NOT FOUND THEN
			verdict := 'missing';
			RETURN;
		END IF;
		at_us := {{schema}}.tenure_clock();
		verdict := CASE
			WHEN p_token > 0 AND lease.token < p_token THEN 'missing'
			WHEN lease.token <> p_token THEN 'superseded'
			WHEN lease.revoked OR lease.token <= lease.floor THEN 'revoked'
			WHEN lease.ended_us > 0 THEN 'released'
			WHEN lease.attempt = '' OR strpos(p_known, lease.attempt) = 0 THEN 'superseded'
			WHEN lease.expires_us <= at_us THEN 'expired'
			ELSE '' END;
		IF verdict <> '' THEN
			RETURN;
		END IF;
		INSERT INTO {{schema}}.tenure_slot VALUES (p_name, p_slot, p_token, lease.holder, at_us) ON CONFLICT DO NOTHING;
	END LOOP;
END $$;

-- tenure_clean removes what is idle and nobody has locked, and raises the floor
-- of unknown names above it in the same transaction.
CREATE FUNCTION {{schema}}.tenure_clean(p_idle_us bigint) RETURNS bigint LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
	at_us   bigint;
	names   text[];
	highest bigint;
BEGIN
	PERFORM {{schema}}.tenure_begin();
	PERFORM FROM {{schema}}.tenure_floor FOR UPDATE;
	at_us := {{schema}}.tenure_clock();
	SELECT array_agg(k.name), max(greatest(k.token, k.floor)) INTO names, highest FROM (
		SELECT l.name, l.token, l.floor FROM {{schema}}.tenure_lease l
		WHERE l.token > 0 AND CASE WHEN l.ended_us > 0 THEN l.ended_us ELSE l.expires_us END <= at_us - p_idle_us
			AND (l.ended_us > 0 OR l.expires_us <= at_us)
			AND l.hold_until_us <= at_us AND l.reserved_until_us <= at_us
		FOR UPDATE SKIP LOCKED) k;
	IF names IS NULL THEN
		RETURN 0;
	END IF;
	UPDATE {{schema}}.tenure_floor f SET floor = highest WHERE f.floor < highest;
	DELETE FROM {{schema}}.tenure_term t WHERE t.name = ANY (names);
	DELETE FROM {{schema}}.tenure_lease l WHERE l.name = ANY (names);
	RETURN cardinality(names);
END $$;

-- tenure_current reports whether a term may still write, and keeps the next one
-- from being granted until the transaction ends: see postgres.Guard. A revocation
-- and a release need no lock to be heeded: a term that has ended stays ended.
CREATE FUNCTION {{schema}}.tenure_current(p_name text, p_token bigint) RETURNS bool LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	PERFORM pg_advisory_xact_lock_shared({{guards}}, hashtext(p_name));
	PERFORM FROM {{schema}}.tenure_lease l
		WHERE l.name = p_name AND l.token = p_token AND l.token > l.floor AND NOT l.revoked AND l.ended_us = 0 FOR KEY SHARE;
	RETURN FOUND;
END $$;
REVOKE ALL ON FUNCTION {{schema}}.tenure_current(text, bigint) FROM PUBLIC;

-- tenure_guard is the joined fence: see postgres.Guard. It runs with its
-- owner's rights, so that a role that may write the data needs none on the
-- leases, and with a search path that nobody else can fill. Whoever may call it
-- can hold takeovers off; by PostgreSQL's default that is whoever may use the
-- schema.
CREATE FUNCTION {{schema}}.tenure_guard(p_name text, p_token bigint) RETURNS void LANGUAGE plpgsql VOLATILE
SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	present bigint;
BEGIN
	IF {{schema}}.tenure_current(p_name, p_token) THEN
		RETURN;
	END IF;
	SELECT greatest(l.token, l.floor) INTO present FROM {{schema}}.tenure_lease l WHERE l.name = p_name;
	IF present = p_token THEN
		RAISE EXCEPTION 'stale token % for lease "%": its term was revoked, released or ended by a floor, and there is no next one yet', p_token, p_name
			USING ERRCODE = 'TN001', DETAIL = '0', HINT = 'This writer''s term is over; its transaction must not commit.';
	END IF;
	RAISE EXCEPTION 'stale token % for lease "%": the current one is %', p_token, p_name, coalesce(present::text, 'unknown')
		USING ERRCODE = 'TN001', DETAIL = coalesce(present, 0)::text, HINT = 'This writer''s term is over; its transaction must not commit.';
END $$;

-- tenure_blockers names who has the row of a lease locked: the transactions in
-- its xmax, which is one transaction or a set of them. If that tells nothing
-- (the row is being inserted, the table is locked), it names whoever may write
-- the table or keep others from it.
CREATE FUNCTION {{schema}}.tenure_blockers(p_name text) RETURNS SETOF text LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
	x       xid;
	holders xid[];
BEGIN
	BEGIN
		SELECT l.xmax INTO x FROM {{schema}}.tenure_lease l WHERE l.name = p_name;
		holders := ARRAY[x];
		holders := holders || ARRAY(SELECT m.xid FROM pg_get_multixact_members(x) m);
	EXCEPTION WHEN OTHERS THEN
		NULL; -- the whole table is locked, or x is not the number of a set
	END;
	RETURN QUERY
	SELECT format('prepared transaction "%s"', p.gid) FROM pg_prepared_xacts p WHERE p.transaction = ANY (holders)
	UNION ALL
	SELECT format('pid %s (%s, %s since %s)', k.pid, coalesce(nullif(a.application_name, ''), 'no application name'), coalesce(a.state, 'state not shown'),
			coalesce(to_char(a.state_change AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"'), 'unknown'))
	FROM pg_locks k LEFT JOIN pg_stat_activity a ON a.pid = k.pid
	WHERE k.locktype = 'transactionid' AND k.granted AND k.pid <> pg_backend_pid() AND k.transactionid = ANY (holders);
	IF FOUND THEN
		RETURN;
	END IF;
	RETURN QUERY
	SELECT DISTINCT format('pid %s (%s, %s since %s)', k.pid, coalesce(nullif(a.application_name, ''), 'no application name'), coalesce(a.state, 'state not shown'),
			coalesce(to_char(a.state_change AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"'), 'unknown'))
	FROM pg_locks k LEFT JOIN pg_stat_activity a ON a.pid = k.pid
	WHERE k.relation = to_regclass('{{schema}}.tenure_lease') AND k.granted AND k.pid <> pg_backend_pid()
		AND k.mode IN ('RowShareLock', 'RowExclusiveLock', 'ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock');
END $$;
