package sqlite

import (
	"testing"
)

func TestParseTimeOffset(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"monotonic           0         0\nboottime            0         0\n": "",
		"monotonic          10         0\nboottime       86400         5\n":  "86400.5",
		"monotonic           0         0\nboottime          -7 500000000\n":  "-7.500000000",
		"7 3 0\n": "3.0",
		"":        "",
	} {
		if got := parseTimeOffset([]byte(in)); got != want {
			t.Errorf("parseTimeOffset(%q): got %q, want %q", in, got, want)
		}
	}
}

// The magic numbers are those of statfs(2) and linux/magic.h.
func TestFileSystem(t *testing.T) {
	t.Parallel()
	if name, refused := FileSystem(t.TempDir()); refused {
		t.Skipf("the temporary directory lies on %s", name)
	}
	if _, refused := FileSystem("/proc/self/no/such/directory"); refused {
		t.Error("a path that does not exist was refused")
	}
	for magic, want := range map[uint32]string{0x6969: "NFS", 0xff534d42: "CIFS", 0xfe534d42: "SMB2", 0x65735546: "FUSE", 0x01021997: "9p", 0x00c36400: "Ceph", 0x0bd00bd0: "Lustre", 0x5346414f: "AFS"} {
		if got := fileSystems[magic]; got != want {
			t.Errorf("file system %#x: got %q, want %q", magic, got, want)
		}
	}
	for local, magic := range map[string]uint32{"ext4": 0xef53, "xfs": 0x58465342, "btrfs": 0x9123683e, "tmpfs": 0x01021994, "overlay": 0x794c7630, "zfs": 0x2fc12fc1} {
		if name, refused := fileSystems[magic]; refused {
			t.Errorf("%s is refused as %s", local, name)
		}
	}
}
