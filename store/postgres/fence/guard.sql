-- The guard of one table. Each trigger is called only where it has something to
-- do, which its condition tells without a call. The names sort early, so that
-- few other triggers run for a row that is refused.
DROP TRIGGER IF EXISTS "00_tenure_guard_statement" ON {{table}};
DROP TRIGGER IF EXISTS "00_tenure_guard_truncate" ON {{table}};
DROP TRIGGER IF EXISTS "00_tenure_guard_row" ON {{table}}; -- of guards of an older form
DROP TRIGGER IF EXISTS "00_tenure_guard_other_owner" ON {{table}};
DROP TRIGGER IF EXISTS "00_tenure_guard_newer_token" ON {{table}};
DROP TRIGGER IF EXISTS "00_tenure_guard_token_own" ON {{table}};
DROP TRIGGER IF EXISTS "00_tenure_guard_token_none" ON {{table}};
CREATE SEQUENCE IF NOT EXISTS {{schema}}."tenure_refused_{{guard}}_not_stated";
CREATE SEQUENCE IF NOT EXISTS {{schema}}."tenure_refused_{{guard}}_stale";
CREATE SEQUENCE IF NOT EXISTS {{schema}}."tenure_refused_{{guard}}_other_owner";
CREATE SEQUENCE IF NOT EXISTS {{schema}}."tenure_refused_{{guard}}_newer_token";
CREATE SEQUENCE IF NOT EXISTS {{schema}}."tenure_refused_{{guard}}_truncate";
GRANT USAGE ON SEQUENCE {{schema}}."tenure_refused_{{guard}}_not_stated", {{schema}}."tenure_refused_{{guard}}_stale",
	{{schema}}."tenure_refused_{{guard}}_other_owner", {{schema}}."tenure_refused_{{guard}}_newer_token",
	{{schema}}."tenure_refused_{{guard}}_truncate" TO {{lender}}; -- whose rights the functions have

CREATE TRIGGER "00_tenure_guard_statement" BEFORE UPDATE OR DELETE ON {{table}}
	FOR EACH STATEMENT EXECUTE FUNCTION {{schema}}.tenure_guard_statement('{{guard}}', '{{on_stale}}', {{owner_text}}, {{token_text}});
CREATE TRIGGER "00_tenure_guard_truncate" BEFORE TRUNCATE ON {{table}}
	FOR EACH STATEMENT EXECUTE FUNCTION {{schema}}.tenure_guard_statement('{{guard}}', '{{on_stale}}', {{owner_text}}, {{token_text}});

-- A row may be changed if it is nobody's, or is the stated lease's and was not
-- written in a later term of it. Conditions are evaluated with the rights of
-- whoever writes; the function that they call looks at no row.
CREATE TRIGGER "00_tenure_guard_other_owner" BEFORE UPDATE OR DELETE ON {{table}} FOR EACH ROW
	WHEN (NOT coalesce(CASE WHEN OLD.{{owner}} IS NULL THEN current_setting('{{setting}}_{{guard}}_owner', true) <> ''
		ELSE OLD.{{owner}} = current_setting('{{setting}}_{{guard}}_owner', true) END, false))
	EXECUTE FUNCTION {{schema}}.tenure_guard_row('{{guard}}', '{{on_stale}}', 'other_owner');
CREATE TRIGGER "00_tenure_guard_newer_token" BEFORE UPDATE OR DELETE ON {{table}} FOR EACH ROW
	WHEN (OLD.{{owner}} = current_setting('{{setting}}_{{guard}}_owner', true)
		AND NOT coalesce(coalesce(OLD.{{token}}, 0) <= nullif(current_setting('{{setting}}_{{guard}}_token', true), '')::bigint, false))
	EXECUTE FUNCTION {{schema}}.tenure_guard_row('{{guard}}', '{{on_stale}}', 'newer_token');

-- The token stands beside the owner: the stated one if the row is the stated
-- lease's after the update, none if it was given up or given to another.
CREATE TRIGGER "00_tenure_guard_token_own" BEFORE UPDATE ON {{table}} FOR EACH ROW
	WHEN (NEW.{{owner}} = current_setting('{{setting}}_{{guard}}_owner', true)
		AND NEW.{{token}} IS DISTINCT FROM nullif(current_setting('{{setting}}_{{guard}}_token', true), '')::bigint)
	EXECUTE FUNCTION {{schema}}.tenure_guard_token('{{guard}}', {{token_text}}, 'own');
CREATE TRIGGER "00_tenure_guard_token_none" BEFORE UPDATE ON {{table}} FOR EACH ROW
	WHEN (NEW.{{token}} IS NOT NULL AND NEW.{{owner}} IS DISTINCT FROM current_setting('{{setting}}_{{guard}}_owner', true))
	EXECUTE FUNCTION {{schema}}.tenure_guard_token('{{guard}}', {{token_text}}, 'none');
