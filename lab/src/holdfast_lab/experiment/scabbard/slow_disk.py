"""A disk that is behind a network: syncs of files below a directory take as long as they would there.

`SlowDisk` compiles a small library that stands before the C library's `write` and `fsync` in all programs that are
started with it (`LD_PRELOAD`), Python, Java and SQLite alike. A sync waits for the disk's latency and for its turn:
bytes written since the last one go at the disk's bandwidth, and every 256 kB of them are an operation, of which it
takes so many per second, from all processes together. Reads are not slowed down: what was just written is in the page
cache, there as here.
"""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from holdfast.errors import HoldfastError

__all__ = ["SlowDisk"]

_LIBRARY = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define FILES 65536
#define OPERATION (256 << 10)
static _Atomic uint64_t written[FILES];
static _Atomic uint64_t alone;

static double setting(const char *name) { const char *v = getenv(name); return v ? atof(v) : 0; }
static int64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

/* When the disk has done all that was asked of it, for all processes. */
static _Atomic uint64_t *busy(void) {
    static _Atomic uint64_t *shared;
    if (!shared) {
        const char *path = getenv("SLOW_DISK_CLOCK");
        int file = path ? open(path, O_RDWR) : -1;
        void *found = file < 0 ? MAP_FAILED : mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        if (file >= 0) close(file);
        shared = found == MAP_FAILED ? &alone : found;
    }
    return shared;
}

static int here(int file) {
    const char *below = getenv("SLOW_DISK_BELOW");
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = below ? readlink(link, path, sizeof path - 1) : -1;
    if (length < 0) return 0;
    path[length] = 0;
    return strncmp(path, below, strlen(below)) == 0;
}

static void count(int file, ssize_t bytes) { if (bytes > 0 && file >= 0 && file < FILES) written[file] += bytes; }

static void delay(int file) {
    if (file < 0 || file >= FILES || !here(file)) return;
    double bytes = atomic_exchange(&written[file], 0);
    double operations = 1 + (uint64_t)bytes / OPERATION, took = 0;
    double bandwidth = setting("SLOW_DISK_BANDWIDTH"), rate = setting("SLOW_DISK_OPERATIONS");
    if (bandwidth > 0) took = bytes / bandwidth;
    if (rate > 0 && operations / rate > took) took = operations / rate;
    uint64_t before = atomic_load(busy()), after;
    do {
        uint64_t begins = before > (uint64_t)now() ? before : (uint64_t)now();
        after = begins + (uint64_t)(took * 1e9);
    } while (!atomic_compare_exchange_weak(busy(), &before, after));
    int64_t left = (int64_t)after + (int64_t)(setting("SLOW_DISK_LATENCY") * 1e9) - now();
    if (left > 0) {
        struct timespec t = {left / 1000000000LL, left % 1000000000LL};
        nanosleep(&t, 0);
    }
}

/* Each function calls the one that it stands before. */
#define REAL(type, name, ...) static type (*real)(__VA_ARGS__); if (!real) real = dlsym(RTLD_NEXT, #name)
#define COUNTED(call) ssize_t done = call; count(f, done); return done

ssize_t write(int f, const void *b, size_t n) {
    REAL(ssize_t, write, int, const void *, size_t);
    COUNTED(real(f, b, n));
}
ssize_t pwrite(int f, const void *b, size_t n, off_t at) {
    REAL(ssize_t, pwrite, int, const void *, size_t, off_t);
    COUNTED(real(f, b, n, at));
}
ssize_t pwrite64(int f, const void *b, size_t n, off64_t at) {
    REAL(ssize_t, pwrite64, int, const void *, size_t, off64_t);
    COUNTED(real(f, b, n, at));
}
ssize_t writev(int f, const struct iovec *v, int n) {
    REAL(ssize_t, writev, int, const struct iovec *, int);
    COUNTED(real(f, v, n));
}
int fsync(int f) {
    REAL(int, fsync, int);
    int done = real(f);
    delay(f);
    return done;
}
int fdatasync(int f) {
    REAL(int, fdatasync, int);
    int done = real(f);
    delay(f);
    return done;
}
"""


@dataclass(frozen=True, slots=True)
class SlowDisk:
    """What the disk takes: seconds from a sync to its answer, bytes per second, operations per second."""

    latency: float
    bandwidth: float
    operations: float

    def environment(self, below: Path, work: Path) -> dict[str, str]:
        """The variables for programs to whom files below a directory are on this disk. The library is made in `work`,
        and must stay while they run."""
        library, clock = work / "slow-disk.so", work / "slow-disk.clock"
        if not library.exists():
            self._make(library)
        clock.write_bytes(bytes(4_096))
        return {
            "LD_PRELOAD": str(library),
            "SLOW_DISK_BELOW": f"{below}/",
            "SLOW_DISK_CLOCK": str(clock),
            "SLOW_DISK_LATENCY": str(self.latency),
            "SLOW_DISK_BANDWIDTH": str(self.bandwidth),
            "SLOW_DISK_OPERATIONS": str(self.operations),
        }

    def _make(self, library: Path) -> None:
        compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
        if compiler is None:
            raise HoldfastError("there is no C compiler to make a slow disk with", cure="install gcc or clang")
        text = library.with_suffix(".c")
        text.write_text(_LIBRARY)
        command = [compiler, "-O2", "-shared", "-fPIC", "-o", str(library), str(text), "-ldl"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise HoldfastError(f"the slow disk could not be made: {done.stderr.strip()}", cure="see what it says")
