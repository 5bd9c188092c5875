#pragma once

#include <string>

namespace guozhuang::test {

/// Takes from this process what a machine may lack, once MPI has begun: "RESOURCE@RANK:AMOUNT", on
/// one rank or, for RANK `all`, on every one.
///
///     files         so many descriptors more can be opened
///     memory        so many KiB more can be mapped
///     file_bytes    no file grows beyond so many bytes
///     threads       so many threads more can be started
///     allocation    so many allocations more succeed, then one fails
///     allocations   so many allocations more succeed, and then none
///
/// RESOURCE may also be a call of the system's: memfd_create, ftruncate, posix_fallocate, mmap,
/// mremap, madvise, eventfd, pidfd_open or futex (to wait). So many more succeed, then one fails,
/// which is said on standard error.
void make_scarce(const std::string& what, int rank);

}  // namespace guozhuang::test
