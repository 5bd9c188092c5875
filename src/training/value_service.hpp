#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <guozhuang/handle.hpp>
#include <guozhuang/parameter_server.hpp>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/mutex.hpp"
#include "base/wait.hpp"

namespace guozhuang {

/// The head of each message between a rank and a server; floats follow, one for each element of the
/// server's part.
struct ServiceHeader {
    /// `left`: the rank has ended without finish().
    enum class Kind : std::int32_t { gradient, finished, left, values, dropped, failed };
    std::int64_t version = 0;    ///< updates that the values have had
    std::int64_t staleness = 0;  ///< of the gradient that this answers, if it was used
    Kind kind = Kind::gradient;
    std::int32_t culprit = -1;    ///< if failed
    std::array<char, 240> why{};  ///< if failed; ends with a 0
};

/// A message, which an operation keeps alive.
using ServiceMessage = std::shared_ptr<std::vector<std::byte>>;
ServiceMessage make_service_message(std::size_t elements);
TensorView view_of(const ServiceMessage& message);
ServiceHeader header_of(const ServiceMessage& message);
void set_header(const ServiceMessage& message, const ServiceHeader& header);
std::span<float> elements_of(const ServiceMessage& message);

/// Some consecutive elements of a parameter.
struct ServedRange {
    std::size_t parameter = 0, first = 0, count = 0;
};

/// Serves a part of the values to all ranks of a set, on a thread for each.
class ValueService {
public:
    ValueService(detail::ShardRule rule, std::vector<ServedRange> ranges, std::vector<float> values,
                 const ParameterServerOptions& options, ProcessSet ranks);
    /// Waits for no rank. The next step of ranks that still train fails.
    ~ValueService();
    ValueService(const ValueService&) = delete;
    ValueService& operator=(const ValueService&) = delete;

    /// Throws std::system_error.
    void start();
    /// Waits until all ranks have finished, and returns the values.
    const std::vector<float>& wait();

private:
    struct Client {
        ServiceMessage request, reply;
        std::int64_t steps = 0;
        bool trains = true;
        bool waits = false;  ///< its gradient waits for others
        ServiceHeader answer = {};
        std::thread thread;
    };

    int own_rank() const { return rank_of_[static_cast<std::size_t>(ranks_.rank())]; }
    void serve(std::size_t client);
    /// Returns false if the service stops.
    bool wait_for(const Handle& message) GUOZHUANG_EXCLUDES(mutex_);
    bool receive(std::size_t client) GUOZHUANG_EXCLUDES(mutex_);
    Handle reply(std::size_t client) GUOZHUANG_EXCLUDES(mutex_);
    /// Returns whether the rank waits for an answer.
    bool accept(std::size_t client) GUOZHUANG_EXCLUDES(mutex_);
    void accept_gradient(std::size_t client, std::int64_t version) GUOZHUANG_REQUIRES(mutex_);
    /// From now on this is the answer to every rank. The first failure counts.
    void fail(int culprit, std::string_view why) noexcept GUOZHUANG_REQUIRES(mutex_);
    void wait_for_answer(std::size_t client) GUOZHUANG_EXCLUDES(mutex_);
    bool may_answer(std::size_t client) GUOZHUANG_EXCLUDES(mutex_);
    std::string late_ranks(std::size_t client) GUOZHUANG_EXCLUDES(mutex_);
    void update_if_complete() GUOZHUANG_REQUIRES(mutex_);
    void update(const std::vector<std::size_t>& clients) GUOZHUANG_REQUIRES(mutex_);
    std::int64_t slowest() const GUOZHUANG_REQUIRES(mutex_);

    const detail::ShardRule rule_;
    const std::vector<ServedRange> ranges_;
    const ParameterServerOptions options_;
    const ProcessSet ranks_;
    const std::vector<int> rank_of_;  ///< each client's rank of the job

    base::Doorbell bell_;  ///< rings when something below has changed
    base::Mutex mutex_;
    std::vector<float> values_ GUOZHUANG_GUARDED_BY(mutex_), gradient_ GUOZHUANG_GUARDED_BY(mutex_);
    std::vector<std::vector<float>> state_ GUOZHUANG_GUARDED_BY(mutex_);
    std::int64_t version_ GUOZHUANG_GUARDED_BY(mutex_) = 0;
    std::optional<ServiceHeader> failure_ GUOZHUANG_GUARDED_BY(mutex_);
    bool stops_ GUOZHUANG_GUARDED_BY(mutex_) = false;
    /// Each thread has its own messages to itself, except while `waits`.
    std::vector<Client> clients_;
};

}  // namespace guozhuang
