#include "support/emulated_nccl/segment.hpp"

#include <cstring>
#include <fcntl.h>
#include <string>
#include <sys/mman.h>
#include <unistd.h>

#include "support/emulated_nccl/calls.hpp"

namespace guozhuang::emulated_nccl {
namespace {

struct Name {
    std::array<char, 16> mark{"emulated NCCL"};
    int process = 0, file = 0;
};

}  // namespace

ncclUniqueId make_segment() {
    Name name;
    name.process = ::getpid();
    name.file = ::memfd_create("emulated-nccl", MFD_CLOEXEC);
    if (name.file < 0 || ::ftruncate(name.file, sizeof(Segment)) != 0)
        throw Refusal{ncclSystemError, "no shared memory"};
    ncclUniqueId id{};
    std::memcpy(&id, &name, sizeof name);
    return id;
}

std::shared_ptr<Segment> open_segment(const ncclUniqueId& id) {
    Name name;
    std::memcpy(static_cast<void*>(&name), &id, sizeof name);
    if (name.mark != Name{}.mark) throw Refusal{ncclInvalidArgument, "the id is none"};
    const auto path = "/proc/" + std::to_string(name.process) + "/fd/" + std::to_string(name.file);
    const int file = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
    if (file < 0) throw Refusal{ncclSystemError, "rank 0 is not there any more"};
    void* memory = ::mmap(nullptr, sizeof(Segment), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    ::close(file);
    if (memory == MAP_FAILED) throw Refusal{ncclSystemError, "no address space"};
    return {static_cast<Segment*>(memory),
            [](Segment* mapped) { ::munmap(mapped, sizeof *mapped); }};
}

}  // namespace guozhuang::emulated_nccl
