package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tenurehq/tenure/store"
)

const (
	oldestServer = 130000
	clockInfo    = time.Second // a difference of clocks that is worth a line
	clockWarning = time.Minute
	blockingFor  = 10 // seconds for which a transaction is open before it is named
)

// Diagnose implements store.Doctor: the tables, as Check looks at them, and the
// server's settings. What a role is not allowed to see is left out.
func (s *Store) Diagnose(ctx context.Context) ([]store.Finding, error) {
	found, err := s.inspect(ctx)
	switch {
	case errors.Is(err, store.ErrSchema):
		found = []store.Finding{{Code: "schema_missing", Severity: store.Broken, Text: err.Error(), Fix: "run: tenure migrate"}}
	case err != nil:
		return nil, err
	default:
		rights, err := s.rights(ctx)
		if err != nil {
			return nil, err
		}
		blockers, err := s.blockers(ctx)
		if err != nil {
			return nil, err
		}
		fence, err := s.fenceFindings(ctx)
		if err != nil {
			return nil, err
		}
		found = append(append(append(found, rights...), blockers...), fence...)
	}
	settings, err := s.settings(ctx)
	if err != nil {
		return nil, err
	}
	marks, err := s.markFindings(ctx) // which may be in a database without leases
	if err != nil {
		return nil, err
	}
	return append(append(found, settings...), marks...), nil
}

func (s *Store) settings(ctx context.Context) ([]store.Finding, error) {
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return nil, failure("diagnose", s.pool.Config().ConnConfig, err)
	}
	defer conn.Release()
	wire := conn.Conn().PgConn()
	sent := time.Now()
	rows, err := s.query(ctx, wire, `SELECT current_setting('server_version_num'), pg_is_in_recovery(), current_setting('transaction_read_only')::bool,
		current_setting('fsync')::bool, current_setting('full_page_writes')::bool, current_setting('autovacuum')::bool,
		current_setting('synchronous_commit'), current_setting('synchronous_standby_names'),
		(SELECT count(*) FROM pg_stat_replication), (SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'async'),
		current_setting('max_prepared_transactions')::int, (SELECT count(*) FROM pg_prepared_xacts WHERE database = current_database()),
		pg_backend_pid(), (extract(epoch FROM clock_timestamp()) * 1000000)::bigint`)
	received := time.Now()
	if err != nil {
		return nil, failure("diagnose", s.pool.Config().ConnConfig, err)
	}
	r := rows[0]
	version, standby, readOnly := r.number(), r.boolean(), r.boolean()
	fsync, fullPages, autovacuum := r.boolean(), r.boolean(), r.boolean()
	commit, syncNames := r.text(), r.text()
	replicas, async := r.number(), r.number()
	maxPrepared, prepared := r.number(), r.number()
	pid, clock := r.number(), instant(r.number())
	if r.err != nil {
		return nil, r.err
	}

	var found []store.Finding
	add := func(when bool, code string, severity store.Severity, text, fix string) {
		if when {
			found = append(found, store.Finding{Code: code, Severity: severity, Text: text, Fix: fix})
		}
	}
	add(version < oldestServer, "server_too_old", store.Broken, fmt.Sprintf("the server's version is %d.%d", version/10000, version%10000), "use version 13 or later")
	add(standby, "standby", store.Broken, "this server is a standby, which cannot decide on leases", "connect to the primary")
	add(readOnly && !standby, "read_only", store.Broken, "transactions are read-only by default", "ALTER ROLE or ALTER DATABASE … SET default_transaction_read_only = off")
	add(!fsync, "fsync_off", store.Broken, "fsync is off: a crash can lose acknowledged grants, and tokens are then given twice", "set fsync = on")
	add(!fullPages, "full_page_writes_off", store.Warning, "full_page_writes is off: a crash can damage the tables unless the file system writes whole pages", "set full_page_writes = on")
	add(!autovacuum, "autovacuum_off", store.Warning, "autovacuum is off: released leases and old terms bloat the tables", "set autovacuum = on")
	add(commit != "on" && commit != "remote_apply", "synchronous_commit", store.Info, fmt.Sprintf("synchronous_commit is %s by default; grants raise it to on for themselves, other writes of yours do not", commit), "")
	add(replicas > 0 && syncNames == "", "standby_asynchronous", store.Warning,
		fmt.Sprintf("%d standbys, none of them synchronous: a failover can lose acknowledged grants, and tokens are then given twice", replicas),
		"set synchronous_standby_names, or raise the floor after each failover")
	add(replicas > 0 && syncNames != "" && async > 0, "standby_asynchronous", store.Info,
		fmt.Sprintf("%d of %d standbys are asynchronous", async, replicas), "do not fail over to these, or raise the floor after it")
	add(replicas == 0, "no_standby", store.Info, "no standby is seen: a loss of this server's disk loses the leases", "")
	add(prepared > 0, "prepared_transactions", store.Warning, fmt.Sprintf("%d transactions are prepared in this database; one that is guarded holds off takeovers until it is ended", prepared), "SELECT * FROM pg_prepared_xacts; then COMMIT PREPARED or ROLLBACK PREPARED")
	add(maxPrepared > 0 && prepared == 0, "prepared_transactions_possible", store.Info, fmt.Sprintf("max_prepared_transactions is %d: a guarded transaction that is prepared and forgotten would hold off takeovers", maxPrepared), "")
	add(pid != int64(wire.PID()), "pooler", store.Info, "a connection pooler stands between: waiters are not told of releases and have to ask", "let tenure connect to the server itself")
	// The server read its clock somewhere between sent and received.
	off := max(sent.Sub(clock), clock.Sub(received), 0)
	severity := store.Info
	if off >= clockWarning {
		severity = store.Warning
	}
	add(off >= clockInfo, "clock_difference", severity, fmt.Sprintf("the server's clock and this host's differ by %s or more; leases follow the server's alone", off.Round(time.Millisecond)), "keep both in step with NTP")
	return found, nil
}

