#pragma once

#include <guozhuang/export.hpp>
#include <source_location>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace guozhuang {

/// The kind of an error; its message says the rest.
enum class ErrorCode {
    // Thrown on the caller's rank alone, before anything is sent.
    /// An argument cannot be used: a root, splits, a non-contiguous tensor, a dtype.
    invalid_argument = 0,
    duplicate_name = 1,   ///< an operation of that name is still pending on this rank
    not_initialised = 2,  ///< no session, or it has been shut down
    configuration = 3,    ///< an environment variable or option has an unacceptable value
    // Thrown on every rank of the operation. The library stays usable, except after a timeout.
    /// Ranks submitted different shapes, dtypes, operations, reduce ops, roots, scales or devices.
    mismatch = 4,
    departed = 5,   ///< a rank that the operation needs has shut down without submitting it
    discarded = 6,  ///< a rank has discarded the batch, or a plan's round; the message says why
    /// An operation has waited longer than its limit, which ends the job; or a rank did not come
    /// when the session started.
    timeout = 7,
    // The job cannot go on.
    aborted = 8,    ///< the job was aborted; the message carries the first cause
    rank_died = 9,  ///< a rank's process has ended without closing its session; thrown as RankDied
    wire = 10,      ///< the transport (MPI) reported an error
    out_of_memory = 11,  ///< memory, or another resource of the machine, is used up
    unavailable = 12,    ///< a feature or device is not usable here; the message says why
    internal = 13        ///< a defect of the library
};
/// The ErrorCode with the highest number.
constexpr ErrorCode last_of(ErrorCode) noexcept {
    return ErrorCode::internal;
}

/// "invalid_argument", "mismatch" ...
GUOZHUANG_API std::string_view name_of(ErrorCode code) noexcept;

/// The one error type of the library. what() says what happened, on which tensor and ranks, with
/// both values, and what to do.
class GUOZHUANG_API Error : public std::runtime_error {
public:
    /// Facts that a program may use; each may be empty.
    struct Facts {
        std::string tensor = {};      ///< its name
        std::string operation = {};   ///< "allreduce", "step" ...
        std::vector<int> ranks = {};  ///< the ranks at fault, where that is known
    };

    /// `message` becomes what(). `where` is the library's line that throws.
    Error(ErrorCode code, const std::string& message,
          std::source_location where = std::source_location::current());
    Error(ErrorCode code, const std::string& message, Facts facts,
          std::source_location where = std::source_location::current());
    ~Error() override;

    ErrorCode code() const noexcept { return code_; }
    const std::string& tensor() const& noexcept { return facts_.tensor; }
    std::string tensor() && noexcept { return std::move(facts_.tensor); }
    const std::string& operation() const& noexcept { return facts_.operation; }
    std::string operation() && noexcept { return std::move(facts_.operation); }
    const std::vector<int>& ranks() const& noexcept { return facts_.ranks; }
    std::vector<int> ranks() && noexcept { return std::move(facts_.ranks); }
    std::source_location where() const noexcept { return where_; }

private:
    ErrorCode code_;
    Facts facts_;
    std::source_location where_;
};

/// A rank's process has ended without closing its session: it was killed, or has crashed. what()
/// names rank, host and process, how it ended, what it was doing, and the operation that waits for
/// it. The job is over: every pending and every later operation of every rank of the host fails
/// with this.
class GUOZHUANG_API RankDied : public Error {
public:
    RankDied(const std::string& message, Facts facts,
             std::source_location where = std::source_location::current());
    ~RankDied() override;

    int rank() const noexcept { return ranks().front(); }  ///< the rank that died
};

}  // namespace guozhuang
