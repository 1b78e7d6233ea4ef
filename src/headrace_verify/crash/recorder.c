/* Records what a process does to the files under one folder, in one order, with its notes.
 *
 * Preloaded (LD_PRELOAD) into a broker. Each call that changes a file, a name or durability is executed
 * as usual, and one record of it is appended to HEADRACE_RECORD_FILE. A mutex around both gives one
 * total order; a sync is two records, its start and its end, and does not hold the mutex. A call that
 * cannot be recorded faithfully becomes a record of kind `?`, for which the reader rejects the whole
 * recording. recorder.py parses the layout of a record.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#define FDS 65536
#define EXPORT __attribute__((visibility("default")))

struct record {
    uint32_t size; /* of what follows the head */
    int32_t fd;
    int64_t number; /* position, size, flags, or the number of a sync */
    uint32_t path_size;
    uint8_t kind;
    uint8_t is_new; /* the call has made the file */
    uint16_t zero;
};

static int out = -1;
static char root[4096];
static size_t root_size;
static unsigned char tracked[FDS]; /* 0 no, 1 a file or folder under the root, 2 its memory is not kept */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static int64_t syncs;

static void *next(const char *name) { return dlsym(RTLD_NEXT, name); }

#define REAL(type, name, ...)                                                                      \
    static type (*real)(__VA_ARGS__);                                                              \
    if (!real) real = (type(*)(__VA_ARGS__))next(#name)

static void die(const char *why) {
    fprintf(stderr, "recorder: %s\n", why);
    _exit(97);
}

__attribute__((constructor)) static void begin(void) {
    const char *file = getenv("HEADRACE_RECORD_FILE"), *folder = getenv("HEADRACE_RECORD_ROOT");
    if (!file || !folder) return;
    root_size = strlen(folder);
    if (root_size >= sizeof root) die("the folder's name is too long");
    memcpy(root, folder, root_size + 1);
    int fd = (int)syscall(SYS_openat, AT_FDCWD, file, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0) die("the record cannot be opened");
    out = (int)syscall(SYS_fcntl, fd, F_DUPFD_CLOEXEC, 500);
    syscall(SYS_close, fd);
}

static int is_inside(const char *path) {
    return out >= 0 && path && !strncmp(path, root, root_size) &&
           (path[root_size] == '/' || !path[root_size]);
}

static int is_tracked(int fd) { return out >= 0 && fd >= 0 && fd < FDS && tracked[fd]; }

static void put(uint8_t kind, int fd, int64_t number, int is_new, const char *path,
                const struct iovec *parts, int count, size_t size) {
    struct record head = {0};
    struct iovec all[1030];
    int used = 0;
    size_t left = size, path_size = path ? strlen(path) : 0;
    head.fd = fd;
    head.number = number;
    head.kind = kind;
    head.is_new = (uint8_t)is_new;
    head.path_size = (uint32_t)path_size;
    head.size = (uint32_t)(path_size + size);
    all[used].iov_base = &head, all[used++].iov_len = sizeof head;
    if (path_size) all[used].iov_base = (void *)path, all[used++].iov_len = path_size;
    for (int at = 0; at < count && left; at++) {
        size_t part = parts[at].iov_len < left ? parts[at].iov_len : left;
        all[used].iov_base = parts[at].iov_base, all[used++].iov_len = part;
        left -= part;
    }
    size_t whole = sizeof head + path_size + size;
    if (syscall(SYS_writev, out, all, (long)used) != (long)whole) die("the record cannot be written");
}

static void lock(void) { pthread_mutex_lock(&mutex); }
static void unlock(void) { pthread_mutex_unlock(&mutex); }

static void unsupported(const char *what) {
    lock();
    put('?', -1, 0, 0, what, NULL, 0, 0);
    unlock();
}

/* For the process itself: a note of a request or a response. */
EXPORT void headrace_record_note(const void *data, size_t size) {
    struct iovec part = {(void *)data, size};
    if (out < 0) return;
    lock();
    put('N', -1, 0, 0, NULL, &part, 1, size);
    unlock();
}

/* --- names ------------------------------------------------------------------------------------ */

static int open_at(int folder, const char *path, int flags, mode_t mode) {
    if (!is_inside(path)) {
        int fd = (int)syscall(SYS_openat, folder, path, flags, mode);
        if (out >= 0 && path && path[0] != '/' && is_tracked(folder)) unsupported("openat");
        return fd;
    }
    struct stat before, found;
    lock();
    int is_new = stat(path, &before) != 0;
    int fd = (int)syscall(SYS_openat, folder, path, flags, mode);
    int error = errno;
    if (fd >= 0) {
        if (fd >= FDS) die("too many descriptors");
        const char *end = strrchr(path, '-');
        tracked[fd] = end && !strcmp(end, "-shm") ? 2 : 1;
        if (fstat(fd, &found) == 0 && S_ISDIR(found.st_mode)) is_new = 0;
        put('O', fd, flags & O_TRUNC ? 1 : 0, is_new, path, NULL, 0, 0);
    }
    unlock();
    errno = error;
    return fd;
}

#define MODE(flags, last)                                                                          \
    mode_t mode = 0;                                                                               \
    if ((flags) & (O_CREAT | O_TMPFILE)) {                                                         \
        va_list rest;                                                                              \
        va_start(rest, last);                                                                      \
        mode = (mode_t)va_arg(rest, int);                                                          \
        va_end(rest);                                                                              \
    }

EXPORT int open(const char *path, int flags, ...) { MODE(flags, flags) return open_at(AT_FDCWD, path, flags, mode); }
EXPORT int open64(const char *path, int flags, ...) { MODE(flags, flags) return open_at(AT_FDCWD, path, flags | O_LARGEFILE, mode); }
EXPORT int openat(int at, const char *path, int flags, ...) { MODE(flags, flags) return open_at(at, path, flags, mode); }
EXPORT int openat64(int at, const char *path, int flags, ...) { MODE(flags, flags) return open_at(at, path, flags | O_LARGEFILE, mode); }
EXPORT int creat(const char *path, mode_t mode) { return open_at(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode); }
EXPORT int creat64(const char *path, mode_t mode) { return open_at(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode); }

EXPORT int close(int fd) {
    REAL(int, close, int);
    if (!is_tracked(fd)) return real(fd);
    lock();
    tracked[fd] = 0;
    put('C', fd, 0, 0, NULL, NULL, 0, 0);
    int result = real(fd);
    unlock();
    return result;
}

static int renamed(const char *old, const char *new, int result) {
    if (result == 0) {
        struct iovec part = {(void *)new, strlen(new)};
        put('R', -1, 0, 0, old, &part, 1, part.iov_len);
    }
    return result;
}

EXPORT int rename(const char *old, const char *new) {
    REAL(int, rename, const char *, const char *);
    if (!is_inside(old) && !is_inside(new)) return real(old, new);
    if (!is_inside(old) || !is_inside(new)) unsupported("rename across the root");
    lock();
    int result = renamed(old, new, real(old, new));
    int error = errno;
    unlock();
    errno = error;
    return result;
}

EXPORT int renameat(int a, const char *old, int b, const char *new) {
    REAL(int, renameat, int, const char *, int, const char *);
    if (!is_inside(old) && !is_inside(new)) return real(a, old, b, new);
    return rename(old, new);
}

EXPORT int renameat2(int a, const char *old, int b, const char *new, unsigned flags) {
    REAL(int, renameat2, int, const char *, int, const char *, unsigned);
    if (is_inside(old) || is_inside(new)) unsupported("renameat2");
    return real(a, old, b, new, flags);
}

EXPORT int unlink(const char *path) {
    REAL(int, unlink, const char *);
    if (!is_inside(path)) return real(path);
    lock();
    int result = real(path), error = errno;
    if (result == 0) put('U', -1, 0, 0, path, NULL, 0, 0);
    unlock();
    errno = error;
    return result;
}

EXPORT int unlinkat(int at, const char *path, int flags) {
    REAL(int, unlinkat, int, const char *, int);
    if (is_inside(path) && !(flags & AT_REMOVEDIR)) return unlink(path);
    if (is_inside(path) || is_tracked(at)) unsupported("unlinkat");
    return real(at, path, flags);
}

EXPORT int remove(const char *path) {
    REAL(int, remove, const char *);
    return is_inside(path) ? unlink(path) : real(path);
}

EXPORT int mkdir(const char *path, mode_t mode) {
    REAL(int, mkdir, const char *, mode_t);
    if (!is_inside(path)) return real(path, mode);
    lock();
    int result = real(path, mode), error = errno;
    if (result == 0) put('M', -1, 0, 0, path, NULL, 0, 0);
    unlock();
    errno = error;
    return result;
}

EXPORT int mkdirat(int at, const char *path, mode_t mode) {
    REAL(int, mkdirat, int, const char *, mode_t);
    return is_inside(path) ? mkdir(path, mode) : real(at, path, mode);
}

#define BANNED(type, name, declared, given, condition)                                             \
    EXPORT type name declared {                                                                    \
        static type(*real) declared;                                                               \
        if (!real) real = (type(*) declared)next(#name);                                           \
        if (condition) unsupported(#name);                                                         \
        return real given;                                                                         \
    }

BANNED(int, rmdir, (const char *path), (path), is_inside(path))
BANNED(int, link, (const char *a, const char *b), (a, b), is_inside(a) || is_inside(b))
BANNED(int, linkat, (int a, const char *b, int c, const char *d, int e), (a, b, c, d, e), is_inside(b) || is_inside(d))
BANNED(int, symlink, (const char *a, const char *b), (a, b), is_inside(b))
BANNED(int, truncate, (const char *path, off_t size), (path, size), is_inside(path))
BANNED(int, truncate64, (const char *path, off64_t size), (path, size), is_inside(path))
BANNED(int, dup, (int fd), (fd), is_tracked(fd))
BANNED(int, dup2, (int fd, int to), (fd, to), is_tracked(fd) || is_tracked(to))
BANNED(int, dup3, (int fd, int to, int flags), (fd, to, flags), is_tracked(fd) || is_tracked(to))
BANNED(ssize_t, sendfile, (int to, int from, off_t *at, size_t size), (to, from, at, size), is_tracked(to))
BANNED(ssize_t, sendfile64, (int to, int from, off64_t *at, size_t size), (to, from, at, size), is_tracked(to))
BANNED(ssize_t, copy_file_range, (int from, off64_t *a, int to, off64_t *b, size_t size, unsigned flags), (from, a, to, b, size, flags), is_tracked(to))
BANNED(ssize_t, splice, (int from, off64_t *a, int to, off64_t *b, size_t size, unsigned flags), (from, a, to, b, size, flags), is_tracked(to))
BANNED(int, fallocate, (int fd, int mode, off_t at, off_t size), (fd, mode, at, size), is_tracked(fd))
BANNED(int, fallocate64, (int fd, int mode, off64_t at, off64_t size), (fd, mode, at, size), is_tracked(fd))

static int controlled(int fd, int command, long value, const char *name) {
    static int (*real)(int, int, ...);
    if (!real) real = (int (*)(int, int, ...))next(name);
    if ((command == F_DUPFD || command == F_DUPFD_CLOEXEC) && is_tracked(fd)) unsupported("dup");
    return real(fd, command, value);
}

#define VALUE(last)                                                                                \
    va_list rest;                                                                                  \
    va_start(rest, last);                                                                          \
    long value = va_arg(rest, long); /* or a pointer, which is as wide */                          \
    va_end(rest)

EXPORT int fcntl(int fd, int command, ...) { VALUE(command); return controlled(fd, command, value, "fcntl"); }
EXPORT int fcntl64(int fd, int command, ...) { VALUE(command); return controlled(fd, command, value, "fcntl64"); }

/* SQLite's WAL index (-shm) is rebuilt by the first process that opens the file: not recorded. */
#define SHARED(prot, flags, fd) (((prot) & PROT_WRITE) && ((flags) & MAP_SHARED) && is_tracked(fd) && tracked[fd] == 1)
BANNED(void *, mmap, (void *a, size_t size, int prot, int flags, int fd, off_t at), (a, size, prot, flags, fd, at), SHARED(prot, flags, fd))
BANNED(void *, mmap64, (void *a, size_t size, int prot, int flags, int fd, off64_t at), (a, size, prot, flags, fd, at), SHARED(prot, flags, fd))

/* --- contents --------------------------------------------------------------------------------- */

#define RECORDED(call)                                                                             \
    lock();                                                                                        \
    ssize_t result = call;                                                                         \
    int error = errno;                                                                             \
    if (result > 0) put('W', fd, at, 0, NULL, parts, count, (size_t)result);                       \
    unlock();                                                                                      \
    errno = error;                                                                                 \
    return result

static off64_t place(int fd) {
    return lseek64(fd, 0, syscall(SYS_fcntl, fd, F_GETFL) & O_APPEND ? SEEK_END : SEEK_CUR);
}

EXPORT ssize_t write(int fd, const void *data, size_t size) {
    REAL(ssize_t, write, int, const void *, size_t);
    if (!is_tracked(fd)) return real(fd, data, size);
    struct iovec parts[1] = {{(void *)data, size}};
    int count = 1;
    off64_t at = place(fd);
    RECORDED(real(fd, data, size));
}

EXPORT ssize_t writev(int fd, const struct iovec *parts, int count) {
    REAL(ssize_t, writev, int, const struct iovec *, int);
    if (!is_tracked(fd)) return real(fd, parts, count);
    off64_t at = place(fd);
    RECORDED(real(fd, parts, count));
}

static ssize_t write_at(int fd, const void *data, size_t size, off64_t at,
                        ssize_t (*real)(int, const void *, size_t, off64_t)) {
    if (!is_tracked(fd)) return real(fd, data, size, at);
    struct iovec parts[1] = {{(void *)data, size}};
    int count = 1;
    RECORDED(real(fd, data, size, at));
}

EXPORT ssize_t pwrite(int fd, const void *data, size_t size, off_t at) {
    REAL(ssize_t, pwrite, int, const void *, size_t, off64_t);
    return write_at(fd, data, size, at, real);
}

EXPORT ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) {
    REAL(ssize_t, pwrite64, int, const void *, size_t, off64_t);
    return write_at(fd, data, size, at, real);
}

static ssize_t write_parts_at(int fd, const struct iovec *parts, int count, off64_t at,
                              ssize_t (*real)(int, const struct iovec *, int, off64_t)) {
    if (!is_tracked(fd)) return real(fd, parts, count, at);
    RECORDED(real(fd, parts, count, at));
}

EXPORT ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t at) {
    REAL(ssize_t, pwritev, int, const struct iovec *, int, off64_t);
    return write_parts_at(fd, parts, count, at, real);
}

EXPORT ssize_t pwritev64(int fd, const struct iovec *parts, int count, off64_t at) {
    REAL(ssize_t, pwritev64, int, const struct iovec *, int, off64_t);
    return write_parts_at(fd, parts, count, at, real);
}

static ssize_t write_flags(int fd, const struct iovec *parts, int count, off64_t at, int flags,
                           ssize_t (*real)(int, const struct iovec *, int, off64_t, int)) {
    if (!is_tracked(fd)) return real(fd, parts, count, at, flags);
    if (at == -1) at = place(fd);
    RECORDED(real(fd, parts, count, at, flags));
}

EXPORT ssize_t pwritev2(int fd, const struct iovec *parts, int count, off_t at, int flags) {
    REAL(ssize_t, pwritev2, int, const struct iovec *, int, off64_t, int);
    return write_flags(fd, parts, count, at, flags, real);
}

EXPORT ssize_t pwritev64v2(int fd, const struct iovec *parts, int count, off64_t at, int flags) {
    REAL(ssize_t, pwritev64v2, int, const struct iovec *, int, off64_t, int);
    return write_flags(fd, parts, count, at, flags, real);
}

static int resized(int fd, off64_t size, int (*real)(int, off64_t)) {
    if (!is_tracked(fd)) return real(fd, size);
    lock();
    int result = real(fd, size), error = errno;
    if (result == 0) put('T', fd, size, 0, NULL, NULL, 0, 0);
    unlock();
    errno = error;
    return result;
}

EXPORT int ftruncate(int fd, off_t size) {
    REAL(int, ftruncate, int, off64_t);
    return resized(fd, size, real);
}

EXPORT int ftruncate64(int fd, off64_t size) {
    REAL(int, ftruncate64, int, off64_t);
    return resized(fd, size, real);
}

static int allocated(int fd, off64_t at, off64_t size, int (*real)(int, off64_t, off64_t)) {
    if (!is_tracked(fd)) return real(fd, at, size);
    lock();
    int result = real(fd, at, size);
    if (result == 0) put('A', fd, at + size, 0, NULL, NULL, 0, 0);
    unlock();
    return result;
}

EXPORT int posix_fallocate(int fd, off_t at, off_t size) {
    REAL(int, posix_fallocate, int, off64_t, off64_t);
    return allocated(fd, at, size, real);
}

EXPORT int posix_fallocate64(int fd, off64_t at, off64_t size) {
    REAL(int, posix_fallocate64, int, off64_t, off64_t);
    return allocated(fd, at, size, real);
}

/* --- durability ------------------------------------------------------------------------------- */

static int synced(int fd, int (*real)(int)) {
    if (!is_tracked(fd)) return real(fd);
    lock();
    int64_t number = ++syncs;
    put('S', fd, number, 0, NULL, NULL, 0, 0);
    unlock();
    int result = real(fd), error = errno;
    lock();
    put(result == 0 ? 'E' : 'F', fd, number, 0, NULL, NULL, 0, 0);
    unlock();
    errno = error;
    return result;
}

EXPORT int fsync(int fd) {
    REAL(int, fsync, int);
    return synced(fd, real);
}

EXPORT int fdatasync(int fd) {
    REAL(int, fdatasync, int);
    return synced(fd, real);
}
