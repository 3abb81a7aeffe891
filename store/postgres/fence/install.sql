-- What "tenure fence install" adds beside the leases. It may be repeated.
--
-- A transaction states under which term it writes by tenure_fence; the triggers
-- of guarded tables look for that. Two settings of the transaction carry it:
-- {{setting}}_owner and {{setting}}_token. They are a claim and no proof,
-- since anybody can set them: the statement trigger checks and locks the term
-- itself, once for each statement. As a setting and a lock of one transaction
-- they also end together, with a savepoint that is rolled back. A third,
-- {{setting}}_begun, holds the term that was found current before: if it ends
-- while the transaction runs, the transaction fails, so that no half of it commits.

-- tenure_fence checks that token is the current one of resource, which is the
-- name of a lease, holds off the next term until the transaction ends, and
-- states both for the guarded tables that the transaction writes to. The last
-- call counts. A stale token raises TN001 with the current token as the detail.
CREATE OR REPLACE FUNCTION {{schema}}.tenure_fence(resource text, token bigint) RETURNS void LANGUAGE plpgsql VOLATILE
SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	PERFORM {{schema}}.tenure_guard(resource, token);
	PERFORM set_config('{{setting}}_owner', resource, true), set_config('{{setting}}_token', token::text, true),
		set_config('{{setting}}_begun', resource || ' ' || token, true);
END $$;

-- tenure_refuse counts a refusal. The counters are sequences: nobody waits for
-- them, they count in transactions that are rolled back too, and a crash of the
-- server may add up to 32 to one of them.
CREATE OR REPLACE FUNCTION {{schema}}.tenure_refuse(guard text, reason text) RETURNS void LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	PERFORM nextval(format('%I.%I', '{{name}}', 'tenure_refused_' || guard || '_' || reason)::regclass);
END $$;
REVOKE ALL ON FUNCTION {{schema}}.tenure_refuse(text, text) FROM PUBLIC;

-- tenure_must_raise reports whether to leave the rows of a table as they are would
-- break a foreign key: it is another statement that changes them, and a key of the
-- table cascades. Guarding by 'zero' refuses such tables, but a key may come later.
CREATE OR REPLACE FUNCTION {{schema}}.tenure_must_raise(relation oid) RETURNS bool LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
	SELECT pg_trigger_depth() > 1 AND EXISTS (SELECT FROM pg_constraint k
		WHERE k.conrelid = relation AND k.contype = 'f' AND (k.confdeltype IN ('c', 'n', 'd') OR k.confupdtype IN ('c', 'n', 'd')))
$$;
REVOKE ALL ON FUNCTION {{schema}}.tenure_must_raise(oid) FROM PUBLIC;

-- tenure_guard_statement decides on a statement before its first row: whether a
-- term is stated, and still is the current one. The locks are those of
-- tenure_guard. It leaves the decision to the row triggers in two settings of
-- this guard's own, empty for no, so that a statement on another guarded table,
-- which a trigger or a function may send in between, does not change it. A third
-- tells a refusal from a statement that this trigger did not see.
-- Arguments: the guard, 'zero' or 'raise', and the names of the two columns.
CREATE OR REPLACE FUNCTION {{schema}}.tenure_guard_statement() RETURNS trigger LANGUAGE plpgsql VOLATILE
SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	stated text := coalesce(current_setting('{{setting}}_owner', true), '');
	number text := coalesce(current_setting('{{setting}}_token', true), '');
	reason text := '';
	begun  bool := false; -- the term was current earlier in this transaction
BEGIN
	IF TG_OP = 'TRUNCATE' THEN
		PERFORM {{schema}}.tenure_refuse(TG_ARGV[0], 'truncate');
		RAISE EXCEPTION 'table "%" is guarded: TRUNCATE asks no row for its owner', TG_TABLE_NAME
			USING ERRCODE = 'TN001', HINT = 'DELETE the rows under their lease, or take the guard off first: tenure fence remove.';
	END IF;
	IF EXISTS (SELECT FROM pg_inherits i WHERE i.inhparent = TG_RELID) THEN
		RAISE EXCEPTION 'table "%" is guarded, and a table that inherits from it is not, so its rows would be changed unguarded', TG_TABLE_NAME
			USING ERRCODE = '55000', HINT = 'ALTER TABLE … NO INHERIT, or take the guard off: tenure fence remove.';
	END IF;
	IF stated = '' OR (CASE WHEN number ~ '^[1-9][0-9]{0,18}$' THEN number::numeric > 9223372036854775807 ELSE true END) THEN
		reason := 'not_stated';
	ELSIF {{schema}}.tenure_current(stated, number::bigint) THEN
		PERFORM set_config('{{setting}}_begun', stated || ' ' || number, true);
	ELSE
		reason := 'stale';
		begun := coalesce(current_setting('{{setting}}_begun', true) = stated || ' ' || number, false);
	END IF;
	IF reason <> '' THEN
		stated := '';
		number := '';
		PERFORM {{schema}}.tenure_refuse(TG_ARGV[0], reason), set_config('{{setting}}_' || TG_ARGV[0] || '_refused', reason, true);
		IF begun OR TG_ARGV[1] = 'raise' OR {{schema}}.tenure_must_raise(TG_RELID) THEN
			RAISE EXCEPTION 'table "%" is guarded: %', TG_TABLE_NAME,
				CASE reason WHEN 'stale' THEN 'the stated term is over' ELSE 'no lease and token are stated' END
				USING ERRCODE = 'TN001', HINT = 'First, in the same transaction: SELECT {{name}}.tenure_fence(lease, token);';
		END IF;
	END IF;
	PERFORM set_config('{{setting}}_' || TG_ARGV[0] || '_owner', stated, true), set_config('{{setting}}_' || TG_ARGV[0] || '_token', number, true);
	RETURN NULL;
