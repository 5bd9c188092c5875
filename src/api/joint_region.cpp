#include "api/joint_region.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <guozhuang/error.hpp>
#include <guozhuang/operations.hpp>
#include <utility>

#include "api/process_set_state.hpp"
#include "base/log.hpp"
#include "base/process.hpp"

namespace guozhuang::api {
namespace {

/// Every rank's value, by rank; none of those that have joined.
template <class T>
std::vector<T> gather(const T& own, const std::string& name, Session* session) {
    std::vector<std::uint8_t> bytes(sizeof own);
    std::memcpy(bytes.data(), &own, sizeof own);
    const auto gathered = all_gather(bytes, {.name = name, .session = session});
    std::vector<T> all(gathered.bytes.size() / sizeof own);
    std::memcpy(all.data(), gathered.bytes.data(), all.size() * sizeof own);
    return all;
}

}  // namespace

/// What a rank says about its part, and what came of it: plain bytes.
struct JointRegion::Offer {
    std::uint64_t id = 0;  ///< the first rank's is everybody's
    std::uint64_t bytes = 0;
    wire::SharedFile::Offer file = {};
};

struct JointRegion::Outcome {
    enum class Kind : std::uint32_t { attached, failed, failed_for_others };
    int rank = 0;
    Kind kind = Kind::attached;
};

JointRegion::JointRegion(Session* session, std::string_view what, const std::function<Part()>& open) {
    const auto runtime = runtime_of(session);
    runtime_ = runtime;
    world_ = runtime->world()->engine().shared_from_this();
    regions_ = runtime->transport().regions();
    auto& transport = runtime->transport();
    if (transport.host_count() == 1 && !transport.staging().empty()) meet(session, transport, what, open);
}

namespace {

void between_bundles(std::span<const std::shared_ptr<SetMember>> members, const std::function<void()>& action) {
    if (members.empty()) return action();
    members.front()->engine().between_bundles([&] { between_bundles(members.subspan(1), action); });
}

}  // namespace

/// A bundle must find all of the region or nothing, and write to none of its pages while they are put back.
JointRegion::~JointRegion() {
    if (!is_open() || base::is_forked()) return;
    try {
        between_bundles(members(), [this] { regions_->remove(id_); });
    } catch (const std::exception& error) {
        base::log(LogLevel::debug, "a region ends with the job: {}", error.what());
    }
    regions_->remove(id_);  // if it is still there: the job is over
}

bool JointRegion::release(std::span<const std::byte> memory) noexcept {
    const std::less<> before;
    const auto overlaps = [&](const TensorView& tensor) {
        const std::span<const std::byte> other = tensor.memory();
        return before(other.data(), memory.data() + memory.size()) && before(memory.data(), other.data() + other.size());
    };
    const auto concerns = [&](const engine::Request& request) { return std::ranges::any_of(*request.tensors, overlaps); };
    for (const auto& member : members()) {
        try {
            member->engine().release_tensors(concerns);
        } catch (const std::exception& error) {
            base::log(LogLevel::debug, "shared memory ends with the job: {}", error.what());
        }
    }
    return !world_->left_memory_on_loan();
}

/// This rank's parts in the world and the sets; none of a session that has ended, nor in a child of fork().
std::vector<std::shared_ptr<SetMember>> JointRegion::members() const {
    const auto runtime = base::is_forked() ? nullptr : runtime_.lock();
    if (!runtime) return {};
    auto members = runtime->sets()->members();
    members.push_back(runtime->world());
    return members;
}

/// Whoever cannot take part says so to the others, who wait for its word.
void JointRegion::meet(Session* session, wire::Transport& transport, std::string_view what, const std::function<Part()>& open) {
    Outcome outcome{.rank = transport.rank()};
    std::string failure;
    const auto attempt = [&](auto&& step) {
        try {
            step();
        } catch (const std::exception& error) {
            outcome.kind = Outcome::Kind::failed;
            failure = error.what();
        }
    };
    Part own;
    Offer offer{.id = regions_->next_id()};
    attempt([&] {
        own = open();
        offer.bytes = own.file->memory().size();
        offer.file = own.file->offer();
    });
    const std::string name(what);
    const auto offers = gather(offer, name, session);
    const bool all_have = std::ranges::all_of(offers, [](const Offer& each) { return each.file.process != 0; });
    std::vector<std::span<std::byte>> parts;
    if (all_have)
        attempt([&] { parts = attach(offers, own, transport); });
    else if (failure.empty())
        outcome.kind = Outcome::Kind::failed_for_others;
    const auto outcomes = gather(outcome, name + "/attached", session);
    if (std::ranges::all_of(outcomes, [](const Outcome& each) { return each.kind == Outcome::Kind::attached; })) {
        id_ = offers.front().id;
        regions_->add(id_, std::move(own.ranges), std::move(parts), std::move(own.retreat));
        return;
    }
    theirs_.clear();
    const auto speaker = std::ranges::find(outcomes, Outcome::Kind::failed, &Outcome::kind);
    if (speaker != outcomes.end() && speaker->rank == transport.rank())
        base::log_warning(fmt::format("{} is private: {}; what lies there is reduced as other memory is", what, failure));
}

std::vector<std::span<std::byte>> JointRegion::attach(const std::vector<Offer>& offers, const Part& own, wire::Transport& transport) {
    if (std::cmp_not_equal(offers.size(), transport.size())) throw Error(ErrorCode::unavailable, "a rank has joined");
    std::vector<std::span<std::byte>> parts;
    for (std::size_t rank = 0; rank < offers.size(); ++rank) {
        const auto& offer = offers[rank];
        if (std::cmp_equal(rank, transport.rank()))
            parts.push_back(own.file->memory());
        else  // ranks that are threads, too: who ends its part takes it from nobody
            parts.push_back(theirs_.emplace_back(wire::SharedFile::attach(offer.file, offer.bytes)).memory());
    }
    for (auto& file : theirs_) file.close_file();
    return parts;
}

}  // namespace guozhuang::api
