package mcptest

import (
	"fmt"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// Nowhere is a URL where nothing listens: a connection to it is refused. The port is kept until the test ends, so that
// nothing else can come to listen there.
func Nowhere(t testing.TB) string {
	t.Helper()
	_, url := bound(t)
	return url
}

// Unconnectable is a URL at which no connection ever comes about, and none is refused: it listens, and its queue is full.
// Linux only; elsewhere the test is skipped.
func Unconnectable(t testing.TB) string {
	t.Helper()
	fd, url := bound(t)
	if err := syscall.Listen(fd, 0); err != nil {
		t.Fatal(err)
	}
	address, err := syscall.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	// The kernel drops a handshake that finds the queue full, without a word. One connection fills a queue of zero; a few
	// more make sure of it, and the first that does not come about proves it.
	for range 64 {
		filler, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_NONBLOCK|syscall.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { syscall.Close(filler) })
		if err := syscall.Connect(filler, address); err != nil && err != syscall.EINPROGRESS {
			t.Fatal(err)
		}
		// On the loopback interface a handshake is over in microseconds.
		writable := []unix.PollFd{{Fd: int32(filler), Events: unix.POLLOUT}}
		n, err := unix.Poll(writable, 200)
		for err == syscall.EINTR {
			n, err = unix.Poll(writable, 200)
		}
		if err != nil {
			t.Fatal(err)
		}
		if n == 0 {
			return url
		}
	}
	t.Fatal("the queue of a listener could not be filled")
	return ""
}

// bound is a socket that has a port on the loopback interface and does not listen.
func bound(t testing.TB) (fd int, url string) {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { syscall.Close(fd) })
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	address, err := syscall.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	return fd, fmt.Sprintf("http://127.0.0.1:%d/mcp", address.(*syscall.SockaddrInet4).Port)
}
