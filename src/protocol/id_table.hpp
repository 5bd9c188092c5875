#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "protocol/description.hpp"
#include "protocol/log_entry.hpp"

namespace guozhuang::protocol {

/// Which names have an id, and what each id stands for: a name with its description, as they were
/// executed last. It follows from the log, so it is the same on all ranks that have applied as
/// much. An evicted id is kept as retired while a child that has not applied its eviction yet may
/// still send it.
class IdTable {
public:
    struct Meaning {
        std::string name;
        SharedDescription description;
    };

    /// `children`: the ranks that send ids to this one.
    explicit IdTable(std::span<const int> children);

    /// 0: the name has no id.
    std::uint32_t id_of(const std::string& name) const;
    /// The description that goes with the name's id; null if the name has none.
    SharedDescription description_of(const std::string& name) const;
    /// Null: no name has the id at present.
    const std::string* name_of(std::uint32_t id) const;
    /// What a child means by the id, which may be a retired one; empty if no name ever had it.
    std::optional<Meaning> meaning_of(std::uint32_t id) const;

    /// At the root: an id that no name has had.
    std::uint32_t new_id() noexcept { return next_id_++; }
    /// The log has executed the item at this position; from here on its id stands for this.
    void use(const Item& item, SharedDescription description, std::uint64_t position);
    /// The log has evicted the item at this position. Throws Error(wire) if the name has no id.
    void retire(const Item& item, std::uint64_t position);
    /// The child has applied the log up to this position.
    void child_has_applied(int child, std::uint64_t position);

    /// What is to be evicted so that no more than `most` ids are left: those used longest ago, and
    /// an eighth of `most` besides, but none whose name is busy. Empty if there are no more.
    std::vector<Item> surplus(std::size_t most,
                              const std::function<bool(const std::string& name)>& is_busy) const;

    std::size_t size() const noexcept { return rows_.size(); }
    std::size_t retired_count() const noexcept { return retired_.size(); }

private:
    struct Row {
        std::uint32_t id = 0;
        SharedDescription description;
        std::uint64_t last_used = 0;  ///< position in the log
    };
    struct Retired {
        Meaning meaning;
        std::uint64_t position = 0;  ///< of the eviction
    };

    std::unordered_map<std::string, Row> rows_;             ///< by name
    std::unordered_map<std::uint32_t, std::string> names_;  ///< by id
    std::map<std::uint32_t, Retired> retired_;              ///< by id
    std::map<int, std::uint64_t> applied_;                  ///< by each child, as far as is known
    std::uint32_t next_id_ = 1;
};

}  // namespace guozhuang::protocol
