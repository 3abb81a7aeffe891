package sqlite

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/tenurehq/tenure/store"
)

// Diagnose implements store.Doctor. It takes as long as reading the whole file
// once. The codes are journal_mode, synchronous, fullfsync, file_system,
// schema, read_only, store_copied, inode_changed, host_unknown, corrupt, domain_open,
// wall_clock, directory, disk_space and size. The error is for a database that
// cannot be read at all.
func (s *Store) Diagnose(ctx context.Context) ([]store.Finding, error) {
	conn, err := s.db.Conn(ctx)
	if err != nil {
		return nil, s.classify("diagnose", err)
	}
	defer conn.Close()
	d := diagnosis{ctx: ctx, s: s, conn: conn}
	for _, look := range []func() error{d.settings, d.fileSystem, d.tables, d.writable, d.integrity, d.clock, d.directory, d.size} {
		if err := look(); err != nil {
			return d.findings, s.classify("diagnose", err)
		}
	}
	return d.findings, nil
}

type diagnosis struct {
	ctx  context.Context
	s    *Store
	conn interface {
		querier
		Tx
	}
	findings []store.Finding
}

func (d *diagnosis) add(code string, severity store.Severity, fix, format string, args ...any) {
	d.findings = append(d.findings, store.Finding{Code: code, Severity: severity, Text: fmt.Sprintf(format, args...), Fix: fix})
}

// pragma reads a setting that is a number or a text.
func (d *diagnosis) pragma(name string, into any) error {
	return d.conn.QueryRowContext(d.ctx, "PRAGMA "+name).Scan(into)
}

func (d *diagnosis) settings() error {
	var mode string
	if err := d.pragma("journal_mode", &mode); err != nil {
		return err
	}
	if mode != "wal" {
		d.add("journal_mode", store.Broken, "PRAGMA journal_mode=WAL", "journal_mode is %q; the store refuses to write", mode)
	}
	var sync int
	if err := d.pragma("synchronous", &sync); err != nil {
		return err
	}
	if sync < 2 {
		d.add("synchronous", store.Broken, "open the database with synchronous=FULL", "synchronous is %d: a power loss takes back terms; the store refuses to write", sync)
	}
	var full int
	if err := d.pragma("fullfsync", &full); err != nil {
		return err
	}
	if full == 0 && runtime.GOOS == "darwin" {
		d.add("fullfsync", store.Warning, "open the database with fullfsync=1", "on macOS a sync without it may stay in the disk's cache")
	}
	return nil
}

func (d *diagnosis) fileSystem() error {
	if name, refused := FileSystem(d.s.path); refused {
		d.add("file_system", store.Broken, "use a local disk, or Postgres", "%q lies on a %s file system, where SQLite's locks cannot be relied on", d.s.path, name)
	}
	return nil
}

func (d *diagnosis) tables() error {
	m, err := readMeta(d.ctx, d.conn)
	if err != nil {
		if err = d.s.classify("read the tables", err); !errors.Is(err, store.ErrSchema) {
			return err
		}
		d.add("schema", store.Broken, "run: tenure migrate", "the file has none of tenure's tables")
		return nil
	}
	if err := d.s.judgeSchema(m); err != nil {
		d.add("schema", store.Broken, "run: tenure migrate, or use the program that made them", "%v", err)
		return nil
	}
	if d.s.copied(m) {
		d.add("store_copied", store.Broken, "once nobody uses the original, run: tenure migrate --adopt", "the file was last used by the host with machine id %s, this is %s", m["host"], d.s.host.ID)
	}
	if inode := fileIdentity(d.s.path); m["inode"] != "" && inode != "" && m["inode"] != inode {
		d.add("inode_changed", store.Warning, "if it was restored from a backup, raise the floor of all names; that also notes the new identity",
			"the file has inode %s and was made or adopted as %s: it was copied, moved or restored, and may have forgotten terms", inode, m["inode"])
	}
	if d.s.host.ID == "" {
		d.add("host_unknown", store.Warning, "give the machine a machine id, or set Config.Host.ID", "this host has no machine id: a file copied from another host cannot be told")
	}
	var foreign int
	if err := d.conn.QueryRowContext(d.ctx, "SELECT count(*) FROM tenure_lease WHERE token > 0 AND ended_us = 0 AND domain <> ?1", d.s.host.Domain).Scan(&foreign); err != nil {
		return err
	}
	if foreign > 0 {
		d.add("domain_open", store.Info, "", "%d open terms are of another boot or time namespace than %s and are judged by watching for their TTL", foreign, d.s.host.Domain)
	}
	return nil
}

