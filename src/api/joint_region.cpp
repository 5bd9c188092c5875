#include "api/joint_region.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <guozhuang/error.hpp>
#include <guozhuang/operations.hpp>
#include <utility>

#include "api/process_set_state.hpp"
#include "base/log.hpp"
#include "base/process.hpp"
#include "wire/shm/share_together.hpp"

namespace guozhuang::api {
namespace {

/// Every rank's value, by rank; T{} for ranks that have joined, or have sent something else under
/// this name.
template <class T>
std::vector<T> gather(const T& own, const std::string& name, Session* session) {
    std::vector<std::uint8_t> bytes(sizeof own);
    std::memcpy(bytes.data(), &own, sizeof own);
    const auto gathered = all_gather(bytes, {.name = name, .session = session});
    std::vector<T> all(gathered.rows.size());
    const auto* next = gathered.bytes.data();
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
        if (std::cmp_equal(gathered.rows[rank], sizeof own))
            std::memcpy(&all[rank], next, sizeof own);
        next += gathered.rows[rank];
    }
    return all;
}

/// Tells the others about a rank's local region. Plain bytes.
struct Offer {
    std::uint64_t bytes = 0;
    wire::SharedFile::Offer file = {};
};

/// The local regions of the other ranks, by rank; this rank's is left empty.
std::vector<wire::SharedFile> attach(const std::vector<Offer>& offers, int self) {
    if (std::ranges::any_of(offers, [](const Offer& each) { return each.file.process == 0; }))
        throw Error(ErrorCode::unavailable, "a rank has joined");
    std::vector<wire::SharedFile> files(offers.size());
    for (std::size_t rank = 0; rank < offers.size(); ++rank) {
        if (std::cmp_equal(rank, self)) continue;
        // Ranks that are threads attach too: a rank that ends its region takes it from nobody.
        files[rank] = wire::SharedFile::attach(offers[rank].file, offers[rank].bytes);
        files[rank].close_file();
    }
    return files;
}

}  // namespace

JointRegion::JointRegion(Session* session) {
    const auto runtime = runtime_of(session);
    runtime_ = runtime;
    world_ = runtime->world()->engine().shared_from_this();
    regions_ = runtime->transport().regions();
}

JointRegion::JointRegion(Session* session, std::string_view what,
                         const std::function<LocalRegion()>& open)
    : JointRegion(session) {
    auto& transport = runtime_of(session)->transport();
    if (transport.topology().hosts() == 1 && transport.stage_bytes() > 0)
        rendezvous(session, transport, what, open);
}

namespace {

bool try_between_bundles(std::span<const std::shared_ptr<SetRuntime>> sets,
                         const std::function<bool()>& action) {
    if (sets.empty()) return action();
    return sets.front()->engine().try_between_bundles(
        [&] { return try_between_bundles(sets.subspan(1), action); });
}

}  // namespace

/// A bundle must find all of the region or none of it, and must not write to its pages while they
/// are put back.
JointRegion::~JointRegion() {
    if (!is_open() || base::is_forked()) return;
    try {
        const auto remove = [this] {
            regions_->remove(id_);
            return true;
        };
        if (const auto all = set_runtimes(); !all.empty())
            world_->drive_until([&] { return try_between_bundles(all, remove); },
                                base::no_deadline);
    } catch (const std::bad_alloc&) {
        end_job();
    } catch (const std::exception& error) {
        base::log(LogLevel::debug, "a region ends with the job: {}", error.what());
    }
    regions_->remove(id_);  // if it is still there: the job is over
}

/// Called for lack of memory; allocates nothing.
void JointRegion::end_job() noexcept {
    try {
        world_->end(std::current_exception());
    } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): what end() throws
    }
}

bool JointRegion::release(std::span<const std::byte> memory) noexcept try {
    const std::less<> before;
    const auto overlaps = [&](const TensorView& tensor) {
        if (tensor.data == nullptr) return false;
        const std::span<const std::byte> other = tensor.memory();
        return before(other.data(), memory.data() + memory.size()) &&
               before(memory.data(), other.data() + other.size());
    };
    const auto is_ours = [&](const engine::SharedTensors& tensors) {
        return std::ranges::any_of(tensors, overlaps);
    };
    for (const auto& set_runtime : set_runtimes()) {
        try {
            set_runtime->engine().release_tensors(is_ours);
        } catch (const std::exception& error) {
            base::log(LogLevel::debug, "shared memory ends with the job: {}", error.what());
        }
    }
    return !world_->left_memory_on_loan() &&
           std::ranges::none_of(set_runtimes(), [](const auto& set_runtime) {
               return set_runtime->engine().left_memory_on_loan();
           });
} catch (const std::bad_alloc&) {
    return false;  // it stays allocated
}

/// This rank's engines, of the world and the sets; none if the session has ended, nor in a child of
/// fork().
std::vector<std::shared_ptr<SetRuntime>> JointRegion::set_runtimes() const {
    const auto runtime = base::is_forked() ? nullptr : runtime_.lock();
    if (!runtime) return {};
    auto all = runtime->sets()->set_runtimes();
    all.push_back(runtime->world());
    return all;
}

void JointRegion::rendezvous(Session* session, wire::Transport& transport, std::string_view what,
                             const std::function<LocalRegion()>& open) {
    const std::string name(what);
    LocalRegion own;
    std::uint64_t id = 0;
    std::vector<wire::SharedFile> theirs;
    const auto failure = wire::share_together(
        [&, step = name](const auto& mine) mutable {
            return gather(mine, std::exchange(step, name + "/attached"), session);
        },
        [&] {
            own = open();
            return Offer{.bytes = own.file->memory().size(), .file = own.file->offer()};
        },
        [&](const std::vector<Offer>& offers) {
            theirs = attach(offers, transport.rank());
            id = offers.front().file.nonce;
        });
    if (!failure) {
        std::vector<std::span<std::byte>> mappings;
        for (const auto& file : theirs) mappings.push_back(file.memory());
        mappings[static_cast<std::size_t>(transport.rank())] = own.file->memory();
        regions_->add(id, own.ranges, std::move(mappings), std::move(own.unshare));
        theirs_ = std::move(theirs);
        id_ = id;
        return;
    }
    const bool is_culprit = failure->rank == transport.rank();
    if (failure->is_refusal && is_culprit) std::rethrow_exception(failure->own);
    if (failure->is_refusal)
        throw Error(ErrorCode::invalid_argument,
                    fmt::format("rank {}: {}", failure->rank, failure->cause),
                    {.operation = name, .ranks = {failure->rank}});
    if (is_culprit)
        base::log_warning(
            fmt::format("{} is private: {}; what lies there is reduced as other memory is", what,
                        failure->cause));
}

}  // namespace guozhuang::api
