#pragma once

#include <string>

namespace guozhuang::test {

/// Limits a resource of this process, once MPI has begun: "RESOURCE@RANK:AMOUNT", on one rank or,
/// for RANK `all`, on every rank.
///
///     files         AMOUNT more descriptors can be opened
///     memory        AMOUNT more KiB can be mapped
///     file_bytes    no file grows beyond AMOUNT bytes
///     threads       AMOUNT more threads can be started
///     allocation    AMOUNT more allocations succeed, then one fails
///     allocations   AMOUNT more allocations succeed, then none
///
/// RESOURCE may also be a system call: memfd_create, ftruncate, posix_fallocate, mmap, mremap,
/// madvise, eventfd, pidfd_open or futex (to wait). AMOUNT more calls succeed, then one fails,
/// which is reported on standard error.
void make_scarce(const std::string& what, int rank);

}  // namespace guozhuang::test
