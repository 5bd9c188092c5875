#pragma once

#include <cstdint>
#include <guozhuang/error.hpp>
#include <memory>
#include <string>
#include <vector>

#include "collectives/policy.hpp"
#include "protocol/codec.hpp"
#include "protocol/description.hpp"
#include "protocol/name.hpp"
#include "protocol/submitter.hpp"

namespace guozhuang::protocol {

/// One request of an entry.
struct Item {
    Name name;
    std::uint32_t id = 0;                ///< the name's id from here on; 0: none
    SharedDescription description = {};  ///< execute: for absent ranks, if there are any
    /// The submitter on this rank; null if there is none. It does not travel.
    std::shared_ptr<Submitter> submitter = {};
    friend bool operator==(const Item& one, const Item& other) noexcept {
        return one.name == other.name && one.id == other.id &&
               are_same(one.description, other.description);
    }
};

/// One entry of the log. All ranks hold the same log and execute it in order.
struct LogEntry {
    enum class Kind : std::uint8_t {
        execute = 0,        ///< run these requests, fused
        fail = 1,           ///< fail these requests with the error
        evict = 2,          ///< the ids of these names are void
        join = 3,           ///< every rank has joined, or shut down instead
        all_shut_down = 4,  ///< every rank has shut down; nothing follows
        /// A rank has quit at once; nothing follows, because every operation would need it.
        quit = 5
    };
    friend constexpr Kind last_of(Kind) noexcept { return Kind::quit; }
    Kind kind = Kind::execute;
    std::vector<Item> items = {};   ///< execute, fail, evict, join
    selection::Policy policy = {};  ///< execute
    /// execute: the ranks that have joined, and contribute neutral values to items they have not
    /// submitted
    std::vector<int> absent = {};
    /// execute: the tensors of all ranks, by group rank, if they have sent them along; then there
    /// is one item. Empty: the data moves when the entry is executed.
    Bytes contributions = {};
    ErrorCode code = ErrorCode::internal;  ///< fail, join, quit
    int culprit = -1;  ///< fail, join, quit: the world rank that made ranks leave; -1: none
    /// fail: the error; join: the error if it has failed; quit: "rank 2 has shut down (why)"
    std::string text = {};
    std::string tensor = {};     ///< fail, join
    std::string operation = {};  ///< fail, join
    /// fail: the ranks at fault; quit: the rank that quit; join: the last to join, or those at
    /// fault
    std::vector<int> ranks = {};
    friend bool operator==(const LogEntry&, const LogEntry&) = default;
};

}  // namespace guozhuang::protocol
