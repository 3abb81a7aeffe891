package main

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tenurehq/tenure/cmd/tenure/tree"
)

// demoWrite is how often the work of the demo writes.
const demoWrite = 100 * time.Millisecond

// newDemoWork is the work of the demo: it counts in a table, and shows its token
// with every write.
func newDemoWork() *cobra.Command {
	var dir, beside string
	var guard bool
	cmd := &cobra.Command{Use: "demo-work", Hidden: true, Short: "The work of \"tenure up --demo\"", Args: cobra.NoArgs}
	cmd.Flags().StringVar(&dir, "dir", "", "directory of the demo")
	cmd.Flags().StringVar(&beside, "beside", "", "PID:START of the demo, without which this ends")
	cmd.Flags().BoolVar(&guard, "guard", false, "end the others of the demo if it is killed")
	must(cmd.MarkFlagRequired("dir"))
	must(cmd.MarkFlagRequired("beside"))
	cmd.RunE = daemon(func(ctx context.Context, _ *cobra.Command, _ []string) error {
		var of tree.Identity
		if _, err := fmt.Sscanf(beside, "%d:%d", &of.PID, &of.Start); err != nil {
			return failf(exitUsage, "--beside %q: must be PID:START", beside)
		}
		if guard {
			return guardDemo(ctx, dir, of)
		}
		token, err := strconv.ParseInt(os.Getenv("TENURE_TOKEN"), 10, 64)
		if err != nil {
			return failf(exitUsage, "demo-work is run by \"tenure up --demo\"")
		}
		db, err := openDemoData(demoFile(dir))
		if err != nil {
			return failf(exitUnavailable, "%w", err)
		}
		defer db.Close()
		w := demoWriter{db: db, work: os.Getenv("TENURE_WORK"), node: os.Getenv("TENURE_NODE"), began: os.Getenv("TENURE_PROGRESS"), token: token}
		tick := time.NewTicker(demoWrite)
		defer tick.Stop()
		for {
			if !stillRuns(of) {
				return nil // the demo is over
			}
			marker, err := w.write(ctx)
			switch {
			case ctx.Err() != nil:
				return nil
			case err != nil:
				fmt.Fprintln(os.Stderr, "write:", err) // a busy file: the next turn writes
			case marker > 0:
				if err := os.WriteFile(os.Getenv("TENURE_PROGRESS_FILE"), []byte(strconv.FormatInt(marker, 10)), 0o600); err != nil {
					return failf(exitInternal, "%w", err)
				}
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
				return nil
			}
		}
	})
	return cmd
}

func stillRuns(of tree.Identity) bool {
	now, err := tree.Read(of.PID)
	return err == nil && now.Identity() == of && !now.Dead()
}

// guardDemo waits for the end of a demo and ends what it left, which may stand
// still for ever otherwise. A demo that ends in order ends this first.
func guardDemo(ctx context.Context, dir string, of tree.Identity) error {
	tick := time.NewTicker(demoWrite)
	defer tick.Stop()
	for stillRuns(of) {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
	endDemo(func() (left []tree.Process) {
		all, _ := tree.Table() // without /proc the demo did not begin
		for _, p := range all {
			text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p.PID)) // one that is gone has none
			if p.PID != os.Getpid() && !p.Dead() && strings.Contains(string(text), dir+"/") {
				left = append(left, p)
			}
		}
		return left
	}, func(p tree.Process) bool { return p.Parent == 1 })
	return os.RemoveAll(dir)
}

// demoWriter writes as one owner of a work item.
type demoWriter struct {
	db                *sql.DB
	work, node, began string
	token             int64
}

// write counts one on, if no later owner has written, and notes whether it could.
// It returns the count, 0 if it was refused.
func (w *demoWriter) write(ctx context.Context) (marker int64, err error) {
	conn, err := w.db.Conn(ctx)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	if _, err := conn.ExecContext(ctx, "BEGIN IMMEDIATE"); err != nil {
		return 0, err
	}
	defer func() {
		if err != nil {
			_, _ = conn.ExecContext(context.WithoutCancel(ctx), "ROLLBACK") // the error is told already
		}
	}()
	if _, err = conn.ExecContext(ctx, "INSERT INTO demo_data VALUES (?, 0, ?, ?) ON CONFLICT DO NOTHING", w.work, w.token, w.node); err != nil {
		return 0, err
	}
	// The fence: a write of an earlier owner matches no row.
	res, err := conn.ExecContext(ctx, `UPDATE demo_data SET value = value + 1, token = $2, node = $3
		WHERE work = $1 AND (token < $2 OR token = $2 AND node = $3)`, w.work, w.token, w.node)
	if err != nil {
		return 0, err
	}
	changed, err := res.RowsAffected()
	if err != nil {
		return 0, err
	}
	if _, err = conn.ExecContext(ctx, `INSERT INTO demo_write VALUES ($1, $2, $3, $4, $5, 1 - $5)
		ON CONFLICT (work, token) DO UPDATE SET accepted = accepted + excluded.accepted, refused = refused + excluded.refused`,
		w.work, w.token, w.node, w.began, changed); err != nil {
		return 0, err
	}
	if changed > 0 {
		if err = conn.QueryRowContext(ctx, "SELECT value FROM demo_data WHERE work = ?", w.work).Scan(&marker); err != nil {
			return 0, err
		}
	}
	_, err = conn.ExecContext(ctx, "COMMIT")
	return marker, err
}