END $$;
REVOKE ALL ON FUNCTION {{schema}}.tenure_guard_statement() FROM PUBLIC;

-- tenure_guard_row is called for the rows that a statement must not change; its
-- triggers' conditions say which those are, and why. It counts those that the
-- statement's decision does not account for. Where nothing was decided, as for a
-- statement that names a table of which this one has become a partition or child,
-- it raises: zero rows would be the answer to the rightful holder too. It must not look at the row: what a
-- look at a column runs may be anybody's, and this runs with its owner's rights.
-- Arguments: the guard, 'zero' or 'raise', and 'other_owner' or 'newer_token'; guards
-- that were made before there were two triggers name a column there.
CREATE OR REPLACE FUNCTION {{schema}}.tenure_guard_row() RETURNS trigger LANGUAGE plpgsql VOLATILE
SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	decided text := coalesce(current_setting('{{setting}}_' || TG_ARGV[0] || '_owner', true), '');
	reason  text := CASE TG_ARGV[2] WHEN 'newer_token' THEN 'newer_token' ELSE 'other_owner' END;
BEGIN
	IF decided = '' AND coalesce(current_setting('{{setting}}_' || TG_ARGV[0] || '_refused', true), '') = '' THEN
		PERFORM {{schema}}.tenure_refuse(TG_ARGV[0], 'not_stated');
		RAISE EXCEPTION 'table "%" is guarded, and a statement that does not name it reached its rows', TG_TABLE_NAME
			USING ERRCODE = '55000', HINT = 'Name this table in the statement, or ALTER TABLE … DETACH PARTITION or NO INHERIT.';
	END IF;
	IF decided <> '' THEN
		PERFORM {{schema}}.tenure_refuse(TG_ARGV[0], reason);
		IF TG_ARGV[1] = 'raise' OR {{schema}}.tenure_must_raise(TG_RELID) THEN
			RAISE EXCEPTION 'table "%" is guarded: a row belongs to %', TG_TABLE_NAME,
				CASE reason WHEN 'newer_token' THEN 'a later term of the lease' ELSE 'another lease' END
				USING ERRCODE = 'TN001', HINT = 'Name the rows of your lease only: AND owner = …';
		END IF;
	END IF;
	RETURN NULL;
END $$;
REVOKE ALL ON FUNCTION {{schema}}.tenure_guard_row() FROM PUBLIC;

-- tenure_guard_token writes the token beside the owner. It runs with the rights of
-- whoever writes the row. Arguments: the guard, the token's column, and 'own' for
-- the stated token or 'none' for no token.
CREATE OR REPLACE FUNCTION {{schema}}.tenure_guard_token() RETURNS trigger LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
	same record := NEW;
BEGIN
	NEW := pg_catalog.jsonb_populate_record(NEW, pg_catalog.jsonb_build_object(TG_ARGV[1],
		CASE TG_ARGV[2] WHEN 'own' THEN pg_catalog.current_setting(pg_catalog.concat('{{setting}}_', TG_ARGV[0], '_token')) END));
	-- It is called only where the token changes.
	IF NEW OPERATOR(pg_catalog.*=) same THEN
		RAISE EXCEPTION 'table "%" is guarded, and its column "%" has another name now', TG_TABLE_NAME, TG_ARGV[1]
			USING ERRCODE = '42703', HINT = 'Guard it again by the new name: tenure fence guard TABLE --token-column NAME.';
	END IF;
	RETURN NEW;
END $$;
REVOKE ALL ON FUNCTION {{schema}}.tenure_guard_token() FROM PUBLIC;

-- tenure_refusals answers with the guarded tables and how often each reason was
-- given: not_stated, stale and truncate count statements, the others rows.
CREATE OR REPLACE FUNCTION {{schema}}.tenure_refusals() RETURNS TABLE (relation text, reason text, refused bigint) LANGUAGE sql STABLE
SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
	SELECT format('%I.%I', n.nspname, c.relname), r.reason, coalesce(pg_sequence_last_value(s.oid), 0)
	FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid JOIN pg_namespace n ON n.oid = c.relnamespace,
		unnest(ARRAY['not_stated', 'stale', 'other_owner', 'newer_token', 'truncate']) WITH ORDINALITY r(reason, place),
		pg_class s
	WHERE t.tgfoid = '{{schema}}.tenure_guard_statement()'::regprocedure AND t.tgname = '00_tenure_guard_statement'
		AND s.relnamespace = (SELECT o.oid FROM pg_namespace o WHERE o.nspname = '{{name}}') AND s.relkind = 'S'
		AND s.relname = 'tenure_refused_' || encode(substring(t.tgargs FROM 1 FOR position('\000'::bytea IN t.tgargs) - 1), 'escape') || '_' || r.reason
	ORDER BY 1, r.place
$$;
