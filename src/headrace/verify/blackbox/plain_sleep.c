/* The kernel's own clock_nanosleep, before libfaketime's: with a monotonic clock that is not faked,
 * libfaketime 0.9.10 answers every call with EINVAL, and Python sleeps by nothing else. */
#include <errno.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int clock_nanosleep(clockid_t clock, int flags, const struct timespec *wanted,
                    struct timespec *left) {
    return syscall(SYS_clock_nanosleep, clock, flags, wanted, left) == 0 ? 0 : errno;
}