func (s *Store) rights(ctx context.Context) ([]store.Finding, error) {
	rows, err := s.do(ctx, "diagnose", `SELECT current_user, t.name, r.name FROM
		(VALUES ('tenure_lease'), ('tenure_term'), ('tenure_slot'), ('tenure_floor')) t(name), (VALUES ('SELECT'), ('INSERT'), ('UPDATE'), ('DELETE')) r(name)
		WHERE NOT has_table_privilege('`+s.prefix+`' || t.name, r.name)
			AND NOT (t.name = 'tenure_floor' AND r.name IN ('INSERT', 'DELETE')) AND NOT (t.name IN ('tenure_term', 'tenure_slot') AND r.name = 'UPDATE')
			AND NOT (t.name = 'tenure_slot' AND r.name = 'DELETE')`)
	if err != nil {
		return nil, err
	}
	var found []store.Finding
	for _, r := range rows {
		role, table, right := r.text(), r.text(), r.text()
		found = append(found, store.Finding{
			Code: "rights", Severity: store.Broken,
			Text: fmt.Sprintf("role %q lacks the right to %s on %s", role, right, table),
			Fix:  fmt.Sprintf("GRANT %s ON %s%s TO %s;", right, s.prefix, table, pgx.Identifier{role}.Sanitize()),
		})
	}
	return found, nil
}

func (s *Store) blockers(ctx context.Context) ([]store.Finding, error) {
	rows, err := s.do(ctx, "diagnose", fmt.Sprintf(`SELECT DISTINCT a.pid, coalesce(a.application_name, ''), extract(epoch FROM clock_timestamp() - a.xact_start)::bigint
		FROM pg_stat_activity a JOIN pg_locks k ON k.pid = a.pid AND k.relation = to_regclass('%stenure_lease') AND k.granted
		WHERE a.state LIKE 'idle in transaction%%' AND a.xact_start < clock_timestamp() - interval '%d seconds' AND k.mode <> 'AccessShareLock'`, s.prefix, blockingFor))
	if err != nil {
		return nil, err
	}
	var found []store.Finding
	for _, r := range rows {
		pid, application, seconds := r.number(), r.text(), r.number()
		found = append(found, store.Finding{
			Code: "idle_in_transaction", Severity: store.Warning,
			Text: fmt.Sprintf("pid %d (%q) has been in a transaction with leases locked for %d s and does nothing", pid, application, seconds),
			Fix:  fmt.Sprintf("end it: SELECT pg_terminate_backend(%d); and set idle_in_transaction_session_timeout", pid),
		})
	}
	return found, nil
}