// writable takes the write lock for a moment and changes nothing. To look at the
// file's mode would not do, since SQLite writes beside the file too.
func (d *diagnosis) writable() error {
	_, err := d.conn.ExecContext(d.ctx, "UPDATE tenure_meta SET value = value WHERE 0")
	if err == nil {
		return nil
	}
	switch err := d.s.classify("write", err); {
	case errors.Is(err, store.ErrReadOnly), errors.Is(err, store.ErrPermission):
		d.add("read_only", store.Broken, "let this user write the file and its directory", "this user cannot write %q or beside it, so it can take no lease here", d.s.path)
		return nil
	case errors.Is(err, store.ErrSchema), errors.Is(err, store.ErrBusy): // reported already; somebody else writes
		return nil
	default:
		return err
	}
}

func (d *diagnosis) integrity() error {
	rows, err := d.conn.QueryContext(d.ctx, "PRAGMA quick_check(5)")
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var text string
		if err := rows.Scan(&text); err != nil {
			return err
		}
		if text != "ok" {
			d.add("corrupt", store.Broken, "restore the file from a backup and raise the floor of all names", "quick_check: %s", text)
		}
	}
	return rows.Err()
}

// clock warns of a wall clock that was stepped since New, or was wrong when a
// term was written: what the tables show is then wrong, though no expiry is.
func (d *diagnosis) clock() error {
	if step := d.s.host.Wall().Sub(d.s.now().wall); step.Abs() > time.Second {
		d.add("wall_clock", store.Warning, "restart the programs that use the store, to have right times shown", "the wall clock was stepped by %s against the boot clock since the store was opened", step.Round(time.Millisecond))
	}
	rows, err := d.conn.QueryContext(d.ctx, "SELECT name, renewed_us FROM tenure_lease ORDER BY renewed_us DESC LIMIT 1")
	if err != nil {
		return nil // the tables have been reported
	}
	defer rows.Close()
	for rows.Next() {
		var name string
		var us int64
		if err := rows.Scan(&name, &us); err != nil {
			return err
		}
		if ahead := time.Until(fromMicro(us)); ahead > time.Minute {
			d.add("wall_clock", store.Warning, "set the clock", "%q was renewed %s in the future by the wall clock: times shown are wrong", name, ahead.Round(time.Second))
		}
	}
	return rows.Err()
}

func (d *diagnosis) directory() error {
	dir := filepath.Dir(d.s.path)
	info, err := os.Stat(dir)
	if err != nil {
		d.add("directory", store.Broken, "make the directory readable", "%v", err)
		return nil
	}
	if mode := info.Mode(); mode.Perm()&0o002 != 0 && mode&os.ModeSticky == 0 {
		d.add("directory", store.Warning, "chmod o-w", "anybody may rename files in %q (mode %v)", dir, mode)
	}
	if file, err := os.Stat(d.s.path); err == nil && file.Mode().Perm()&0o002 != 0 {
		d.add("directory", store.Warning, "chmod o-w", "anybody may write %q (mode %v)", d.s.path, file.Mode())
	}
	return nil
}

func (d *diagnosis) size() error {
	var page, pages int64
	if err := d.pragma("page_size", &page); err != nil {
		return err
	}
	if err := d.pragma("page_count", &pages); err != nil {
		return err
	}
	d.add("size", store.Info, "", "%q has %d KiB", d.s.path, (pages*page+1023)/1024)
	if free, ok := freeBytes(d.s.path); ok && free < 64<<20 {
		d.add("disk_space", store.Warning, "free space on its disk", "%d MiB are left on the disk of %q; a full disk stops renewals", free>>20, d.s.path)
	}
	if wal, err := os.Stat(d.s.path + "-wal"); err == nil && wal.Size() > 256<<20 {
		d.add("size", store.Warning, "find the process that keeps a read transaction open", "the WAL has grown to %d MiB: a reader keeps it from being checkpointed", wal.Size()>>20)
	}
	return nil
}
