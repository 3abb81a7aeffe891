package sqlite

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/tenurehq/tenure/internal/clock"
	"github.com/tenurehq/tenure/store"
)

const (
	clockGranularity = time.Nanosecond
	clockCaution     = "none: the boot clock does not step; a step of the wall clock makes the times shown wrong, and no term end"
)

// ThisHost reads the machine id, the boot id and the time namespace's offset.
func ThisHost() (Host, error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return Host{}, fmt.Errorf("sqlite: %w: the boot clock cannot be told apart from that of another boot: %w (mount /proc, or set Config.Host.Domain)", store.ErrUnsupported, err)
	}
	// 16 digits of the random id keep the rows small.
	domain := strings.ReplaceAll(strings.TrimSpace(string(boot)), "-", "")
	domain = domain[:min(16, len(domain))]
	if offset := timeOffset(); offset != "" {
		domain += "+" + offset
	}
	return Host{ID: machineID(), Domain: domain, Boot: clock.Boot, Wall: time.Now}, nil
}

// machineID returns the id of machine-id(5), "" if there is none.
func machineID() string {
	for _, path := range []string{"/etc/machine-id", "/var/lib/dbus/machine-id"} {
		b, err := os.ReadFile(path)
		if id := strings.TrimSpace(string(b)); err == nil && len(id) == 32 {
			return id
		}
	}
	return ""
}

// timeOffset returns the offset of this time namespace's boot clock as
// "seconds.nanoseconds", "" for none. The file shows the offsets for children:
// a process that unshared its time namespace and did not exec is not in it yet,
// and gets a domain of its own.
func timeOffset() string {
	own, err1 := os.Readlink("/proc/self/ns/time")
	children, err2 := os.Readlink("/proc/self/ns/time_for_children")
	if err1 != nil || err2 != nil {
		return "" // a kernel without time namespaces
	}
	if own != children {
		return own
	}
	b, err := os.ReadFile("/proc/self/timens_offsets")
	if err != nil {
		return own
	}
	return parseTimeOffset(b)
}

func parseTimeOffset(offsets []byte) string {
	for line := range bytes.Lines(offsets) {
		f := strings.Fields(string(line))
		if len(f) == 3 && (f[0] == "boottime" || f[0] == "7") && (f[1] != "0" || f[2] != "0") {
			return f[1] + "." + f[2]
		}
	}
	return ""
}

// fileSystems are those on which the locks or the shared memory of SQLite
// cannot be relied on, by the magic number of statfs(2).
var fileSystems = map[uint32]string{
	0x00006969: "NFS",
	0x0000517b: "SMB",
	0xff534d42: "CIFS",
	0xfe534d42: "SMB2",
	0x65735546: "FUSE", // sshfs, s3fs, virtiofs of desktop containers, …
	0x01021997: "9p",   // WSL drives, virtual machines' shared folders
	0x5346414f: "AFS",
	0x6b414653: "AFS",
	0x73757245: "Coda",
	0x00c36400: "Ceph",
	0x0bd00bd0: "Lustre",
	0x47504653: "GPFS",
	0x01161970: "GFS2",
	0x7461636f: "OCFS2",
	0x19830326: "BeeGFS",
	0x20030528: "OrangeFS",
	0xaad7aaea: "PanFS",
	0x0000564c: "NCP",
	0x786f4256: "VirtualBox shared folder",
	0xbacbacbc: "VMware shared folder",
	0x7c7c6673: "Parallels shared folder",
}

// FileSystem returns the name of the file system on which path, or else its
// directory, lies if that is one this store refuses: NFS, SMB/CIFS, FUSE, 9p,
// AFS, Coda, Ceph, Lustre, GPFS, GFS2, OCFS2, BeeGFS, OrangeFS, PanFS, NCP and
// the shared folders of virtual machines. It knows them on Linux only.
func FileSystem(path string) (name string, refused bool) {
	var st syscall.Statfs_t
	if syscall.Statfs(path, &st) != nil && syscall.Statfs(filepath.Dir(path), &st) != nil {
		return "", false // the database's own error will tell
	}
	name, refused = fileSystems[uint32(st.Type)]
	return name, refused
}

// fileIdentity returns the inode of path. Device numbers may change at a
// reboot, so they are no part of it.
func fileIdentity(path string) string {
	var st syscall.Stat_t
	if syscall.Stat(path, &st) != nil {
		return ""
	}
	return strconv.FormatUint(st.Ino, 10)
}

// otherNames says how the file at path is known by another name, too: it has
// hard links, or is itself a mount point. "" if it is not, or not there yet.
func otherNames(path string) string {
	var st syscall.Stat_t
	if syscall.Stat(path, &st) != nil {
		return ""
	}
	if st.Nlink > 1 {
		return fmt.Sprintf("has %d names (hard links)", st.Nlink)
	}
	resolved, err := filepath.EvalSymlinks(path)
	if err != nil {
		return ""
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return ""
	}
	// "36 35 98:0 /mnt1 /mnt2 rw,noatime …", with space, tab, newline and backslash in octal
	escaped := strings.NewReplacer(`\`, `\134`, " ", `\040`, "\t", `\011`, "\n", `\012`).Replace(resolved)
	for line := range strings.Lines(string(mounts)) {
		if w := strings.Fields(line); len(w) > 4 && w[4] == escaped {
			return "is a mount point of its own"
		}
	}
	return ""
}

// freeBytes returns the space that an unprivileged user has left at path.
func freeBytes(path string) (int64, bool) {
	var st syscall.Statfs_t
	if syscall.Statfs(path, &st) != nil {
		return 0, false
	}
	return int64(st.Bavail) * int64(st.Bsize), true //nolint:unconvert // Bsize is an int32 on some
}

// lockHolders names the other processes that hold a write lock on the shared
// memory file of the database at path, from /proc/locks. It must not open the
// file: closing any descriptor of it would drop this process's own locks.
func lockHolders(path string) []string {
	var st syscall.Stat_t
	if syscall.Stat(path+"-shm", &st) != nil {
		return nil
	}
	inode := ":" + strconv.FormatUint(st.Ino, 10)
	f, err := os.Open("/proc/locks")
	if err != nil {
		return nil
	}
	defer f.Close()
	var names []string
	seen := map[string]bool{strconv.Itoa(os.Getpid()): true, "0": true, "-1": true}
	for lines := bufio.NewScanner(f); lines.Scan(); {
		// "1: POSIX  ADVISORY  WRITE 4711 08:01:1234 120 120"
		w := strings.Fields(lines.Text())
		if len(w) != 8 || w[3] != "WRITE" || !strings.HasSuffix(w[5], inode) || seen[w[4]] {
			continue
		}
		seen[w[4]] = true
		comm, _ := os.ReadFile("/proc/" + w[4] + "/comm")
		names = append(names, fmt.Sprintf("pid %s (%s)", w[4], strings.TrimSpace(string(comm))))
	}
	return names
}
