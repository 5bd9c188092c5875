#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "protocol/description.hpp"
#include "protocol/log_entry.hpp"
#include "protocol/name.hpp"
#include "protocol/tally.hpp"

namespace guozhuang::protocol {

/// The name that an id stands for, with the description with which it was last executed.
struct Meaning {
    Name name;
    SharedDescription described = {};  ///< null: the name has no id
    std::uint64_t fingerprint = 0;     ///< of the description
};

/// All that a rank knows of a name.
struct KnownName : Meaning {
    /// A submission of this rank that the log has not resolved.
    struct Submission {
        SharedDescription description;  ///< null: it is a join
        std::shared_ptr<Submitter> submitter;
    };

    bool named = true;  ///< in the round that is under way
    Tally tally = {};   ///< of that round, in this rank's subtree
    std::optional<Submission> submission = {};
    std::uint32_t id = 0;         ///< 0: it has none
    std::uint64_t last_used = 0;  ///< position in the log

    bool is_in_use() const noexcept { return tally.is_under_way() || submission || id != 0; }
};

/// The names in use, one row each, and their ids. The ids follow from the log, so they are the same
/// on all ranks that have applied it as far. An evicted id is kept as retired while a child that
/// has not applied the eviction may still send it.
class NameTable {
public:
    /// `children`: the ranks that send ids to this one.
    explicit NameTable(std::span<const int> children);
    NameTable(const NameTable& other);
    NameTable(NameTable&&) noexcept = default;
    NameTable& operator=(const NameTable& other) { return *this = NameTable(other); }
    NameTable& operator=(NameTable&&) noexcept = default;
    ~NameTable() = default;

    /// The row of a name (a Name or a std::string_view); adds one if there is none. It stays where
    /// it is until let_go().
    template <class Text>
    KnownName& row(const Text& name) {
        if (auto* const known = find(name)) return *known;
        const KnownName added{{Name(name)}};
        return rows_.emplace(added.name, added).first->second;
    }
    /// Null: the name is not in use.
    template <class Text>
    KnownName* find(const Text& name) {
        const auto found = rows_.find(name);
        return found == rows_.end() ? nullptr : &found->second;
    }
    template <class Text>
    const KnownName* find(const Text& name) const {
        const auto found = rows_.find(name);
        return found == rows_.end() ? nullptr : &found->second;
    }
    /// Null: no name has the id at present.
    KnownName* with_id(std::uint32_t id) {
        const auto found = with_ids_.find(id);
        return found == with_ids_.end() ? nullptr : found->second;
    }
    const KnownName* with_id(std::uint32_t id) const {
        const auto found = with_ids_.find(id);
        return found == with_ids_.end() ? nullptr : found->second;
    }
    /// Drops the row if the name is no longer in use.
    void let_go(KnownName& known);
    /// The meaning of an evicted id that a child may still send; null once no child can.
    const Meaning* retired_meaning(std::uint32_t id) const;

    /// At the root: an id that no name has had.
    std::uint32_t new_id() noexcept { return next_id_++; }
    /// The log has executed the row's name at this position; from now on the id stands for the name
    /// with this description.
    void use(KnownName& known, std::uint32_t id, const SharedDescription& description,
             std::uint64_t position);
    /// The log has evicted the item at this position. Throws Error(wire) if the name has no id.
    void retire(const Item& item, std::uint64_t position);
    /// The child has applied the log up to this position.
    void child_has_applied(int child, std::uint64_t position);

    /// Items to evict if there are more than `most` ids: the excess and an eighth of `most`
    /// besides, least recently used first. Ids whose round is under way stay.
    std::vector<Item> surplus(std::size_t most) const;

    std::size_t id_count() const noexcept { return with_ids_.size(); }
    std::size_t retired_count() const noexcept { return retired_.size(); }

    /// Visits all rows, in any order. They must stay.
    template <class Visit>
    void for_each(const Visit& visit) {
        for (auto& [name, known] : rows_) visit(known);
    }
    template <class Visit>
    void for_each(const Visit& visit) const {
        for (const auto& [name, known] : rows_) visit(known);
    }

private:
    struct Retired {
        Meaning meaning;
        std::uint64_t position = 0;  ///< of the eviction
    };

    std::unordered_map<Name, KnownName, NameHash, std::equal_to<>> rows_;
    std::unordered_map<std::uint32_t, KnownName*> with_ids_;  ///< rows by their ids
    std::map<std::uint32_t, Retired> retired_;                ///< by id
    std::map<int, std::uint64_t> applied_;                    ///< by child, as far as is known
    std::uint32_t next_id_ = 1;
};

}  // namespace guozhuang::protocol
