#include "runtime/joint_region.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <guozhuang/error.hpp>
#include <guozhuang/operations.hpp>
#include <utility>

#include "base/error_text.hpp"
#include "base/log.hpp"
#include "base/process.hpp"
#include "runtime/process_set_state.hpp"

namespace guozhuang::api {
namespace {

/// Every rank's bytes, by rank; of those that have joined, none.
std::vector<std::string> gather(std::string_view own, const std::string& name, Session* session) {
    std::vector<std::uint8_t> bytes(own.begin(), own.end());
    const auto gathered = all_gather(bytes, {.name = name, .session = session});
    std::vector<std::string> all;
    const auto* next = reinterpret_cast<const char*>(gathered.bytes.data());
    for (const auto count : gathered.rows) {
        all.emplace_back(next, static_cast<std::size_t>(count));
        next += count;
    }
    return all;
}

// What came of it on a rank. After `failed` and `refused` it says why.
constexpr char attached = '+', failed = '-', failed_for_others = ' ', refused = '!';

/// The first rank that says so, or as many as there are.
std::size_t first_that(const std::vector<std::string>& outcomes, char kind) {
    return static_cast<std::size_t>(
        std::ranges::find_if(outcomes, [&](const auto& each) { return each.starts_with(kind); }) -
        outcomes.begin());
}

}  // namespace

/// What a rank says about its local region: plain bytes.
struct JointRegion::Offer {
    std::uint64_t id = 0;  ///< the first rank's is everybody's
    std::uint64_t bytes = 0;
    wire::SharedFile::Offer file = {};
};

JointRegion::JointRegion(Session* session, std::string_view what,
                         const std::function<LocalRegion()>& open) {
    const auto runtime = runtime_of(session);
    runtime_ = runtime;
    world_ = runtime->world()->engine().shared_from_this();
    regions_ = runtime->transport().regions();
    auto& transport = runtime->transport();
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

/// A bundle must find all of the region or nothing, and write to none of its pages while they are
/// put back.
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
    } catch (const std::exception& error) {
        base::log(LogLevel::debug, "a region ends with the job: {}", error.what());
    }
    regions_->remove(id_);  // if it is still there: the job is over
}

bool JointRegion::release(std::span<const std::byte> memory) noexcept {
    const std::less<> before;
    const auto overlaps = [&](const TensorView& tensor) {
        const std::span<const std::byte> other = tensor.memory();
        return before(other.data(), memory.data() + memory.size()) &&
               before(memory.data(), other.data() + other.size());
    };
    const auto concerns = [&](const engine::Request& request) {
        return std::ranges::any_of(*request.tensors, overlaps);
    };
    for (const auto& set_runtime : set_runtimes()) {
        try {
            set_runtime->engine().release_tensors(concerns);
        } catch (const std::exception& error) {
            base::log(LogLevel::debug, "shared memory ends with the job: {}", error.what());
        }
    }
    return !world_->left_memory_on_loan() &&
           std::ranges::none_of(set_runtimes(), [](const auto& set_runtime) {
               return set_runtime->engine().left_memory_on_loan();
           });
}

/// This rank's, of the world and the sets; none of a session that has ended, nor in a child of
/// fork().
std::vector<std::shared_ptr<SetRuntime>> JointRegion::set_runtimes() const {
    const auto runtime = base::is_forked() ? nullptr : runtime_.lock();
    if (!runtime) return {};
    auto all = runtime->sets()->set_runtimes();
    all.push_back(runtime->world());
    return all;
}

/// Whoever cannot take part says so to the others, who wait for its word.
void JointRegion::rendezvous(Session* session, wire::Transport& transport, std::string_view what,
                             const std::function<LocalRegion()>& open) {
    std::string outcome(1, attached);
    std::exception_ptr problem;
    const auto attempt = [&](auto&& step) {
        try {
            step();
        } catch (const std::exception& error) {
            problem = std::current_exception();
            outcome = (base::code_of(problem) == ErrorCode::invalid_argument ? refused : failed) +
                      std::string(error.what());
        }
    };
    LocalRegion own;
    Offer offer{.id = regions_->next_id()};
    attempt([&] {
        own = open();
        offer.bytes = own.file->memory().size();
        offer.file = own.file->offer();
    });
    const std::string name(what);
    std::vector<Offer> offers;
    for (const auto& bytes :
         gather({reinterpret_cast<const char*>(&offer), sizeof offer}, name, session))
        if (bytes.size() == sizeof offer)
            std::memcpy(&offers.emplace_back(), bytes.data(), sizeof offer);
    const bool all_have =
        std::ranges::all_of(offers, [](const Offer& each) { return each.file.process != 0; });
    std::vector<std::span<std::byte>> mappings;
    if (all_have)
        attempt([&] { mappings = attach(offers, own, transport); });
    else if (!problem)
        outcome = failed_for_others;
    const auto outcomes = gather(outcome, name + "/attached", session);
    if (std::ranges::all_of(
            outcomes, [](const auto& each) { return each.empty() || each.front() == attached; })) {
        id_ = offers.front().id;
        regions_->add(id_, own.ranges, std::move(mappings), std::move(own.unshare));
        return;
    }
    theirs_.clear();
    const auto self = static_cast<std::size_t>(transport.rank());
    if (const auto rank = first_that(outcomes, refused); rank == self) {
        std::rethrow_exception(problem);
    } else if (rank < outcomes.size()) {
        throw Error(ErrorCode::invalid_argument,
                    fmt::format("rank {}: {}", rank, outcomes[rank].substr(1)),
                    {.operation = name, .ranks = {static_cast<int>(rank)}});
    }
    if (first_that(outcomes, failed) == self)
        base::log_warning(
            fmt::format("{} is private: {}; what lies there is reduced as other memory is", what,
                        outcome.substr(1)));
}

std::vector<std::span<std::byte>> JointRegion::attach(const std::vector<Offer>& offers,
                                                      const LocalRegion& own,
                                                      wire::Transport& transport) {
    if (std::cmp_not_equal(offers.size(), transport.size()))
        throw Error(ErrorCode::unavailable, "a rank has joined");
    std::vector<std::span<std::byte>> mappings;
    for (std::size_t rank = 0; rank < offers.size(); ++rank) {
        const auto& offer = offers[rank];
        if (std::cmp_equal(rank, transport.rank()))
            mappings.push_back(own.file->memory());
        else  // ranks that are threads, too: who ends its region takes it from nobody
            mappings.push_back(
                theirs_.emplace_back(wire::SharedFile::attach(offer.file, offer.bytes)).memory());
    }
    for (auto& file : theirs_) file.close_file();
    return mappings;
}

}  // namespace guozhuang::api
