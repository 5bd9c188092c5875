#pragma once

#include <cstddef>
#include <cstdint>
#include <guozhuang/handle.hpp>
#include <guozhuang/parameter_server.hpp>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.hpp"
#include "base/wait.hpp"

namespace guozhuang {

/// The head of each message between a rank and a server; floats follow, one for each element of the
/// server's part.
struct ServiceHeader {
    enum class Kind : std::int32_t { gradient, finished, values, dropped, failed };
    std::int64_t version = 0;    ///< updates that the values have had
    std::int64_t staleness = 0;  ///< of the gradient that this answers; if failed, the culprit
    Kind kind = Kind::gradient;
};

/// A message, which an operation keeps alive.
using ServiceMessage = std::shared_ptr<std::vector<std::byte>>;
ServiceMessage make_service_message(std::size_t elements);
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
    /// Waits for no rank.
    ~ValueService();
    ValueService(const ValueService&) = delete;
    ValueService& operator=(const ValueService&) = delete;

    /// Waits until all ranks have finished, and returns the values.
    const std::vector<float>& wait();

private:
    struct Client {
        ServiceMessage request, reply;
        std::int64_t steps = 0;
        bool trains = true;
        bool waits = false;  ///< its gradient waits for others
        std::optional<ServiceHeader> answer = {};
        std::thread thread;
    };

    void serve(std::size_t client);
    /// Returns false if the service stops.
    bool wait_for(const Handle& message) GUOZHUANG_EXCLUDES(mutex_);
    bool receive(std::size_t client) GUOZHUANG_EXCLUDES(mutex_);
    void take(std::size_t client) GUOZHUANG_REQUIRES(mutex_);
    void wait_for_answer(std::size_t client) GUOZHUANG_EXCLUDES(mutex_);
    bool may_answer(std::size_t client) GUOZHUANG_EXCLUDES(mutex_);
    std::string late_ranks(std::size_t client) GUOZHUANG_EXCLUDES(mutex_);
    void fill_reply(std::size_t client) GUOZHUANG_EXCLUDES(mutex_);
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
    /// The rank that has ended too early.
    std::optional<int> failed_ GUOZHUANG_GUARDED_BY(mutex_);
    bool stops_ GUOZHUANG_GUARDED_BY(mutex_) = false;
    /// Each thread has its own messages to itself, except while `waits`.
    std::vector<Client> clients_;
};

}  // namespace guozhuang
