package main

import (
	"context"
	"log/slog"
	"time"

	systemd "github.com/coreos/go-systemd/v22/daemon"
)

// supervised tells systemd, if it asked for that in NOTIFY_SOCKET and
// WATCHDOG_USEC (Type=notify, WatchdogSec=), when this process serves, that it is
// alive, and when it ends. It returns once ctx has ended. ready says why the
// process cannot serve yet, nil if it can; alive returns nil while its keeper's
// loop goes round. What a child may say in this process's name is the unit's matter
// (NotifyAccess=main, the default, lets it say nothing).
func supervised(ctx context.Context, log *slog.Logger, ready func() error, alive func(context.Context) error) {
	every, err := systemd.SdWatchdogEnabled(true)
	if err != nil {
		log.Warn("watchdog", "err", err)
	}
	asked, err := systemd.SdNotify(false, "STATUS=starting")
	if err != nil {
		log.Warn("notify", "err", err)
	}
	if !asked {
		return
	}
	const look = 200 * time.Millisecond
	period := look
	if every > 0 {
		period = min(look, every/4)
	}
	tick := time.NewTicker(period)
	defer tick.Stop()
	state, told, fed := "", false, time.Time{}
	for {
		status := "serving"
		if err := ready(); err != nil {
			status = err.Error()
		} else if !told {
			told = true
			_, _ = systemd.SdNotify(false, systemd.SdNotifyReady) // it answered at the start
		}
		if status != state {
			state = status
			_, _ = systemd.SdNotify(false, "STATUS="+state)
		}
		if every > 0 && time.Since(fed) >= every/4 {
			one, cancel := context.WithTimeout(ctx, every/4)
			err := alive(one)
			cancel()
			switch {
			case err == nil:
				fed = time.Now()
				_, _ = systemd.SdNotify(false, systemd.SdNotifyWatchdog)
			case ctx.Err() == nil && told:
				log.Warn("the keeper does not answer", "err", err)
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			_, _ = systemd.SdNotify(true, systemd.SdNotifyStopping)
			return
		}
	}
}
